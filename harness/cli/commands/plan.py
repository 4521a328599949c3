"""The command that shows a plan."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness import workloads
from harness.cli.arguments import (
    OTHER,
    RUN_DEFAULTS,
    BudgetMinutes,
    Data,
    Guard,
    Out,
    RunArguments,
    Sampled,
    check_budget,
    request_of,
)
from harness.cli.output import write, write_parts
from harness.machine.devices import machine
from harness.planning import outlook
from harness.planning.launch_order import order, seed_of
from harness.planning.matrix import check_data, plan_cells
from harness.planning.outlook import SamplesOf
from harness.planning.plan import Plan, Planned
from harness.results import run_folders
from harness.spec import TrialSpec

HEADER = [
    "framework",
    "workload",
    "size",
    "strategy",
    "track",
    "options",
    "devices",
    "hosts",
    "batch",
    "launches",
    "status",
    "reason",
]
NUMBERS = ("devices", "hosts", "batch", "launches")
SUMMARY = ["framework", "workload", "size", "strategy", "track", "cells", "planned", "planned on devices"]
SUMMARY_NUMBERS = {SUMMARY.index(name) for name in ("cells", "planned")}
MOST_ROWS = 400
"""A plan with more cells is summed up: nobody reads so many rows."""


def plan(
    arguments: RunArguments = RUN_DEFAULTS,
    *,
    out: Out = None,
    data: Data = None,
    budget_minutes: BudgetMinutes = None,
    device_guard: Guard = None,
    telemetry: Sampled = None,
    as_json: Annotated[bool, Parameter(name="--json", group=OTHER)] = False,
) -> int:
    """Show what `run` would do with the same arguments, and why cells are skipped. Launches nothing.

    A plan of more than 400 cells is summed up, by strategy; --json lists every cell and launch.
    --budget-minutes, --device-guard and --telemetry are those of `run`, and change nothing here.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    del device_guard, telemetry  # checked by their types
    check_budget(budget_minutes)
    made = plan_cells(request_of(arguments), machine())
    samples = check_files(made, out=out, data=data)
    if as_json:
        write_parts(document(made))
    else:
        print_plan(made, size=arguments.size, samples=samples)
    return 0


def check_files(made: Plan, *, out: Path | None, data: Path | None) -> SamplesOf | None:
    """Raises UsageError for files and folders that would be refused when the plan is run.

    Returns what counts the samples of a cell; None where nothing needs their number, since loading them takes long.
    """
    from harness.planning.samples import counter

    check_data(data, made)
    if out is not None:
        run_folders.check_out(out)
    trials = made.runnable()
    if data is None and not any(spec.training for spec in trials):
        return None
    samples = counter(data)
    for spec in trials:
        if spec.training or workloads.get(spec.workload, spec.size).takes_data:
            samples(spec)
    return samples


def print_plan(made: Plan, *, size: str | None, samples: SamplesOf | None) -> None:
    """Print the cells of a plan, and roughly how long they take. `made`: with the first launch of each cell alone.
    `size`: what --size names. `samples`: what `check_files` has returned."""
    from harness.cli.tables import print_table

    title = f"Plan: {made.platform} devices, preset {made.preset}"
    if len(made.trials) <= MOST_ROWS:
        header, rows = shown(table_rows(made))
        right = {header.index(name) for name in NUMBERS if name in header}
        print_table(title, header, rows, right=right, below=("reason",), elsewhere="; --json has them")
        _tell(made, size, samples)
        return
    title += f", {made.launches} launches of each cell"
    print_table(title, SUMMARY, summary_rows(made), right=SUMMARY_NUMBERS)
    reasons = reason_rows(made)
    print_table("Cells that will not run", ["cells", "status", "reason"], reasons, right={0}, below=("reason",))
    _tell(made, size, samples)
    write(
        f"{len(made.trials)} cells are too many to list here; --json lists them all. Narrow the request, e.g. by "
        "--framework, --workload, --strategy or --devices, to see each with its reason."
    )


def _tell(made: Plan, size: str | None, samples: SamplesOf | None) -> None:
    """Say roughly how long the plan will take, and at which sizes."""
    from harness.cli.tables import print_sentence

    for sentence in outlook.sentences(made, size=size, cores=len(machine().cores), samples=samples):
        print_sentence(sentence)


