"""What a record (results.jsonl) says: cells, their speeds, and ratios within rounds. docs/method.md says how."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.results.older_records import as_current
from harness.spec import FAILURES, SCHEMA_VERSION
from harness.spec.errors import UsageError
from harness.spec.text import visible
from harness.verification.launches import Estimate, Row, blocks, counted, estimate, hold, throughput

NORMALIZED_OVER = {"global": "batch", "per_device": "device", "per_microbatch": "micro-batch"}
TASK = ("workload", "size", "precision", "protocol", "protocol_version", "platform", "optimizer")
PROGRAM = ("framework", "track", "chosen_settings", "accumulation_steps", "steps_per_call")


def ratio(ours: Cell, theirs: Cell) -> Estimate | None:
    """How many times as fast one cell is as another: within rounds, else by Welch's interval within common holds."""
    sides = [
        {(row["run"]["started"], row["spec"]["launch"], *hold(row)): row for row in c.timed} for c in (ours, theirs)
    ]
    if common := [key for key in sides[0] if key in sides[1]]:
        return estimate([throughput(sides[0][key]) / throughput(sides[1][key]) for key in common])
    holds = set(map(hold, ours.timed)) & set(map(hold, theirs.timed))
    logs = [np.log([throughput(row) for row in c.timed if hold(row) in holds]) for c in (ours, theirs)]
    if not holds:
        return None
    value = math.exp(logs[0].mean() - logs[1].mean())
    if min(map(len, logs)) < 2:
        return Estimate(value)
    variances = [each.var(ddof=1) for each in logs]
    of_means = [variance / len(each) for variance, each in zip(variances, logs, strict=True)]
    squares = sum(each**2 / (len(side) - 1) for each, side in zip(of_means, logs, strict=True))
    degrees = sum(of_means) ** 2 / squares if squares else sum(map(len, logs)) - 2
    return Estimate(value, math.sqrt(sum(of_means)), degrees, math.sqrt(sum(variances)))


@dataclass(eq=False)
class Cell:
    """All launches of one cell. `workload`: its name, where the record has several. `speedless`: its losses are wrong.
    `split`: the report has it in several rows."""

    launches: list[Row]
    workload: str = ""
    mixed: bool = False
    speedless: bool = False
    split: bool = False

    @property
    def good(self) -> list[Row]:
        return [row for row in self.launches if row["status"] == "ok"]

    @property
    def timed(self) -> list[Row]:
        return [] if self.speedless else [row for row in self.good if blocks(row)]

    @property
    def first(self) -> Row:
        return (self.good or self.launches)[0]

    @property
    def spec(self) -> Row:
        return self.launches[0]["spec"]

    @property
    def ok(self) -> bool:
        return not self.speedless and bool(self.good) and all(row["status"] not in FAILURES for row in self.launches)

    @property
    def speed(self) -> Estimate | None:
        """Samples per second."""
        return estimate([throughput(row) for row in self.timed]) if self.timed else None

    @property
    def step_seconds(self) -> float:
        return self.spec["global_batch"] / self.speed.value if self.speed else math.nan

    @property
    def relative_deviation(self) -> float:
        """Of its launches; of the blocks of a single one. As a share of the mean."""
        values = [throughput(row) for row in self.timed]
        if len(values) == 1:
            values = [1 / seconds for seconds in counted(self.timed[0])]
        return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else 0.0

    @property
    def protocol(self) -> str:
        version = self.spec.get("protocol_version", 1)
        return self.spec["protocol"] + (f"-{version}" if version != 1 else "")

    @property
    def comparable(self) -> bool:
        """Whether it trains like a single device, so that its speed may be compared."""
        return self.spec["algorithm"] == "synchronous" and self.spec["optimizer"].get("scaled_by", 1) == 1

    @property
    def normalized_over(self) -> str:
        if not self.first.get("described", {}).get("normalizes"):
            return "-"
        steps = self.spec.get("accumulation_steps", 1)
        return (f"1/{steps} of " if steps > 1 else "") + NORMALIZED_OVER[self.spec["normalization"]]

    @property
    def framework(self) -> str:
        return self.first.get("described", {}).get("framework") or self.spec["framework"]

    @property
    def hosts(self) -> int:
        return self.spec.get("hosts", 1)

    @property
    def options(self) -> str:
        protocol = "" if self.spec["protocol"] == "resident" else f"protocol={self.protocol}"
        return ", ".join(filter(None, [self.spec["variant"], protocol, "A/A twin" if self.spec.get("twin") else ""]))

    @property
    def title(self) -> str:
        """What the report calls it."""
        return self._named(self.workload)

    @property
    def title_in_workload(self) -> str:
        """What it is called where the workload has just been said."""
        return self._named("")

    @property
    def title_without_options(self) -> str:
        """What it is called together with others that differ in their options."""
        return self._named(self.workload, options=False)

    def _named(self, workload: str, *, options: bool = True) -> str:
        chosen = f" ({self.options})" if options and self.options else ""
        found, training = [workload] if workload else [], self.spec.get("training")
        found += ["tuned"] if self.spec["track"] == "tuned" else []
        if training and self.mixed:
            workers = f" from a loader with {training['workers']} workers" if training["input"] == "loader" else ""
            found.append(f"trained{workers}")
        qualifiers = f" ({', '.join(found)})" if found else ""
        over = f" over {self.hosts} hosts" if self.hosts > 1 else ""
        text = f"{self.framework} {self.spec['strategy']}{chosen} ×{self.spec['devices']}{over}{qualifiers}"
        return visible(" ".join(text.split()))

    def alike(self, other: Cell, *names: str) -> bool:
        """Whether two cells agree in these parts of their specs."""
        return all(self.spec.get(name) == other.spec.get(name) for name in names)


