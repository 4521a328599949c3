"""The command that checks a report against its record."""

from __future__ import annotations

from pathlib import Path

from harness.cli import records

DIFFERS = 1  # exit code


def verify(run: Path, /) -> int:
    """Compute the numbers of a run's report.md again from its results.jsonl, by code that shares nothing with `report`.

    Prints one line for each difference, and ends with 1 if there is any.
    Then it says how many numbers were compared, and how many were not.

    python -m harness verify reports/<run>

    Parameters
    ----------
    run
        The folder of a run.
    """
    from harness.cli.tables import print_sentence
    from harness.verification import comparison

    records.read(run)  # refuses a damaged record
    found, left = comparison.verify(run)
    for line in found.differences:
        print_sentence(line)
    for line in found.not_verified:
        print_sentence(f"not verified: {line}")
    count = len(found.differences)
    print_sentence(f"{sum(found.compared.values()):,} numbers compared, {count} difference{'' if count == 1 else 's'}")
    by_section = ", ".join(f"{number} in {title}" for title, number in left.items())
    print_sentence(f"{sum(left.values()):,} numbers not computed again" + (f": {by_section}" if left else ""))
    return DIFFERS if found.differences else 0
