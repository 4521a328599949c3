"""What `compare` shows of two runs: its table, and sentences about conditions, other cells and the gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.reporting.formatting import count, number
from harness.reporting.run_comparison import Compared, Comparison
from harness.reporting.summary import Cell
from harness.statistics.verdicts import Verdict

NAMED = 3  # so many cells are named; of more, the number


HEADER = ["cell", "A", "B", "B/A", "95% interval", "verdict", "conditions"]
UNRECORDED = "not recorded"


def title(found: Comparison) -> str:
    """What stands above the table."""
    units = {f"{cell.after.first.unit}s/s" for cell in found.cells}
    return f"Speed in {units.pop() if len(units) == 1 else 'samples/s'}"


def rows(found: Comparison) -> list[list[str]]:
    """One row for each cell."""
    in_full = len({(cell.after.spec.workload, cell.after.spec.size) for cell in found.cells}) > 1
    return [_row(cell, in_full=in_full) for cell in found.cells]


def _row(cell: Compared, *, in_full: bool) -> list[str]:
    spec = cell.after.spec
    return [
        f"{spec.workload} {spec.size}: {cell.after.title}" if in_full else cell.after.title,
        *map(number, cell.speeds),
        f"{cell.ratio.value:.3f}",
        _interval(cell),
        words(cell.verdict),
        "mismatch" if cell.mismatches else "differ" if cell.differs else "same",
    ]


def _interval(cell: Compared) -> str:
    interval = cell.ratio.interval
    return f"[{interval.low:.3f}, {interval.high:.3f}]" if interval else "-"


def words(verdict: Verdict) -> str:
    """A verdict as the table shows it."""
    if verdict.outcome == "tie":
        return f"tie within {100 * verdict.margin:.2g}%"
    if verdict.outcome == "unresolved":
        launches = f"about {verdict.needed}" if verdict.needed else "more than 1,000"
        return f"not resolved: {launches} launches would"
    return "single launch: no interval" if verdict.outcome == "unknown" else verdict.outcome


def differences(found: Comparison) -> Iterator[str]:
    """Which conditions differ between the runs, each with the cells in which it does."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in found.cells:
        for key in _different(cell):
            groups.setdefault(key, []).append(cell.after)
    for (kind, said), cells in groups.items():
        yield f"{kind} in {_names(cells, of=found)}: {said}."
    if any(kind == "Mismatch" for kind, _ in groups):
        yield "A mismatch is in a condition that must match to divide two speeds (docs/records.md)."
    apart = [cell.after for cell in found.cells if not cell.one_hold]
    if apart:
        yield (
            f"In {_names(apart, of=found)}, A and B have no hold in common (one uninterrupted use of one machine), so "
            "these ratios are also of machines, or of one machine at different times."
        )
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
    for before, after in found.speedless:
        yield f"No speed to compare: {after.spec.cell}, {before.status} in A, {after.status} in B."
    for side, cells in (("A", found.only_before), ("B", found.only_after)):
        if cells:
            yield f"Only in {side}: {_names(cells)}."


def gate(found: Comparison, bound: float) -> Iterator[str]:
    """What --fail-above tested, and what it found. `bound`: the smallest ratio that it accepts."""
    failed = [cell for cell in found.cells if cell.slower_than(bound)]
    untested = [cell.after for cell in found.cells if cell.ratio.interval is None]
    yield (
        f"--fail-above tested in each cell on its own whether the whole 95% interval of B/A lies below {bound:.6g} "
        f"(a one-sided test at 2.5%). {count(len(failed), 'cell')} of {len(found.cells) - len(untested)} tested did."
    )
    for cell in failed:
        yield f"Slower: {cell.after.spec.cell}, {cell.ratio.value:.3f} {_interval(cell)}."
    if untested:
        yield f"Not tested, because a single launch has no interval: {_names(untested)}."
    if len(untested) == len(found.cells):
        yield "No cell could be tested, so this is no pass. Measure both runs with --launches 3 or more."
    if found.broken:
        yield f"Failed in B, with a speed in A: {_names(found.broken)}."


def _names(cells: Sequence[Cell], *, of: Comparison | None = None) -> str:
    """Some cells by name, many by number. `of`: the comparison of which they may be all."""
    if of is not None and len(cells) == len(of.cells):
        return f"all {count(len(cells), 'cell')}" if len(cells) > 1 else "the cell"
    names = [cell.spec.cell for cell in cells]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
