"""The report as a tree: its sections, in the order in which a reader asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.reporting import (
    bounds_section,
    checklist_section,
    definitions,
    descriptions,
    disturbed_launches,
    execution_section,
    figures,
    fits,
    ladder,
    not_offered,
    parity_section,
    problems_section,
    provenance,
    repeatability,
    sweep,
    telemetry_section,
    training,
    tuned_settings,
    tutorial_section,
    verdict,
    worker_variables,
)
from harness.reporting.columns import meanings
from harness.reporting.model import Claim, CodeBlock, Link, List, Node, Note, Report, Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.tables import (
    epochs_table,
    fits_table,
    ladder_table,
    loading_table,
    placement_table,
    result_table,
    sweep_table,
    timeline_table,
    training_table,
)
from harness.reporting.timelines import tracing_cost
from harness.spec import TrialResult

EPOCHS_FILE = "epochs.csv"
TIMELINE_NOTE = (
    "The table shows one step of each cell whose stages were traced, taken after the timed blocks. Schedules with "
    "several stages on a device are not traced, nor are stages on several hosts, whose clocks differ. A step that is "
    "timed as a CUDA graph is traced in a second graph, which also records when each piece of work begins and ends. "
    "Where the host's clock times the stages of a pipeline, threads wait for them, and notice an end some microseconds "
    "late. A pipeline that is one program on all devices is traced in a copy that calls the host before and after each "
    "piece of work, which takes time as well."
)
LADDER_NOTE = (
    "Each ladder climbs from fewer settings to more, in one framework and strategy, with the same precision, batch and "
    "optimizer. It shows what each step of tuning is worth."
)
FITS_NOTE = (
    "Each cell was launched at several global batches, the smallest first. Nothing else changes with the batch, the "
    "learning rate included. After a cell has run out of memory, it is not launched at larger batches."
)
PLACEMENT_NOTE = (
    "What each device held, took and sent in the timed program, read from its live tensors after the timed blocks. "
    "Each number was compared with what the strategy says of itself. A cell with a wrong one fails."
)
COLUMNS_MEAN = paragraph("What the columns mean:")


def build(cells: Sequence[Cell], results: Sequence[TrialResult]) -> Report:
    """The whole report, from results alone. `cells`: those of these results."""
    first = results[0]
    workloads = ", ".join(dict.fromkeys(f"{cell.spec.workload} ({cell.spec.size})" for cell in cells))
    on_cpu = descriptions.on_cpu(results)
    notes = [Note(verdict.CPU_NOTE)] if on_cpu else []
    body: list[Node] = [*notes, _verdict(cells, results)]
    if first.run.recipe == "tutorial":
        body.append(tutorial_section.section(cells, first.conditions.hardware, on_cpu=on_cpu))
    body.append(Section("Machine", (provenance.machine(results),)))
    body += _results(training.timed(cells))
    body += repeatability.section(training.timed(cells))
    body += _trainings(training.trained(cells))
    body += figures.find(cells)
    body += _sweeps(cells)
    body += _fits(cells)
    body += _ladders(cells)
    body += _settings(cells)
    body += _timelines(cells)
    body += execution_section.section(cells)
    body += _placement(cells)
    body.append(parity_section.section(cells))
    body += bounds_section.section(cells)
    body += telemetry_section.section(cells)
    body += disturbed_launches.section(cells)
    body += problems_section.section(cells)
    body += checklist_section.section(cells, results)
    body += not_offered.section(cells)
    body += [_reproduction(results), _software(cells), *notes]
    return Report(f"{workloads} on {descriptions.devices(results)}", tuple(body))


def _verdict(cells: Sequence[Cell], results: Sequence[TrialResult]) -> Section:
    return Section("Verdict", (List(tuple(map(Claim, verdict.sentences(cells, results)))),))


def _results(timed: Sequence[Cell]) -> list[Node]:
    if not timed:
        return []
    table = result_table.table(timed)
    notes = [*definitions.from_host_rows(timed), *definitions.rows_of_several_steps(timed)]
    notes += [*definitions.speedups_without_base(timed), *definitions.ratios_of_fewer_rounds(timed)]
    notes += definitions.rows_apart(timed)
    return [Section("Results", (definitions.conditions(timed), table, COLUMNS_MEAN, meanings(table, *notes)))]


def _trainings(trained: Sequence[Cell]) -> list[Node]:
    if not trained:
        return []
    table = training_table.table(trained)
    notes = [*definitions.rows_of_several_steps(trained), *definitions.rows_apart(trained)]
    body: list[Node] = [definitions.training_conditions(trained), table, COLUMNS_MEAN, meanings(table, *notes)]
    if epochs_table.table(trained) is not None:
        link = Link(EPOCHS_FILE, EPOCHS_FILE)
        body.append(paragraph(link, " holds training loss, test loss, accuracy and times after each epoch."))
    sections: list[Node] = [Section("Training", tuple(body))]
    loading = loading_table.table(trained)
    if loading is not None:
        sections.append(Section("Input pipelines", (loading,)))
    return sections


def _sweeps(cells: Sequence[Cell]) -> list[Node]:
    sweeps = sweep.find(cells)
    alike = Counter((found.option, found.cells[0].spec.protocol) for found in sweeps)
    sections: list[Node] = []
    for found in sweeps:
        protocol = found.cells[0].spec.protocol
        which = f": {found.cells[0].named(options=False)}" if alike[found.option, protocol] > 1 else ""
        body = (List(tuple(sweep.sentences(found))), sweep_table.table(found))
        sections.append(Section(f"Sweep of {found.option} ({protocol}){which}", body))
    return sections


def _fits(cells: Sequence[Cell]) -> list[Node]:
    sweeps = fits.find(cells)
    if not sweeps:
        return []
    table = fits_table.table(sweeps)
    over = fits.over_one_device(sweeps)
    listed = (List(tuple(over)),) if over else ()
    return [Section("What fits", (paragraph(FITS_NOTE), *listed, table, COLUMNS_MEAN, meanings(table)))]


def _ladders(cells: Sequence[Cell]) -> list[Node]:
    rungs = ladder.find(cells)
    if not rungs:
        return []
    table = ladder_table.table(rungs)
    return [Section("Ladder of settings", (paragraph(LADDER_NOTE), table, COLUMNS_MEAN, meanings(table)))]


def _settings(cells: Sequence[Cell]) -> list[Node]:
    settings = tuned_settings.table(cells)
    if settings is None:
        return []
    lines = (*tuned_settings.exceptions(cells), *tuned_settings.efforts(cells))
    return [Section("Settings of the tuned track", (settings, List(lines)))]


def _timelines(cells: Sequence[Cell]) -> list[Node]:
    if not any(cell.first.spans for cell in cells):
        return []
    table = timeline_table.table(cells)
    costly = [f"{cell.title}: {cost}" for cell in cells if (cost := tracing_cost(cell))]
    found: tuple[Node, ...] = (paragraph(TIMELINE_NOTE), table, COLUMNS_MEAN, meanings(table))
    return [Section("Timelines", (*found, List(tuple(costly))) if costly else found)]


def _placement(cells: Sequence[Cell]) -> list[Node]:
    table = placement_table.table(cells)
    if table is None:
        return []
    return [Section("What lies where", (paragraph(PLACEMENT_NOTE), table, COLUMNS_MEAN, meanings(table)))]


def _reproduction(results: Sequence[TrialResult]) -> Section:
    commands = dict.fromkeys(line for result in results for line in provenance.commands(result.run))
    body: list[Node] = [CodeBlock("\n".join(commands)), paragraph(provenance.procedure(results))]
    if any(not result.run.has_variables_recorded for result in results):
        body.append(
            paragraph("Which variables the user had set was not recorded yet. Section Software lists the workers'.")
        )
    return Section("How to reproduce this", tuple(body))


def _software(cells: Sequence[Cell]) -> Section:
    variables = paragraph("Environment variables of the workers:")
    return Section("Software", (provenance.software(cells), variables, *worker_variables.listing(cells)))