def table_rows(made: Plan) -> list[list[str]]:
    """One row for each cell, sorted."""
    devices, options = HEADER.index("devices"), HEADER.index("options")

    def order(row: list[str]) -> tuple:
        numbers = re.findall(r"\d+", row[options])
        return *row[:options], int(row[devices]), re.sub(r"\d+", "", row[options]), *map(int, numbers), *row[options:]

    return sorted((_row(cell, made.launches) for cell in made.trials), key=order)


def shown(rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows, without the hosts where each cell is on one."""
    at = HEADER.index("hosts")
    if any(row[at] != "1" for row in rows):
        return HEADER, rows
    return [*HEADER[:at], *HEADER[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows]


def _row(cell: Planned, launches: int) -> list[str]:
    spec = cell.spec
    return [
        spec.framework,
        spec.workload,
        spec.size,
        spec.strategy,
        spec.track,
        ", ".join(filter(None, [spec.variant, _timing(spec), "A/A twin" if spec.twin else ""])) or "-",
        str(spec.devices),
        str(spec.hosts),
        str(spec.global_batch),
        str(launches if cell.status == "planned" else 0),
        cell.status,
        cell.reason,
    ]


def _timing(spec: TrialSpec) -> str:
    """How a cell is timed, if that is not the usual way."""
    return "" if spec.protocol == "resident" else f"protocol={spec.protocol}"


def summary_rows(made: Plan) -> list[list[str]]:
    """One row for each strategy of a framework, on a workload and track, sorted."""
    groups: defaultdict[tuple[str, ...], list[Planned]] = defaultdict(list)
    for cell in made.trials:
        spec = cell.spec
        groups[spec.framework, spec.workload, spec.size, spec.strategy, spec.track].append(cell)
    return [_summed_up(key, cells) for key, cells in sorted(groups.items())]


def _summed_up(key: Sequence[str], cells: Sequence[Planned]) -> list[str]:
    planned = [cell.spec.devices for cell in cells if cell.status == "planned"]
    return [*key, str(len(cells)), str(len(planned)), _in_ranges(sorted(set(planned))) or "-"]


def _in_ranges(counts: Sequence[int]) -> str:
    """Increasing numbers in words: "1-4, 8"."""
    ranges: list[list[int]] = []
    for count in counts:
        if ranges and count == ranges[-1][1] + 1:
            ranges[-1][1] = count
        else:
            ranges.append([count, count])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def reason_rows(made: Plan) -> list[list[str]]:
    """One row for each kind of reason why cells will not run, the most frequent first. Reasons that only differ by
    their numbers are one kind, of which the first is shown."""
    kinds: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in made.trials:
        if cell.status != "planned":
            kinds[cell.status, re.sub(r"\d+", "#", cell.reason)].append(cell.reason)
    found = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))
    return [
        [str(len(reasons)), status, reasons[0] if len(set(reasons)) == 1 else f"e.g. {reasons[0]}"]
        for (status, _), reasons in found
    ]


def document(made: Plan) -> Iterator[str]:
    """The whole plan as JSON, with every launch, in parts: a million launches do not fit into memory at once.

    `made` has the cells alone. Each trial is one line.
    """
    before, after = json.dumps(asdict(replace(made, trials=())), indent=2).split('"trials": []', 1)
    yield before + '"trials": ['
    separator = "\n    "
    for trial in _trials(made):
        yield separator + json.dumps(trial)
        separator = ",\n    "
    yield "\n  ]" + after


def _trials(made: Plan) -> Iterator[dict]:
    """The trials of a whole plan, in their order, as plain data. Launches of a cell share what they have in common, so
    each must be used before the next is made."""
    yield from (asdict(cell) for cell in made.trials if cell.status != "planned")
    planned = [cell for cell in made.trials if cell.status == "planned"]
    specs, shared = [cell.spec for cell in planned], [asdict(cell) for cell in planned]
    for launch, index in order(specs, made.launches):
        shared[index]["spec"] |= {"launch": launch, "seed": seed_of(specs[index], launch)}
        yield shared[index]
