"""Which of the project's lock files the packages of this interpreter are those of.

With the standard library alone: workers ask, each under its framework's own interpreter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "locks"  # workers come here by a link; an installed wheel has none


def matching(folder: Path = FOLDER, search: Sequence[str] | None = None) -> str:
    """The name of the lock for this Python whose every package is installed at its version, or "". There may be more
    packages than it holds. Of several such locks it is the one that holds the most."""
    found, present = {}, installed(sys.path if search is None else search)
    for path in sorted(folder.glob(f"*-py{sys.version_info.major}{sys.version_info.minor}.txt")):
        pinned = pins(path)
        if pinned and pinned.items() <= present.items():
            found[path.stem] = len(pinned)
    return max(found, key=lambda name: found[name], default="")


def pins(path: Path) -> dict[str, str]:
    """Versions by package, as a lock has them: "name==version" at the start of a line."""
    return {
        _plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text("utf-8"), re.M)
    }


def installed(search: Sequence[str]) -> dict[str, str]:
    """Versions by package, by the names of their folders: importlib.metadata would read every package's description."""
    found = {}
    for folder in reversed(search):  # the first is what an import takes
        for path in Path(folder).glob("*.dist-info"):
            name, _, version = path.stem.partition("-")
            if (path / "METADATA").is_file():  # an installation that was interrupted leaves none
                found[_plain(name)] = version
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
