"""The command that shows a plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli.arguments import RUN_DEFAULTS, RunArguments, request_of
from harness.cli.output import write_json
from harness.machine.devices import machine
from harness.planning.matrix import check_data, make_plan
from harness.planning.plan import Plan, Planned

HEADER = [
    "framework",
    "workload",
    "size",
    "strategy",
    "track",
    "options",
    "devices",
    "batch",
    "launches",
    "status",
    "reason",
]
NUMBERS = {HEADER.index(name) for name in ("devices", "batch", "launches")}


def plan(
    arguments: RunArguments = RUN_DEFAULTS,
    *,
    out: Path | None = None,
    data: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Show what `run` would do with the same arguments, and why cells are skipped. Launches nothing.

    Parameters
    ----------
    out
        As for run.
    data
        As for run.
    as_json
        Print one JSON document.
    """
    made = make_plan(request_of(arguments), machine())
    check_data(data, made)
    if as_json:
        write_json(asdict(made))
        return 0
    from harness.cli.terminal import print_table

    print_table(f"Plan: {made.platform} devices, preset {made.preset}", HEADER, table_rows(made), right=NUMBERS)
    return 0


def table_rows(made: Plan) -> list[list[str]]:
    """One row for each cell, sorted."""
    launches = 1 + max(trial.spec.launch for trial in made.trials)
    return sorted(_row(trial, launches) for trial in made.trials if trial.spec.launch == 0)


def _row(trial: Planned, launches: int) -> list[str]:
    spec = trial.spec
    return [
        spec.framework,
        spec.workload,
        spec.size,
        spec.strategy,
        spec.track,
        spec.variant or "-",
        str(spec.devices),
        str(spec.global_batch),
        str(launches if trial.status == "planned" else 0),
        trial.status,
        trial.reason,
    ]
