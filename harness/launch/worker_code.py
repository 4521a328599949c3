"""The code that a worker runs: how it is found under another interpreter, and a digest that identifies it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.spec import registry


def code_digest(framework: str) -> str:
    """A digest of all code that a worker of this framework may run: the harness without its reports, and the
    framework's package.

    A commit hash is not enough: a plug-in is in another repository, and there may be uncommitted changes.
    """
    digest, reports = hashlib.sha256(), registry.package_folder("harness") / "reporting"
    for package in ("harness", registry.framework(framework).package):
        folder = registry.package_folder(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(reports):
                digest.update(f"{package}/{path.relative_to(folder)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def link_code(folder: Path, package: str) -> Path:
    """Make a folder that holds only links to the packages that a worker needs, and return it.

    Another interpreter must find our code. It must not find the other packages installed beside that code: those belong
    to this interpreter.
    """
    folder.mkdir()
    for name in ("harness", package):
        origin = registry.package_folder(name)
        (folder / name).symlink_to(origin, target_is_directory=True)
    return folder
