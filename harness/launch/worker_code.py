"""The code that a worker runs: how it is found under another interpreter, and digests that identify it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.spec import registry, workload_packages

WORKER_SIDE = (
    "__init__.py",
    "checkpoints.py",
    "contract.py",
    "datasets",
    "gate",
    "layers",
    "meeting.py",
    "messages.py",
    "ports.py",
    "reference",
    "spec",
    "whole_files.py",
    "worker",
    "workloads",
)
"""What of the harness a worker imports. tests/test_workers.py compares this with what workers import."""


def code_digest(framework: str, workload: str = "") -> str:
    """A digest of all code on which a proof depends: the harness without its reports, the framework's package, and that
    of a workload of one's own.

    A commit hash is not enough: a plug-in is in another repository, and there may be uncommitted changes.
    """
    harness = [path for path in _files("harness") if path.parts[0] != "reporting"]
    return _digest({"harness": harness} | _packages(framework, workload))


def worker_digest(framework: str, workload: str = "") -> str:
    """A digest of the code that a worker of this framework runs."""
    harness = [path for path in _files("harness") if path.parts[0] in WORKER_SIDE]
    return _digest({"harness": harness} | _packages(framework, workload))


def _packages(framework: str, workload: str) -> dict[str, list[Path]]:
    """The files of the packages beside the harness."""
    package = registry.framework(framework).package
    own = workload_packages.packages_of(workload) if workload else ()
    # data and checkpoints may lie beside the code of a model
    return {package: _files(package)} | {name: [path for path in _files(name) if path.suffix == ".py"] for name in own}


def _files(package: str) -> list[Path]:
    """The files of a package, relative to its folder."""
    folder = registry.package_folder(package)
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(folder) for path in found)


def _digest(files: Mapping[str, Sequence[Path]]) -> str:
    digest = hashlib.sha256()
    for package, names in files.items():
        for name in names:
            content = (registry.package_folder(package) / name).read_bytes()
            digest.update(f"{package}/{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def link_code(folder: Path, *packages: str) -> Path:
    """Make a folder that holds only links to the harness and the packages that a worker needs, and return it.

    Another interpreter must find our code. It must not find the other packages installed beside that code: those belong
    to this interpreter.
    """
    folder.mkdir()
    for name in ("harness", *packages):
        _link(folder, name)
    return folder


def _link(folder: Path, package: str) -> None:
    """Link a package, or for "corp.impl" the package that holds it, which Python imports first.

    A namespace package, which has no code, becomes a folder: another distribution may have put packages there, too.
    """
    outer = ""
    for part in package.split("."):
        outer = f"{outer}.{part}".lstrip(".")
        if outer == package or importlib.import_module(outer).__file__ is not None:
            if not (folder / part).exists():  # two packages may be in the same one
                (folder / part).symlink_to(registry.package_folder(outer), target_is_directory=True)
            return
        folder = folder / part
        folder.mkdir(exist_ok=True)
