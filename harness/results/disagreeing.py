"""Which cells lose their speed: their losses are not those of the cells that take the same steps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results import agreement, epoch_agreement
from harness.results.agreement import Disagreement, Launches
from harness.spec import FAILURES


def find(cells: Sequence[Launches]) -> dict[int, Disagreement]:
    """The cells whose losses are too far from those of their peers, by their numbers. Each is given by all its
    launches. One with a failed launch is not compared: it is news already."""
    good = [_good(launches) for launches in cells]
    return agreement.disagreements(good) | epoch_agreement.disagreements(good)


def _good(launches: Launches) -> Launches:
    if any(result.status in FAILURES for result in launches):
        return ()
    return [result for result in launches if result.status == "ok"]
