"""The list, by subject, and its page: python tests/net/guarantees.py > docs/reliability.md"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import faults_25
import of_comparisons
import of_definitions
import of_forks
import of_processes
import of_records
import of_the_gate
import of_timed_programs
import of_workers
from guarantee import Guarantee

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reliability.md"
LAST_RUN = Path(__file__).parent / "last_run.json"

SUBJECTS: dict[str, tuple[Guarantee, ...]] = {
    each.TITLE: each.GUARANTEES
    for each in (
        of_processes,
        of_forks,
        of_records,
        of_the_gate,
        of_timed_programs,
        of_workers,
        of_definitions,
        of_comparisons,
    )
}
GUARANTEES = tuple(guarantee for part in SUBJECTS.values() for guarantee in part)

INTRODUCTION = """\
<!-- Made by `python tests/net/guarantees.py > docs/reliability.md`; `make net` does so, too. -->

# Reliability

What this suite promises, the tests that hold each promise, and the faults under which these tests were seen to fail.

A test that was never seen to fail may hold nothing. So `make net` plants every fault of this page, each in a copy of
the tree of its own, and demands that every test named for it fails there, by an assertion or by the exception that is
expected, and passes without the fault. The list is in `tests/net/`, and moves with the code: a test wants every text
that a fault replaces to be in its file, once.

At the end are 25 faults around a run, and what the user sees of them.
"""


def page() -> str:
    """docs/reliability.md: a row for each guarantee, and one for each of 25 faults."""
    last = json.loads(LAST_RUN.read_text()) if LAST_RUN.exists() else {"noticed": []}
    parts = [INTRODUCTION, f"{_words(last)}\n"]
    for title, part in SUBJECTS.items():
        parts += [f"## {title}\n", "| guarantee | held by | seen to fail when |\n|---|---|---|"]
        parts += [_row(guarantee, [*last["noticed"], *last.get("later", {})]) for guarantee in part]
        parts += [""]
    parts += faults_25.section()
    return "\n".join(parts)


def _words(last: dict) -> str:
    if not last["noticed"]:
        return "It has not yet run whole."
    whole = (
        f"Last whole run: {last['date']}, commit {last['commit']}: {len(last['noticed'])} of {last['faults']} faults "
        f"noticed by all their tests, in {last['minutes']} minutes."
    )
    later = [f"{fault} ({when})" for fault, when in last.get("later", {}).items()]
    return whole + (f" Noticed since then: {'; '.join(later)}." if later else "")


def _row(guarantee: Guarantee, noticed: list[str]) -> str:
    tests = [f"`{test.removeprefix('tests/')}`" for test in guarantee.ids]
    faults = [each.fault + ("" if each.fault in noticed else " (not yet seen)") for each in guarantee.breaks]
    cells = [f"**{guarantee.name}**: {guarantee.promise}", "<br>".join(tests), ";<br>".join(faults)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
