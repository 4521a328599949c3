"""The command that shows what a run holds."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.cli import records
from harness.cli.output import write, write_json
from harness.spec import TrialResult
from harness.spec.text import encodable

if TYPE_CHECKING:  # importing it takes longer than most commands
    from harness.reporting.summary import Cell

WIDTH, NAMES = 80, 21  # characters of a line, and of the names before the facts


def show(
    run: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Show what a run holds: its command, when and on which machine it ran, and how each cell ended. Writes nothing.

    python -m harness show reports/<run>
    python -m harness show reports/<run> --json

    Parameters
    ----------
    run
        The folder of a run.
    as_json
        Print one JSON document: the run, its machines, its cells, and all launches with the columns of docs/columns.md.
    """
    from harness.cli.screen import print_reasons, print_report_table
    from harness.reporting import summary
    from harness.reporting.tables import launches_table

    results = records.read(run)
    cells = summary.summarize(results)
    if as_json:
        write_json(document(run, results, cells))
        return 0
    for name, text in facts(run, results):
        lines = textwrap.wrap(text, WIDTH - NAMES, break_long_words=False, break_on_hyphens=False) or ["-"]
        write(f"{name:{NAMES}}" + f"\n{'':{NAMES}}".join(lines))
    print_report_table("Cells", launches_table.table(cells))
    print_reasons(cells)
    return 0


def facts(run: Path, results: Sequence[TrialResult]) -> list[tuple[str, str]]:
    """What there is to say about a run as a whole, as names and texts."""
    from harness.reporting import descriptions, provenance

    statuses = Counter(result.status for result in results)
    ended = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    measured = len(results) - statuses["pending"]
    machine = [(str(name), str(value)) for name, value in provenance.machine(results).rows]
    return [
        ("run", str(run)),
        *(("command", each) for each in dict.fromkeys(provenance.command(result.run) for result in results)),
        *machine,
        ("preset", ", ".join(filter(None, dict.fromkeys(result.run.preset for result in results)))),
        ("launches", f"{measured} of {descriptions.planned(results) or 'an unknown number'} planned: {ended}"),
        ("files", ", ".join(files_of(run))),
    ]


def files_of(run: Path) -> list[str]:
    """The names in a run's folder, those of folders with a slash."""
    paths = run.iterdir() if run.is_dir() else [run]
    return sorted(path.name + "/" * path.is_dir() for path in paths)


def document(run: Path, results: Sequence[TrialResult], cells: Sequence[Cell]) -> dict[str, Any]:
    """The run as plain data."""
    from harness.results.tidy_rows import launch_rows, launches

    rows = launch_rows(launches(results, run=run.resolve().name))
    machines = [asdict(hardware) for hardware in dict.fromkeys(result.conditions.hardware for result in results)]
    found = {
        "run": {"folder": str(run), "files": files_of(run), **run_facts(results)},
        "machines": machines,
        "cells": [cell_facts(cell) for cell in cells],
        "launches": rows,
    }
    return encodable(found)


def run_facts(results: Sequence[TrialResult]) -> dict[str, Any]:
    """What the rows say of their run. Lists have more than one entry where a report joined several runs."""
    from harness.reporting import descriptions

    named = {
        "started": "started",
        "sessions": "session",
        "commands": "command",
        "variables": "variables",
        "presets": "preset",
        "versions": "version",
        "commits": "commit",
    }
    found: dict[str, Any] = {
        name: list(dict.fromkeys(getattr(result.run, field) for result in results)) for name, field in named.items()
    }
    return found | {"planned": descriptions.planned(results), "statuses": Counter(result.status for result in results)}


def cell_facts(cell: Cell) -> dict[str, Any]:
    """A cell and how its launches ended."""
    return {
        "cell": cell.spec.cell,
        "conditions": cell.conditions,
        "status": cell.status,
        "launches": len(cell.launches),
        "ok": len(cell.good),
    }
