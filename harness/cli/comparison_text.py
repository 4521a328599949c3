"""What `compare` shows of two runs: its table, and sentences about conditions, other cells and the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.reporting.formatting import count, number, supported
from harness.reporting.run_comparison import Compared, Comparison
from harness.reporting.summary import Cell
from harness.reporting.verdict import CPU_NOTE
from harness.statistics.estimates import of_launches
from harness.statistics.intervals import FEWEST
from harness.statistics.verdicts import Verdict

NAMED = 3  # so many cells are named; of more, the number
NEEDED = "launches needed"
HEADER = ("cell", "A", "B", "B/A", "95% interval", "verdict", NEEDED, "conditions")
NUMBERS = ("A", "B", "B/A", NEEDED)
UNRECORDED = "not recorded"


def title(found: Comparison) -> str:
    """What stands above the table."""
    units = {f"{cell.after.first.unit}s/s" for cell in found.cells}
    return f"Speed in {units.pop() if len(units) == 1 else 'samples/s'}"


class Titles:
    """What the cells of two runs are called: by their titles, with the workload where there are several."""

    def __init__(self, found: Comparison) -> None:
        both = [cell for pair in found.speedless for cell in pair]
        cells = [*(each.after for each in found.cells), *both, *found.only_before, *found.only_after]
        self._in_full = len({(cell.spec.workload, cell.spec.size) for cell in cells}) > 1
        self._compared = len(found.cells)

    def of(self, cell: Cell) -> str:
        """One cell."""
        name = cell.named(workload=False)
        return f"{cell.spec.workload} {cell.spec.size}: {name}" if self._in_full else name

    def of_some(self, cells: Sequence[Cell]) -> str:
        """Some cells by name, many by number."""
        more = f" and {len(cells) - NAMED} more" if len(cells) > NAMED else ""
        return ", ".join(map(self.of, cells[:NAMED])) + more

    def of_compared(self, cells: Sequence[Cell]) -> str:
        """Some of the cells that were compared, maybe all."""
        if len(cells) < self._compared:
            return self.of_some(cells)
        return {1: "the cell", 2: "both cells"}.get(len(cells), f"all {len(cells)} cells")


def table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """The header and one row for each cell; without the launches that are needed where nothing needs any."""
    titles = Titles(found)
    rows = [_row(cell, titles) for cell in found.cells]
    kept = [at for at, name in enumerate(HEADER) if name != NEEDED or any(row[at] != "-" for row in rows)]
    return [HEADER[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _row(cell: Compared, titles: Titles) -> list[str]:
    estimates = map(of_launches, cell.throughputs)
    return [
        titles.of(cell.after),
        *(supported(each.value, each.interval) for each in estimates),
        f"{cell.ratio.value:.3f}",
        _interval(cell),
        words(cell.verdict),
        _needed(cell.verdict),
        "mismatch" if cell.mismatches else "differ" if cell.differs else "same",
    ]


def _interval(cell: Compared) -> str:
    interval = cell.ratio.interval
    return f"[{interval.low:.3f}, {interval.high:.3f}]" if interval else "-"


def words(verdict: Verdict) -> str:
    """A verdict as the table shows it."""
    if verdict.outcome == "tie":
        return f"tie within {number(100 * verdict.margin)}%"
    return {"unresolved": "not resolved", "unknown": "one launch"}.get(verdict.outcome, verdict.outcome)


def _needed(verdict: Verdict) -> str:
    """How many launches would resolve it."""
    if verdict.outcome != "unresolved":
        return "-"
    return "> 1,000" if verdict.needed is None else str(verdict.needed)


def differences(found: Comparison) -> Iterator[str]:
    """Which conditions differ between the runs, each with the cells in which it does."""
    titles = Titles(found)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in found.cells:
        for key in _different(cell):
            groups.setdefault(key, []).append(cell.after)
    for (kind, said), cells in groups.items():
        yield f"{kind} in {titles.of_compared(cells)}: {said}."
    if any(kind == "Mismatch" for kind, _ in groups):
        yield "A mismatch is in a condition that must match to divide two speeds (docs/records.md)."
    apart = [cell.after for cell in found.cells if not cell.one_hold]
    if apart:
        yield (
            f"In {titles.of_compared(apart)}, A and B have no hold in common (one uninterrupted use of one machine). "
            "So these ratios are also of machines, or of one machine at different times."
        )
    if few := [cell.after for cell in found.cells if not cell.ratio.interval]:
        yield f"Too few launches for an interval, which needs {FEWEST} in A and in B: {titles.of_compared(few)}."
    if any(cell.after.spec.platform == "cpu" for cell in found.cells):
        yield CPU_NOTE
    if left_out := sum(cell.left_out for cell in found.cells):
        launches = count(left_out, "launch", "launches")
        yield f"{launches} of A and B left out: the other run has none of the same cell in the same hold."


def _different(cell: Compared) -> Iterator[tuple[str, str]]:
    """The kind of each difference of a cell, and what differs. Conditions that a run did not record are one."""
    unrecorded: dict[str, list[str]] = {}  # names, by the sides that lack them
    for each in cell.differs:
        sides = [side for side, value in (("A", each.one), ("B", each.other)) if value == UNRECORDED]
        if sides:
            unrecorded.setdefault(" and ".join(sides), []).append(each.name)
        else:
            kind = "Mismatch" if each in cell.mismatches else "Different"
            yield kind, f"{each.name}, {each.one} in A, {each.other} in B"
    for sides, names in unrecorded.items():
        yield "Unknown", f"{', '.join(names)} {UNRECORDED} in {sides}"


def others(found: Comparison) -> Iterator[str]:
    """The cells that were not compared."""
    titles = Titles(found)
    for before, after in found.speedless:
        yield f"No speed to compare: {titles.of(after)}, {before.status} in A, {after.status} in B."
    for side, cells in (("A", found.only_before), ("B", found.only_after)):
        if cells:
            yield f"Only in {side}: {titles.of_some(cells)}."


def gate(found: Comparison, bound: float) -> Iterator[str]:
    """What --fail-above tested, and what it found. `bound`: the smallest ratio that it accepts."""
    titles = Titles(found)
    failed = [cell for cell in found.cells if cell.slower_than(bound)]
    untested = [cell.after for cell in found.cells if cell.ratio.tested is None]
    yield (
        f"--fail-above tested in each cell on its own whether the whole 95% interval of B/A lies below {bound:.6g} "
        f"(a one-sided test at 2.5%). {count(len(failed), 'cell')} of {len(found.cells) - len(untested)} tested did."
    )
    for cell in failed:
        yield f"Slower: {titles.of(cell.after)}, {cell.ratio.value:.3f} {_interval(cell)}".rstrip(" -") + "."
    if untested:
        yield f"Not tested, because a single launch has no interval: {titles.of_some(untested)}."
    if len(untested) == len(found.cells):
        yield f"No cell could be tested, so this is no pass. Measure both runs with --launches {FEWEST} or more."
    if alone := len(found.only_before) + len(found.only_after):
        yield f"Not tested, because only one run has it: {count(alone, 'cell')}, named above."
    if found.broken:
        yield f"Failed in B, with a speed in A: {titles.of_some(found.broken)}."
