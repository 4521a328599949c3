"""report.md: sentences, tables and pictures, in the order in which a reader asks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from harness.gate.parity import EXACT, MOST_ALLOWED, NOISE_FACTOR
from harness.reporting import (
    definitions,
    descriptions,
    loss_agreement,
    provenance,
    result_table,
    sweep,
    timelines,
    training,
    tuned_settings,
    tutorial_section,
    verdict,
)
from harness.reporting.escaping import bullets, code, definition_list, escape, table
from harness.reporting.formatting import from_to
from harness.reporting.summary import Cell
from harness.spec import TrialResult

TIMELINE_NOTE = (
    "The table shows one step of each cell that can be traced stage by stage, taken after the timed blocks. A "
    "single program that runs on all devices cannot be traced, nor can a strategy with several processes."
)


def render(cells: Sequence[Cell], results: Sequence[TrialResult], pictures: Mapping[str, str]) -> str:
    """The whole report as Markdown. `pictures` maps a file name to its caption."""
    first = results[0]
    workloads = ", ".join(dict.fromkeys(f"{cell.spec.workload} ({cell.spec.size})" for cell in cells))
    on_cpu = descriptions.on_cpu(results)
    note = f"> **{verdict.CPU_NOTE}**\n" if on_cpu else ""
    parts = [f"# {escape(workloads)} on {escape(descriptions.devices(results))}", "", note]
    parts += ["## Verdict", "", *bullets(verdict.sentences(cells, results))]
    if first.run.get("recipe") == "tutorial":
        parts += ["", *tutorial_section.lines(cells, first.machine, on_cpu=on_cpu)]
    parts += ["", "## Machine", "", table(provenance.machine(results)), ""]
    parts += _results(training.timed(cells)) + _training(training.trained(cells))
    for name, caption in pictures.items():
        parts += ["", f"![{escape(caption)}]({name})", "", f"*{escape(caption)}*"]
    parts += _sweeps(cells) + _settings(cells) + _timelines(cells)
    parts += ["", "## Parity", "", *_parity(cells), ""]
    parts += _problems(cells)
    commands = dict.fromkeys(provenance.command(result.run) for result in results)
    parts += ["## How to reproduce this", "", code("\n".join(commands)), ""]
    parts += [escape(provenance.procedure(results)), ""]
    parts += ["## Software", "", table(provenance.software(cells)), ""]
    parts += ["Environment variables of the workers:", "", *provenance.variables(cells), "", note]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _results(timed: Sequence[Cell]) -> list[str]:
    if not timed:
        return []
    parts = [
        "## Results",
        "",
        *definition_list(definitions.conditions(timed)),
        "",
        table(result_table.table(timed)),
        "",
    ]
    return [*parts, "What the columns mean:", "", *definition_list(definitions.columns(timed))]


def _training(trained: Sequence[Cell]) -> list[str]:
    if not trained:
        return []
    parts = [
        "",
        "## Training",
        "",
        *definition_list(definitions.training_conditions(trained)),
        "",
        table(training.table(trained)),
        "",
    ]
    parts += ["What the columns mean:", "", *definition_list(definitions.training_columns(trained))]
    if any(result.epochs for cell in trained for result in cell.launches):
        parts += ["", "[epochs.csv](epochs.csv) holds training loss, test loss, accuracy and times after each epoch."]
    loading = training.loading(trained)
    if loading is not None:
        parts += ["", "## Input pipelines", "", table(loading)]
    return parts


def _sweeps(cells: Sequence[Cell]) -> list[str]:
    parts = []
    for found in sweep.find(cells):
        parts += ["", f"## Sweep of {escape(found.option)} ({found.cells[0].spec.protocol})", ""]
        parts += [*bullets(sweep.sentences(found)), "", table(sweep.table(found))]
    return parts


def _settings(cells: Sequence[Cell]) -> list[str]:
    settings = tuned_settings.table(cells)
    if settings is None:
        return []
    parts = ["", "## Settings of the tuned track", "", table(settings), ""]
    return parts + bullets(tuned_settings.exceptions(cells))


def _timelines(cells: Sequence[Cell]) -> list[str]:
    if not any(cell.first.spans for cell in cells):
        return []
    parts = ["", "## Timelines", "", TIMELINE_NOTE, "", table(timelines.table(cells)), ""]
    return [*parts, "What the columns mean:", "", *definition_list(definitions.timelines())]


def _parity(cells: Sequence[Cell]) -> list[str]:
    judged = [cell.first.parity for cell in cells if cell.first.parity]
    if not judged:
        return ["No cell reached the parity gate."]
    limits = ", ".join(f"{limit:.0e} for {quantity}" for quantity, limit in EXACT.items())
    what = (
        f"Before anything was timed, each cell trained {from_to([parity.steps for parity in judged])} steps of "
        f"{from_to([parity.batch for parity in judged])} samples in float64 with the optimizer named above; split_size "
        "and learning rate were scaled with the batch. The golden reference is the same steps in NumPy, computed "
        "independently of all frameworks. The gate compares the losses, every parameter's gradient in the first step, "
        "and every parameter after the last step, on every replica."
    )
    how = (
        "Errors are relative to the largest value in the tensor; for parameters, to the largest change. The tolerances "
        f"are {limits}. A deep network amplifies rounding, so its tolerance can be larger: {NOISE_FACTOR} times as "
        "much as the reference itself changes when its initial weights are rounded once more, but at most "
        f"{MOST_ALLOWED:.0e}. Errors near 1e-14 are rounding, including the reference's own. Each entry of the table "
        "is an error and its tolerance (error of tolerance)."
    )
    proofs = {cell.spec.computation: cell for cell in reversed(cells)}  # one proof serves all protocols
    rows = result_table.parity([cell for cell in cells if proofs[cell.spec.computation] is cell])
    return [escape(what), "", escape(how), "", table(rows), "", *bullets(loss_agreement.sentences(cells))]


def _problems(cells: Sequence[Cell]) -> list[str]:
    troubled = [cell for cell in cells if cell.status != "ok"]
    if not troubled:
        return []
    rows = [
        {
            "cell": cell.title,
            "launch": "-" if result.status == "skipped" else str(result.spec.launch + 1),
            "status": result.status,
            "reason": result.reason,
        }
        for cell in troubled
        for result in cell.launches
        if result.status != "ok"
    ]
    parts = ["## What did not run, and why", "", table(pd.DataFrame(rows)), ""]
    parts += ["logs/ holds the output of every process.", ""]
    for cell in troubled:
        trace = next((result.traceback for result in cell.launches if result.traceback), "")
        if trace:
            parts += [f"First failing rank of {escape(cell.title)}:", "", code(trace), ""]
    return parts
