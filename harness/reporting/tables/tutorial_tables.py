"""The tables of the section on PyTorch's tutorial: the hardware, and published beside measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Column, Table
from harness.reporting.summary import Cell
from harness.reporting.tutorial import PROTOCOLS, PUBLISHED, rows, three_batches
from harness.reporting.values import Kind, Measured, Value
from harness.spec import Hardware

HARDWARE = (
    Column(name="GPU", kind=Kind.LABEL),
    Column(name="name", kind=Kind.TEXT),
    Column(name="memory", kind=Kind.GROUPED, unit="MiB"),
    Column(name="driver", kind=Kind.LABEL),
)


def hardware(machine: Hardware) -> Table:
    """The table that nvidia-smi would show."""
    listed = tuple((gpu.token, gpu.name, gpu.memory_bytes / 2**20 or None, machine.driver) for gpu in machine.gpus)
    return Table(HARDWARE, listed or (("none", machine.cpu, None, None),))


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One of the tutorial's settings: its published seconds, and the cells that measured it, by protocol."""

    name: str
    published: float
    measured: Mapping[str, Cell]


def comparison(cells: Sequence[Cell]) -> Table:
    """One row per setting: published and measured seconds for three batches, and each time relative to single."""
    found = {protocol: rows(cells, protocol) for protocol in PROTOCOLS}
    settings = []
    for name, published in PUBLISHED.items():
        ran = {protocol: cell for protocol in PROTOCOLS if (cell := found[protocol].get(name)) and cell.speedup}
        settings.append(_Setting(name=name, published=published, measured=ran))
    columns = (
        ColumnOf[_Setting](name="setting", kind=Kind.TEXT, value=lambda row: row.name),
        ColumnOf[_Setting](name="published", kind=Kind.HUNDREDTHS, value=lambda row: row.published, unit="s"),
        ColumnOf[_Setting](
            name="published / single",
            kind=Kind.HUNDREDTHS,
            value=lambda row: row.published / PUBLISHED["single"],
        ),
        *(column for protocol in PROTOCOLS for column in _measured(protocol)),
    )
    return make_table(columns, settings)


def _measured(protocol: str) -> tuple[ColumnOf[_Setting], ...]:
    """The two columns of one way of timing."""

    def seconds(row: _Setting) -> Value:
        cell = row.measured.get(protocol)
        if cell is None:
            return None
        found, options = three_batches(cell), cell.spec.options
        split = f"split {options['split_size']}" if "split_size" in options else ""
        return found and replace(found, condition=split)

    def ratio(row: _Setting) -> Value:
        cell = row.measured.get(protocol)
        if cell is None or cell.over_single is None:
            return None
        time = cell.over_single.inverse
        return Measured(time.value, time.interval if time.standard_error else None)

    return (
        ColumnOf[_Setting](name=protocol, kind=Kind.ROUNDED, value=seconds, unit="s"),
        ColumnOf[_Setting](name=f"{protocol} / single", kind=Kind.HUNDREDTHS, value=ratio),
    )
