"""Which frameworks there are: three here, and any that an installed package announces.

A package of one's own joins by an entry point in the group "likeforlike.frameworks", whose value is the package's name:

    [project.entry-points."likeforlike.frameworks"]
    myframework = "my_impl"
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.spec import FrameworkSpec, workload_packages
from harness.spec.entry_points import announced
from harness.spec.errors import UsageError

FRAMEWORKS = {"torch": "torch_impl", "jax": "jax_impl", "tf": "tf_impl"}
PROJECT = Path(__file__).parents[2]
ENTRY_POINTS = "likeforlike.frameworks"

PLUGIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")

_PROBE = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


@cache
def packages() -> dict[str, str]:
    """Framework name to package name, plug-ins after our own. Raises UsageError for a plug-in with a reserved name."""
    plugins = announced(ENTRY_POINTS)
    for name, package in plugins.items():
        if not PLUGIN_NAME.fullmatch(name):
            raise UsageError(
                f"plug-in {name[:80]!r} of package {package}: rename its entry point; a name has at most 40 letters, "
                "digits, _ and -"
            )
        if name in (*FRAMEWORKS, "all"):
            raise UsageError(f"plug-in {name!r} of package {package}: the name is taken; rename its entry point")
    return FRAMEWORKS | plugins


@cache
def framework(name: str) -> FrameworkSpec:
    """The manifest of one framework. Raises KeyError for an unknown name, UsageError for a plug-in that is broken."""
    package = packages()[name]
    try:
        found = importlib.import_module(f"{package}.manifest").FRAMEWORK
    except Exception as error:  # somebody else's code can raise anything
        if name in FRAMEWORKS:
            raise
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"plug-in {name!r}: {package}.manifest.FRAMEWORK cannot be loaded: {reason}") from error
    if found.name != name:
        raise UsageError(f"plug-in {name!r}: its manifest calls itself {found.name!r}; entry point and name must agree")
    return found


def package_folder(package: str) -> Path:
    """The folder of an importable package."""
    return Path(importlib.import_module(package).__path__[0]).resolve()


def has_model(spec: FrameworkSpec, workload: str) -> bool:
    """Whether the framework has a model of a workload, as its manifest or else its folder of models tells.

    A workload of one's own brings its models along. Without any, a framework may make one from the workload's layers.
    """
    if not workload_packages.is_ours(workload) and workload_packages.model_file(workload, spec.name).is_file():
        return True
    if spec.workloads:
        return workload in spec.workloads
    models = package_folder(spec.package) / "models"
    return not models.is_dir() or (models / f"{workload}.py").is_file()


def default_interpreter(spec: FrameworkSpec, project: Path = PROJECT) -> str:
    """This Python; or, where it lacks the framework, that of the environment .venv-<framework> beside the harness.

    On a GPU machine `make setup` makes one for TensorFlow, whose CUDA libraries cannot live with the others'.
    """
    own = project / f".venv-{spec.name}" / "bin" / "python"
    absent = any(importlib.util.find_spec(name) is None for name in spec.modules)
    return str(own) if absent and own.is_file() else sys.executable


def _failure(error: Exception) -> str:
    """Why a program that was asked for modules is no Python."""
    match error:
        case OSError():
            return error.strerror or str(error)
        case subprocess.CalledProcessError(returncode=code):
            return f"signal {-code} ended it" if code < 0 else f"its exit code is {code}"
        case subprocess.TimeoutExpired(timeout=seconds):
            return f"it did not answer within {seconds:g} s"
    return "it did not print what Python prints"


def missing(spec: FrameworkSpec, interpreter: str, *, beside: Sequence[str] = ()) -> str:
    """Why the framework cannot run under `interpreter`, or "" if its modules are there. Imports none of them.

    `beside`: modules that are needed, too. Raises UsageError if the interpreter is no Python.
    """
    needed = ("numpy", *spec.modules, *beside)
    if interpreter == sys.executable:
        absent = [name for name in needed if importlib.util.find_spec(name) is None]
    else:
        try:
            found = subprocess.run(
                [interpreter, "-c", _PROBE, *needed], capture_output=True, encoding="utf-8", timeout=60, check=True
            )
            absent = json.loads(found.stdout.splitlines()[-1])  # a wrapper script may print something before
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            said = (
                f"--interpreter {spec.name}={interpreter}: is not a working Python: {_failure(error)}; name another one"
            )
            raise UsageError(said) from error
    if not absent:
        return ""
    return f"{spec.title} is not installed for {interpreter} (no module {', '.join(absent)}): {spec.install_hint}"
