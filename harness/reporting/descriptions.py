"""What a group of cells has in common, in words: devices, batches, precisions, data."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.formatting import conjunction, number
from harness.reporting.summary import Cell
from harness.spec import TrialResult, registry


def on_cpu(results: Sequence[TrialResult]) -> bool:
    """Whether the run used virtual CPU devices."""
    return results[0].spec.platform == "cpu"


def planned(results: Sequence[TrialResult]) -> int:
    """How many trials the run, or all runs of a common report, had planned; 0: not recorded."""
    return sum({result.run.started: result.run.planned for result in results}.values())


def devices(results: Sequence[TrialResult]) -> str:
    """ "2 virtual CPU devices", "2 × NVIDIA H200"."""
    most = max(result.spec.devices for result in results)
    if on_cpu(results):
        return f"{most} virtual CPU device{'s' * (most > 1)}"
    names = list(dict.fromkeys(gpu.name for gpu in results[0].conditions.hardware.gpus[:most]))
    return f"{most} × {' and '.join(names) or 'GPU'}"


def batches(cells: Sequence[Cell]) -> str:
    """The cells' global batches: "64"; "256 per device" if all grow with their devices; "256 and 512"."""
    sizes = sorted({cell.spec.global_batch for cell in cells})
    shares = {cell.spec.global_batch / cell.spec.devices for cell in cells}
    if len(sizes) > 1 and len(shares) == 1:
        return f"{number(shares.pop())} per device"
    return conjunction([number(size) for size in sizes])


def precisions(cells: Sequence[Cell]) -> str:
    """ "fp32 and bf16"."""
    return " and ".join(dict.fromkeys(cell.spec.precision for cell in cells))


def titles(cells: Sequence[Cell]) -> str:
    """The cells by name: "PyTorch ddp ×2; JAX pmap ×2"."""
    return "; ".join(cell.title for cell in cells)


def has_judge(cell: Cell) -> bool:
    """Whether another framework's model judged a cell, and not NumPy."""
    return cell.first.parity is not None and bool(cell.first.parity.judge)


def _title(framework: str) -> str:
    """A framework's title, also if the report has no cell of it: a judge may have failed itself."""
    return registry.framework(framework).title if framework in registry.packages() else framework


def judges(cells: Sequence[Cell]) -> str:
    """What it means that models were judged by each other, as sentences with a space behind them."""
    workloads = conjunction(list(dict.fromkeys(cell.spec.workload for cell in cells)))
    pairs = dict.fromkeys(
        (cell.first.described.framework, _title(cell.first.parity.judge)) for cell in cells if cell.first.parity
    )
    listed = conjunction([f"{judged}'s by {judge}'s" for judged, judge in pairs])
    return (
        f"NumPy has no reference of {workloads}: models were judged by each other, {listed}. This shows that they "
        "compute the same training, and not that it is the intended one. "
    )


def data(cells: Sequence[Cell]) -> str:
    """What the cells were trained on, with the workloads in brackets."""
    words = dict.fromkeys((cell.first.described.samples or "not recorded", cell.spec.workload) for cell in cells)
    return "; ".join(f"{samples} ({workload})" for samples, workload in words)
