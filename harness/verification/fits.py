"""The numbers of what fits, computed again from the record: the table of batches, and its sentences in the verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from harness.spec import FAILURES
from harness.verification.matching import Columns, compare, table_of
from harness.verification.record import PROGRAM, Cell, Record
from harness.verification.report_text import Digits, Expected, Findings, Section, fixed, supported
from harness.verification.sweeps import step
from harness.verification.tables import over

TITLE, VERDICT = "What fits", "Verdict"
NOT_OF_A_PROGRAM = ("variant", "chosen_settings", "twin", "launch", "seed")
OF_A_BATCH = ("global_batch", "parity_batch", "parity_steps", "changed_in_parity")


def fits(found: Findings, record: Record, sections: Sequence[Section]) -> None:
    """Hold the table and the sentences against the record."""
    groups = _groups(record)
    cells = [cell for group in groups for cell in group]
    table = table_of(found, sections, TITLE, cells)
    if table is None:
        return
    if len(table.rows) != len(cells):
        found.differences.append(f"{TITLE}: {len(table.rows)} rows in the report, {len(cells)} by the record")
        return
    rows = list(zip(table.rows, cells, strict=True))
    for row, cell in rows:
        said = " ".join(row.get(name, "") for name in ("cell", "global batch", "status"))
        found.same(TITLE, "a row", said, f"{_name(cell)} {cell.spec['global_batch']} {_status(cell)}")
    compare(found, TITLE, rows, COLUMNS)
    _sentences(found, [line for each in sections if each.title == VERDICT for line in each.lines], groups)
    _over_one_device(found, record, [line for each in sections if each.title == TITLE for line in each.lines], groups)


def _groups(record: Record) -> list[list[Cell]]:
    """Cells that differ in their batch alone, at two batches or more, the smallest first."""
    groups: dict[str, list[Cell]] = {}
    for cell in record.timed:
        if not cell.spec.get("twin"):
            names = set(cell.spec) - {*NOT_OF_A_PROGRAM, *OF_A_BATCH}
            key = [{name: cell.spec[name] for name in names}, cell.first.get("described", {}).get("samples")]
            groups.setdefault(json.dumps(key, sort_keys=True), []).append(cell)
    ordered = [sorted(group, key=lambda cell: cell.spec["global_batch"]) for group in groups.values()]
    return [group for group in ordered if len({cell.spec["global_batch"] for cell in group}) > 1]


def _name(cell: Cell) -> str:
    """Its title without the batch, and with the options at the end."""
    batch = f"global_batch={cell.spec['global_batch']}"
    options = [option for option in cell.options.split(", ") if option not in ("", batch)]
    plain = cell.title.replace(f" ({cell.options})", "", 1) if cell.options else cell.title
    return f"{plain} ({', '.join(options)})" if options else plain


def _status(cell: Cell) -> str:
    """Of a launch that failed, if there is one."""
    failed = (row["status"] for row in cell.launches if row["status"] in FAILURES)
    return "disagrees" if cell.speedless else next(failed, cell.first["status"])


def _peak(cell: Cell) -> Expected:
    """The most memory of any launch."""
    known = [rank["peak_bytes"] for row in cell.good for rank in row["ranks"] if rank.get("peak_bytes") is not None]
    return fixed(max(known) / 2**20 if known else None)


COLUMNS: Columns = {
    "throughput": lambda cell: supported(cell.speed.numbers) if cell.speed else [],
    "step ms": lambda cell: step(cell) if cell.speed else [],
    "peak MiB": _peak,
}


def _over_one_device(found: Findings, record: Record, lines: Sequence[str], groups: Sequence[Sequence[Cell]]) -> None:
    """Each program on several GPUs over one GPU with the same batch, by batch."""
    for group in groups:
        if group[0].spec["devices"] == 1 or group[0].spec["platform"] == "cpu":
            continue
        numbers: list[Digits] = []
        count = 0
        for cell in group:
            base = next((each for each in record.singles(cell) if cell.alike(each, *PROGRAM, "global_batch")), None)
            if cell.timed and base is not None and (expected := over(cell, base)):
                numbers += [*expected, Digits(cell.spec["global_batch"], 1.0)]
                count += 1
        name = f"- {_name(group[0])} over one device with the same batch: "
        said = next((line.removeprefix(name) for line in lines if line.startswith(name)), "")
        listed = re.split(r"\. (?:It|One) ", said)[0]
        if listed or count > 1:
            found.compare(TITLE, f"{_name(group[0])} over one device", listed, numbers if count > 1 else [])


def _sentences(found: Findings, lines: Sequence[str], groups: Sequence[Sequence[Cell]]) -> None:
    """The largest batch that fits each program, and the smallest that does not."""
    for group in groups:
        name, batch = _name(group[0]), {id(cell): cell.spec["global_batch"] for cell in group}
        ran_out = [batch[id(cell)] for cell in group if any(row["status"] == "oom" for row in cell.launches)]
        fitting = [batch[id(cell)] for cell in group if cell.timed and batch[id(cell)] not in ran_out]
        numbers = [*fitting[-1:], *ran_out[:1]]
        if not numbers:
            continue
        of_one = [line.removeprefix(f"- {name} ") for line in lines if line.startswith(f"- {name} ")]
        of_all = [line for line in lines if re.search(rf"timed, {numbers[0]}: (.*, )?{re.escape(name)}[,.]", line)]
        said = next((line for line in of_one if "out of memory" in line), "") if ran_out else "".join(of_all)
        written = said if ran_out else said.partition(":")[0]
        found.compare(VERDICT, f"what fits {name}", written, [Digits(number, 1.0) for number in numbers])
