"""Which frameworks there are: three here, and any that an installed package announces.

A package of one's own joins by an entry point in the group "likeforlike.frameworks", whose value is the package's name:

    [project.entry-points."likeforlike.frameworks"]
    myframework = "my_impl"
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from functools import cache

from harness.specs import FrameworkSpec

FRAMEWORKS = {"torch": "torch_impl", "jax": "jax_impl", "tf": "tf_impl"}
ENTRY_POINTS = "likeforlike.frameworks"

_PROBE = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


@cache
def packages() -> dict[str, str]:
    """Framework name to package name, plug-ins after our own."""
    plugins = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return FRAMEWORKS | {name: package for name, package in plugins.items() if name not in FRAMEWORKS}


@cache
def framework(name: str) -> FrameworkSpec:
    """The manifest of one framework. Raises KeyError for an unknown name."""
    return importlib.import_module(f"{packages()[name]}.manifest").FRAMEWORK


def missing(spec: FrameworkSpec, interpreter: str) -> str:
    """Why the framework cannot run under `interpreter`, or "" if its modules are there. Imports none of them."""
    needed = ("numpy", *spec.modules)
    if interpreter == sys.executable:
        absent = [name for name in needed if importlib.util.find_spec(name) is None]
    else:
        try:
            found = subprocess.run(
                [interpreter, "-c", _PROBE, *needed], capture_output=True, text=True, timeout=60, check=True
            )
            absent = json.loads(found.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"interpreter {interpreter} does not work: {error}"
    if not absent:
        return ""
    return f"{spec.title} is not installed for {interpreter} (no module {', '.join(absent)}): {spec.install_hint}"
