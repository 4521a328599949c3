"""The command that compares two runs."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.cli import records
from harness.cli.output import write, write_json
from harness.spec.errors import UsageError

if TYPE_CHECKING:  # importing it takes longer than most commands
    from harness.reporting.run_comparison import Compared, Comparison

REGRESSION, FAILED = 4, 1  # exit codes
PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
NAMED = 3  # so many cells are named where none is in both runs


def compare(
    a: Path,
    b: Path,
    /,
    *,
    fail_above: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Compare two runs: the speed of each cell in B divided by that in A, with its 95% interval.

    python -m harness compare reports/<before> reports/<after>
    python -m harness compare reports/<before> reports/<after> --fail-above 3%

    Parameters
    ----------
    a
        The folder of the run to compare with.
    b
        The folder of the run that is compared.
    fail_above
        Exit with code 4 if a cell is slower in B by more than this, e.g. 3%: if the whole 95% interval of B/A lies
        below 0.97. Each cell that has a speed in both runs is tested on its own. Exit with code 1 if none is slower,
        but a cell that has a speed in A failed in B, or if no cell could be tested because all have a single launch.
    as_json
        Print one JSON document.
    """
    from harness.reporting import run_comparison

    bound = None if fail_above is None else 1 - share(fail_above)
    before, after = records.read(a), records.read(b)
    if before == after:
        raise UsageError(f"compare {a} {b}: both have the same rows, so this is one run; name another one")
    found = run_comparison.compare(before, after)
    check_common(a, b, found)
    code = exit_code(found, bound)
    if as_json:
        write_json({"a": str(a), "b": str(b), **document(found, bound), "exit_code": code})
        return code
    show(a, b, found)
    if bound is not None:
        from harness.cli import comparison_text
        from harness.cli.tables import print_sentence

        for line in comparison_text.gate(found, bound):
            print_sentence(f"- {line}")
    return code


def share(text: str) -> float:
    """The share that a percentage stands for: 0.03 for "3%". Raises UsageError."""
    match = PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) >= 100:
        raise UsageError(f"--fail-above {text!r}: must be a percentage from 0% to less than 100%, e.g. 3%")
    return float(match[1]) / 100


def check_common(a: Path, b: Path, found: Comparison) -> None:
    """Raises UsageError if no cell has a speed in both runs: nothing was compared, which must not look like a pass."""
    if found.cells:
        return
    if found.speedless:
        both = ", ".join(f"{before.spec.cell} ({before.status}, {after.status})" for before, after in found.speedless)
        raise UsageError(f"compare {a} {b}: no cell has a timed launch in both runs; in both are {both}")
    sides = [", ".join(cell.spec.cell for cell in side[:NAMED]) for side in (found.only_before, found.only_after)]
    raise UsageError(f"compare {a} {b}: no cell is in both runs: A has e.g. {sides[0]}, B has e.g. {sides[1]}")


def exit_code(found: Comparison, bound: float | None) -> int:
    """4 if the gate found a regression, else 1 if it found a cell that failed or could test none, else 0."""
    if bound is None:
        return 0
    if all(cell.ratio.tested is None for cell in found.cells):
        return FAILED
    if any(cell.slower_than(bound) for cell in found.cells):
        return REGRESSION
    return FAILED if found.broken else 0


def show(a: Path, b: Path, found: Comparison) -> None:
    """Print the comparison."""
    from harness.cli import comparison_text
    from harness.cli.tables import print_sentence, print_table

    write(f"A: {a}\nB: {b}")
    header, rows = comparison_text.table(found)
    right = [header.index(name) for name in comparison_text.NUMBERS if name in header]
    print_table(comparison_text.title(found), header, rows, right=right, elsewhere="; --json has them")
    for line in (*comparison_text.differences(found), *comparison_text.others(found)):
        print_sentence(f"- {line}")


def document(found: Comparison, bound: float | None) -> dict[str, Any]:
    """The comparison as plain data. Speeds are in samples/s."""
    return {
        "cells": [facts(cell, bound) for cell in found.cells],
        "without_speed": [
            {"cell": before.spec.cell, "status_a": before.status, "status_b": after.status}
            for before, after in found.speedless
        ],
        "only_in_a": [cell.spec.cell for cell in found.only_before],
        "only_in_b": [cell.spec.cell for cell in found.only_after],
        "broken_in_b": [cell.spec.cell for cell in found.broken],
        "least_ratio_allowed": bound,
    }


def facts(cell: Compared, bound: float | None) -> dict[str, Any]:
    """One cell as plain data. `p` is adjusted by Holm's method; `needed` are launches that would resolve the ratio.
    `interval`: the one that is tested, though the table leaves it out for two launches."""
    verdict, interval = cell.verdict, cell.ratio.tested
    return {
        "cell": cell.after.spec.cell,
        "title": cell.after.title,
        "launches_a": len(cell.divided[0]),
        "launches_b": len(cell.divided[1]),
        "launches_left_out": cell.left_out,
        "throughput_a": cell.speeds[0],
        "throughput_b": cell.speeds[1],
        "ratio": cell.ratio.value,
        "interval": asdict(interval) if interval else None,
        "pairs": cell.ratio.pairs,
        "p": verdict.adjusted_p,
        "verdict": verdict.outcome,
        "margin": verdict.margin,
        "needed": verdict.needed,
        "same_hold": cell.one_hold,
        "differences": [
            {"name": each.name, "a": each.one, "b": each.other, "must_match": each in cell.mismatches}
            for each in cell.differs
        ],
        "regression": None if bound is None or interval is None else cell.slower_than(bound),
    }
