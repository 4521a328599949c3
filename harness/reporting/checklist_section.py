"""The checklist as a table and as a section of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.reporting.checklist.requirements import Row, check
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Section, Table, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import TrialResult

COLUMNS = (
    ColumnOf[Row](name="number", kind=Kind.COUNT, value=lambda row: row.number, shown_as="#"),
    ColumnOf[Row](name="requirement", kind=Kind.TEXT, value=lambda row: row.requirement),
    ColumnOf[Row](name="outcome", kind=Kind.TEXT, value=lambda row: row.answer.outcome),
    ColumnOf[Row](name="figures", kind=Kind.TEXT, value=lambda row: row.answer.figures),
)


def table(rows: Sequence[Row]) -> Table:
    """One row per requirement."""
    return make_table(COLUMNS, rows)


def summary(rows: Sequence[Row]) -> str:
    """How many requirements have which outcome, in a sentence. Only those that apply count."""
    found = Counter(row.answer.outcome for row in rows)
    applying = len(rows) - found["does not apply"]
    outcomes = ", ".join(f"{found[outcome]} {outcome}" for outcome in ("pass", "fail", "not known"))
    return f"Of {len(rows)} requirements, {applying} apply to this report: {outcomes}."


def met(rows: Sequence[Row]) -> bool:
    """Whether all requirements that apply pass, and at least one does."""
    outcomes = {row.answer.outcome for row in rows} - {"does not apply"}
    return outcomes == {"pass"}


def section(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[Section]:
    """The checklist of a run on GPUs; nothing for CPU devices, whose times say nothing."""
    if not any(result.spec.platform == "gpu" for result in results):
        return []
    rows = check(results, cells)
    text = f"{summary(rows)} docs/method.md says what each of them asks for. All are decided from results.jsonl alone."
    return [Section("Referee's checklist", (paragraph(text), table(rows)))]
