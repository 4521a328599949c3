"""The comparison of a report with its record."""

from __future__ import annotations

from pathlib import Path

from harness.spec.errors import UsageError
from harness.verification import bounds, fits, matching, sweeps, tables, telemetry, trainings, verdict
from harness.verification.record import Cell, Record, read
from harness.verification.report_text import Findings, Section, parse

TELEMETRY = ("Clocks, power and temperature", "Load of the host")


def verify(folder: Path) -> tuple[Findings, dict[str, int]]:
    """What differs between the report of a run and its record, and how many numbers of each section were not compared.

    Raises UsageError for a folder without a report or a record, and for a damaged record.
    """
    for name in ("report.md", "results.jsonl"):
        if not (folder / name).is_file():
            raise UsageError(f"verify {folder}: has no {name}; name the folder of a run that has both")
    found, sections, record = (
        Findings(),
        parse((folder / "report.md").read_text("utf-8", errors="replace")),
        read(folder / "results.jsonl"),
    )
    _rows(found, record, sections)
    _tables(found, record, sections)
    if record.split:
        found.not_verified.append(
            "ladders, sweeps, what fits and comparisons: launches of some cells are in several rows"
        )
    else:
        sweeps.ladders(found, record, sections)
        sweeps.sweeps(found, record, sections)
        fits.fits(found, record, sections)
        verdict.compare(found, record, sections)
    numbers: dict[str, int] = {}
    for section in sections:
        numbers[section.title] = numbers.get(section.title, 0) + section.numbers
    left = {title: number - found.compared[title] for title, number in numbers.items()}
    return found, {title: number for title, number in left.items() if number > 0}


def _rows(found: Findings, record: Record, sections: list[Section]) -> None:
    """The tables with one row for each cell, which also give the order of the cells."""
    cells = {"Results": [], "Training": []}
    for cell in record.cells:
        cells["Training" if cell.spec.get("training") else "Results"].append(cell)
    rows = {}
    for title, own in cells.items():
        table = matching.table_of(found, sections, title, own)
        rows[title] = matching.identify(found, title, table, own) if table else []
    for title, own in cells.items():
        ordered = [cell for _, cell in rows[title]]
        ordered += [cell for cell in own if cell not in ordered]
        (record.timed if title == "Results" else record.trained).extend(ordered)
    matching.compare(found, "Results", rows["Results"], tables.result_columns(record))
    matching.compare(found, "Training", rows["Training"], trainings.TRAINING)


def _tables(found: Findings, record: Record, sections: list[Section]) -> None:
    """The tables whose rows are named by titles of cells."""
    varied = [cell for cell in record.timed if cell.timed and cell.spec["platform"] != "cpu"]
    judged, bounded = tables.judged(record), bounds.measured(record.timed)
    every: list[Cell] = [*record.timed, *record.trained]
    sampled = telemetry.sampled(every)
    clocks = next((each.title for each in sections if each.title in TELEMETRY), TELEMETRY[0])
    for title, cells, columns in (
        ("Variance and steadiness", varied, tables.VARIANCE),
        ("Parity", judged, tables.gate_columns(judged)),
        (clocks, sampled, telemetry.TELEMETRY),
        (bounds.TITLE, bounded, bounds.columns(bounded)),
    ):
        if table := matching.table_of(found, sections, title, cells):
            rows = list(matching.by_title(found, title, table, cells, parts=record.split))
            matching.compare(found, title, rows, columns)
