"""The packages of this interpreter, and which of the project's lock files they are those of.

With the standard library alone: workers ask, each under its framework's own interpreter.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "locks"  # workers come here by a link; an installed wheel has none


def matching(present: Mapping[str, str], folder: Path = FOLDER) -> str:
    """The name of the lock for this Python whose every package is among those present at its version, or "". There may
    be more packages than it holds. Of several such locks it is the one that holds the most."""
    found = {}
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


def listing(packages: Mapping[str, str]) -> str:
    """One line for each package, "name==version", sorted: what `pip install --requirement` reads."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))


def digest(packages: Mapping[str, str]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the listing."""
    return hashlib.sha256(listing(packages).encode()).hexdigest()[:12]


def installed(search: Sequence[str] | None = None) -> dict[str, str]:
    """Versions by package, by the names of their folders: importlib.metadata would read every package's description.
    `search`: the folders to look into, sys.path unless given."""
    found = {}
    for folder in reversed(sys.path if search is None else search):  # the first is what an import takes
        for path in Path(folder).glob("*.dist-info"):
            name, _, version = path.stem.partition("-")
            # an installation that was interrupted leaves no METADATA
            if path.stem.isascii() and (path / "METADATA").is_file():
                found[_plain(name)] = version
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
