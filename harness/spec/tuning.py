"""How much effort a framework's tuned settings took, so that a comparison of tuned speeds can be seen to be fair."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TuningEffort:
    """What was tried before the settings of a framework's tuned track were chosen.

    `budget_seconds` is what the search was given; it left out what it expected not to fit. `probe`: where its data lie,
    a path in the repository. `tried`: by the names that they have there.
    """

    budget_seconds: float
    spent_seconds: float
    device: str
    workload: str
    date: str  # year-month-day
    versions: dict[str, str]  # of the framework's packages
    probe: str
    tried: tuple[str, ...]
