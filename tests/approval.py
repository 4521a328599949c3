"""Approved files of what readers see: reports, pictures, the screen. Compared byte for byte; `make approve` makes them.

They are called approved, not golden, because "golden" is the reference that cells are compared with.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest

APPROVED = Path(__file__).parent / "approved"
HOW = "If readers should see this: `make approve`, read `git diff`, and commit it."
KINDS = (".md", ".txt", ".csv", ".png")
MOST_LINES, MOST_CHARACTERS = 40, 240  # shown of a difference
DRAWN_WITH = APPROVED / "drawn-with.txt"
"""The versions that drew the published pictures. Others draw other letters: matplotlib 3.11 has another FreeType than
3.10, which changes a tenth of a picture's pixels, so no tolerance could distinguish a change from a version."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Compares what was made with what was approved."""

    rewrite: bool

    def hold(self, made: Path, approved: Path, pattern: str = "*") -> None:
        """Assert that both folders have the same files, byte for byte; or approve those in `made`."""
        new, old = _files(made, pattern), _files(approved, pattern)
        assert new, f"nothing was made in {made}"
        if self.rewrite:
            approved.mkdir(parents=True, exist_ok=True)
            for name in old.keys() - new.keys():
                (approved / name).unlink()
            for name, content in new.items():
                if old.get(name) != content:
                    (approved / name).write_bytes(content)
            return
        problems = [f"made, but not approved: {approved / name}" for name in sorted(new.keys() - old.keys())]
        problems += [f"approved, but no longer made: {approved / name}" for name in sorted(old.keys() - new.keys())]
        for name in sorted(new.keys() & old.keys()):
            if new[name] != old[name]:
                problems += _difference(approved / name, old[name], new[name])
        if problems:
            pytest.fail("\n".join([*problems, HOW]), pytrace=False)


def drawn_with() -> str:
    """What pictures depend on, apart from our code and data."""
    from matplotlib import ft2font

    return f"matplotlib {version('matplotlib')}, FreeType {ft2font.__freetype_version__}, Pillow {version('pillow')}\n"


def _files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(pattern) if path.suffix in KINDS}


def _difference(path: Path, old: bytes, new: bytes) -> list[str]:
    if path.suffix == ".png":
        before, now = DRAWN_WITH.read_text().strip(), drawn_with().strip()
        return [f"another picture: {path}" + (f"\n  drawn with {now}; approved: {before}" if before != now else "")]
    before, now = old.decode().splitlines(keepends=True), new.decode().splitlines(keepends=True)
    found = list(difflib.unified_diff(before, now, f"approved {path}", "made now", n=0, lineterm=""))
    for number, (gone, come) in enumerate(pairwise(found)):
        if gone.startswith("-") and come.startswith("+") and max(len(gone), len(come)) > MOST_CHARACTERS:
            apart = (at for at, (one, other) in enumerate(zip(gone[1:], come[1:], strict=False)) if one != other)
            start = max(1, next(apart, MOST_CHARACTERS) - MOST_CHARACTERS // 4)
            found[number : number + 2] = (f"{line[0]}... {line[start:]}" for line in (gone, come))
    shown = [line.rstrip("\n")[:MOST_CHARACTERS] for line in found[:MOST_LINES]]
    return shown + [f"... and {len(found) - MOST_LINES} lines more"] * (len(found) > MOST_LINES)
