"""What `train` found: the accuracy, and the time to reach it.

Time to target is the time of training steps up to the first evaluation that reaches the target. It includes the first
step's compilation, but not the evaluations. Each seed is a training of its own. A seed that never reaches the target
took infinitely long, and is never left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from harness.reporting import training_proof
from harness.reporting.summary import Cell
from harness.spec import Epoch, TrialResult


def trained(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that `train` made."""
    return [cell for cell in cells if cell.spec.training]


def timed(cells: Sequence[Cell]) -> list[Cell]:
    """The other cells, which `run` made."""
    return [cell for cell in cells if not cell.spec.training]


def to_target(result: TrialResult) -> tuple[float, float]:
    """(seconds, samples) until the target was reached; infinite if it was not."""
    assert result.spec.training is not None
    seconds = 0.0
    for epoch in result.epochs:
        seconds += epoch.seconds
        if epoch.judged_accuracy >= result.spec.training.target_accuracy:
            return seconds, epoch.samples
    return math.inf, math.inf


def steady(result: TrialResult) -> list[tuple[Epoch, int]]:
    """The epochs whose speed counts, with their samples: those in which no process started.

    A process compiles in its first epoch, again for a short last batch, and starts its loader's workers.
    """
    return [(e, e.samples - before.samples) for before, e in pairwise(result.epochs) if not e.first_step_seconds]


def throughput(result: TrialResult) -> float | None:
    """Samples per second of the steady epochs; None if there are none."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(samples for _, samples in steady(result)) / seconds if seconds else None


def share(result: TrialResult, part: str) -> float | None:
    """`part`, such as "wait_seconds", as a share of the training time in steady epochs; None if there are none."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(getattr(epoch, part) for epoch, _ in steady(result)) / seconds if seconds else None


def resumed_after(result: TrialResult) -> list[int]:
    """The epochs after which another process continued the training."""
    return [epoch.number - 1 for epoch in result.epochs[2:] if epoch.first_step_seconds]


def sentences(cells: Sequence[Cell]) -> list[str]:
    """Which cells reached the target, which have no throughput, and which trainings were resumed."""
    lines = []
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        tried = [cell for cell in group if cell.status not in ("skipped", "disagrees")]
        if not tried or not (training := tried[0].spec.training):
            continue
        name = f"{workload[0]} ({workload[1]})"
        if not training.epochs:
            lines.append(f"{name}: nothing was trained (--epochs 0). The models were evaluated as they began.")
            continue
        target = f"{100 * training.target_accuracy:g}%"
        never = [cell for cell in tried if any(math.isinf(to_target(result)[0]) for result in cell.launches)]
        judged = "validation" if training.validation_share else "test"
        listed = "; ".join(f"{cell.title}, {_reached(cell)} of {len(cell.launches)}" for cell in never)
        line = f"{name}: {len(tried) - len(never)} of {len(tried)} cells reached a {judged} accuracy of {target} with "
        line += "every seed"
        if not any(_reached(cell) for cell in tried):
            line = f"{name}: no training reached the target, a {judged} accuracy of {target}; "
            line += f"{training.epochs} epoch{'s' * (training.epochs != 1)} at most. --target-accuracy sets another"
        elif never:
            fewer = "Seeds that did" if len(never) == len(tried) else "In the other cells, fewer seeds did"
            line += f". {fewer}: {listed}"
        lines.append(line + ".")
        lines += _without_throughput(tried) + _resumed(tried) + training_proof.sentences(tried)
    return lines


def _without_throughput(cells: Sequence[Cell]) -> list[str]:
    """Why trainings that ended well have no throughput."""
    without = [cell for cell in cells if cell.good and not any(map(throughput, cell.good))]
    if not without:
        return []
    spec = cells[0].spec
    line = f"Without a throughput: {'; '.join(cell.title for cell in without)}"
    if len(without) == len(cells):
        line = f"No training of {spec.workload} ({spec.size}) has a throughput"
    return [
        f"{line}. Epochs in which a process started do not count, because it compiled then; a training of one epoch "
        "has no other."
    ]


def _resumed(cells: Sequence[Cell]) -> list[str]:
    """The trainings that a later process continued."""
    return [
        f"{cell.title}, seed {result.spec.seed}: resumed after epoch {', '.join(map(str, after))}. Its training time "
        "includes compilation in each of its processes."
        for cell in cells
        for result in cell.launches
        if (after := resumed_after(result))
    ]


def _reached(cell: Cell) -> int:
    return sum(math.isfinite(to_target(result)[0]) for result in cell.launches)
