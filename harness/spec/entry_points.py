"""What installed packages announce: their entry points."""

from __future__ import annotations

import contextlib
import importlib.metadata


def announced(group: str) -> dict[str, str]:
    """Name to value of the entry points that installed packages have in a group. Packages with broken metadata do not
    count: they need not be ours."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # an installation that was interrupted leaves anything
            for point in distribution.entry_points.select(group=group):
                found.setdefault(point.name, point.value)  # the first is what an import takes
    return found
