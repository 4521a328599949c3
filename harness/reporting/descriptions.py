"""What a group of cells has in common, in words: devices, batches, precisions, data."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.summary import Cell
from harness.spec import TrialResult


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
        return f"{shares.pop():.0f} per device"
    return " and ".join(", ".join(map(str, part)) for part in (sizes[:-1], sizes[-1:]) if part)


def precisions(cells: Sequence[Cell]) -> str:
    """ "fp32 and bf16"."""
    return " and ".join(dict.fromkeys(cell.spec.precision for cell in cells))


def titles(cells: Sequence[Cell]) -> str:
    """The cells by name: "PyTorch ddp ×2; JAX pmap ×2"."""
    return "; ".join(cell.title for cell in cells)


def data(cells: Sequence[Cell]) -> str:
    """What the cells were trained on, with the workloads in brackets."""
    words = dict.fromkeys((cell.first.described.samples or "not recorded", cell.spec.workload) for cell in cells)
    return "; ".join(f"{samples} ({workload})" for samples, workload in words)