@dataclass
class Record:
    """All cells of a run, in the order of the record; `timed` and `trained` are set in the order of the report."""

    cells: list[Cell]
    timed: list[Cell] = field(default_factory=list)
    trained: list[Cell] = field(default_factory=list)

    @property
    def split(self) -> bool:
        """Whether the report has a cell in several rows. Then nothing that a ratio needs is known for sure."""
        return any(cell.split for cell in self.cells)

    def singles(self, cell: Cell) -> Iterator[Cell]:
        """Each single, of any framework, that the cell's speed may be divided by: of the same task and hardware."""
        for other in self.cells if cell.timed and cell.comparable else ():
            if other.spec["strategy"] == "single" and other.timed and not other.spec.get("twin"):
                same = cell.alike(other, *TASK) and place(cell) == place(other)
                if same and (grown(cell, other) or cell.alike(other, "global_batch")):
                    yield other

    def base(self, cell: Cell) -> Cell | None:
        """The single of the same framework and track that the cell's speed is divided by."""
        singles = [other for other in self.singles(cell) if cell.alike(other, *PROGRAM)]
        return next((other for other in singles if _software(cell) == _software(other)), None)

    def best_single(self, cell: Cell) -> Cell | None:
        """The fastest single of all frameworks and tracks."""
        return max(self.singles(cell), key=lambda each: each.speed.value if each.speed else 0.0, default=None)


def grown(cell: Cell, base: Cell) -> bool:
    """Whether the cell's batch grew with its devices from that of the base: weak scaling."""
    batch, other = cell.spec["global_batch"], base.spec["global_batch"]
    equal = batch * base.spec["devices"] == other * cell.spec["devices"]
    return cell.spec.get("batch_growth") == "per_device" and batch != other and equal


def place(cell: Cell) -> tuple[Any, ...]:
    """Data and hardware that cells must share to be compared."""
    conditions = cell.first["conditions"]
    machine = conditions.get("hardware", {})
    gpus = [gpu.get("name") for gpu in machine.get("gpus", ())]
    variables = cell.first["run"].get("variables")
    return (conditions.get("data"), variables, gpus, *(machine.get(name) for name in ("driver", "cpu", "cores")))


def _software(cell: Cell) -> list[Any]:
    return [cell.first["conditions"].get(name) for name in ("versions", "code", "interpreter")]


def read(path: Path) -> Record:
    """The cells of a record. Raises UsageError for what is no record."""
    rows: dict[tuple[str, int], Row] = {}
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):  # torn by a crash
            break
        try:
            row = as_current(json.loads(re.sub(rb'"(-?Infinity|NaN)"', rb"\1", line)))
            if row["schema_version"] != SCHEMA_VERSION:
                raise UsageError(
                    f"{path} line {number}: schema version {row['schema_version']}, must be 1 or {SCHEMA_VERSION}"
                )
            rows[_name(row["spec"]), row["spec"]["launch"]] = row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} line {number} is not a trial result: {error!r}") from error
    if not rows:
        raise UsageError(f"{path}: holds no results; name the folder of a run")
    cells: dict[str, list[Row]] = {}
    for (name, _), row in rows.items():
        cells.setdefault(name, []).append(row)
    trainings = [row["spec"].get("training") or {} for row in rows.values()]
    mixed = len({(each.get("input"), each.get("workers")) for each in trainings}) > 1
    ordered = [sorted(launches, key=lambda row: row["spec"]["launch"]) for launches in cells.values()]
    called = _workloads([launches[0]["spec"] for launches in ordered])
    return Record([Cell(launches, name, mixed=mixed) for launches, name in zip(ordered, called, strict=True)])


def _workloads(specs: Sequence[Row]) -> list[str]:
    """What titles call the workload of each cell: its name, with the size where that is needed; "" for a single one."""
    found = {(spec["workload"], spec["size"]) for spec in specs}
    names = [name for name, _ in found]
    called = {(w, size): f"{w} {size}" if names.count(w) > 1 else w if len(found) > 1 else "" for w, size in found}
    return [called[spec["workload"], spec["size"]] for spec in specs]


def _name(spec: Row) -> str:
    """What launches of one cell share."""
    training = spec.get("training") or {}
    names = ("workload", "size", "framework", "strategy", "variant", "devices", "track", "protocol", "protocol_version")
    how = [spec.get("hosts", 1), bool(spec.get("twin"))]
    how += [training.get(name) for name in ("last_batch", "input", "workers")]
    return json.dumps([*(spec.get(name) for name in names), *how])
