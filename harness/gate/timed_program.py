"""Tolerances and comparisons for the program that was timed, as it is after the last timed block.

harness/worker/after_blocks.py makes the steps; this module knows what right programs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

import numpy as np

from harness.gate import timed_curve
from harness.gate.distances import distance, norm, unchanged, worst_of
from harness.spec import Check, OptimizerSpec, Platform, Precision, Quantity, TrialSpec, optimizers
from harness.spec.arrays import Arrays
from harness.spec.checks import finding

REPLICAS = 1e-6
"""How far copies of the parameters on different ranks may be apart, relative to each tensor's norm. In right programs
all of them were equal: an all-reduce gives every rank the same bits."""

TINY = float(np.finfo(np.float64).tiny)

LOSS: dict[Precision, float] = {"fp64": 1e-10, "fp32": 1e-4, "tf32": 1e-3, "bf16": 2e-2}
"""How far the further loss may be from NumPy's at the exported weights, relative. Measured in right programs:
5e-8 in fp32, 2e-6 with BatchNorm, and up to 3.4e-3 in bf16. The loss of half of a batch is off by 3e-2."""

STALE = 0.25
"""The same where workers do not wait for each other, relative to the first loss at least: each loss belongs to slightly
older weights. Measured were up to 0.03 (mnist_cnn base in bf16 on two GPUs)."""

LEAST_LOSS: dict[Precision, float] = {"fp64": 1e-2, "fp32": 1e-2, "tf32": 0.5, "bf16": 0.2}
"""Errors of a loss are relative to this share of the first loss at least: after many steps on a few batches, a network
knows them by heart, and what is left of the loss is rounding. In bf16, losses of 0.0001 to 0.2 of the first one were
off by up to 1.6e-3 of the first one (300 steps of ResNet-50 tiny, mnist_cnn tiny and classifier in PyTorch, with their
own optimizer, Adam and Adagrad, batches of 8 to 32, 4 seeds). In fp32, losses below 0.01 of the first one were off by
up to 6e-8 of it. TF32 was not measured: its products round 8 times less than bf16's, but its tolerance is 20 times
less, so its share is larger."""

UNFINISHED = 0.02
"""The share of a timed block that the devices may still need for it when `sync` has returned. In right programs they
need nothing. But the first reading of a loss may fetch it from another process, which took up to 3.5 ms, so less than
RESOLUTION seconds proves nothing."""
RESOLUTION = 1e-2
LEAST_READINGS = 5  # before work counts as left: all of fewer may have been interrupted

PACE = 10.0
"""How many times faster than the curve's steps a block's steps may be. Both are timed in the same way. A step that does
nothing is thousands of times faster."""

PACE_OF_WATCHED: dict[Platform, float] = {"gpu": 2.0, "cpu": 6.0}
"""How many times as long a step of the watched block may take as one of the timed blocks. On CPU devices that other
processes use as well, right programs took up to 3.0 times as long (108, three at a time on two cores)."""

ATTEMPTS = 6
"""How many times something is timed that makes the blocks seem too fast. An interruption makes it slow as well: on a
machine with more processes than cores, steps of 0.3 ms took 20 times as long in both calls of a curve once."""

MATRIX_RATE: dict[Precision, float] = {"fp64": 4.0, "fp32": 4.0, "tf32": 1.5, "bf16": 1.5}
"""How many of the floating-point operations that a training step is counted with may be done in the time of one in a
matrix product. Winograd's algorithms need up to 4 times fewer for 3 x 3 kernels (Lavin & Gray 2016, arXiv:1509.09308,
F(4x4, 3x3)). Tensor cores gain nothing from them; 1.5 leaves room for a clock that rises after the measurement."""


def replicas_apart(found: Arrays, other: Arrays, *, rank: int) -> Check:
    """A copy of the parameters on `rank`, against rank 0's."""
    errors = {name: distance(found[name], array) / max(norm(array), TINY) for name, array in other.items()}
    error, worst = worst_of(errors)
    return Check(quantity="replicas", error=error, tolerance=REPLICAS, worst=f"{worst} on rank {rank}")


def further_loss(spec: TrialSpec, *, found: float, expected: float, first: float) -> Check:
    """The loss of one more step. `expected`: at the exported weights; `first`: of the curve's first step."""
    stale = spec.algorithm == "asynchronous"
    scale = max(abs(expected), (1 if stale else LEAST_LOSS[spec.precision]) * abs(first))
    error = abs(found - expected) / scale if math.isfinite(found) else math.inf
    allowed = STALE if stale else LOSS[spec.precision]
    worst = f"{found:.6g}, by the reference {expected:.6g}"
    return Check(quantity="further loss", error=error, tolerance=allowed, worst=worst)


def curve_again(first: Sequence[float], again: Sequence[float], *, spec: TrialSpec, tolerance: float) -> Check:
    """The losses from the initial weights, before the timed blocks and after them."""
    error = timed_curve.error_of_losses(again, first, rounding=timed_curve.ROUNDING[spec.precision])
    return Check(quantity="curve after the blocks", error=error, tolerance=tolerance, worst="loss")


def moves(before: Sequence[Arrays], after: Sequence[Arrays], optimizer: OptimizerSpec, updates: range) -> list[Check]:
    """Whether further updates moved every replica's parameters. No check at a rate that rounding swallows.

    `updates`: their numbers, counted from 0. A schedule may have ended before them, with a rate of 0.
    """
    share = max(np.abs(array).max() for array in before[0].values()) * np.finfo(np.float32).eps
    if max(optimizers.rate(optimizer, update) for update in updates) <= float(share):
        return []
    still = unchanged(before, after)
    return [finding("further movement", f"replica {still[0]} did not change" if still else "")]


def after_blocks(check: Check) -> Check:
    """Rename a check of the curve: it is one of the curve that was repeated after the blocks."""
    return replace(check, quantity=AFTER_BLOCKS[check.quantity])


AFTER_BLOCKS: dict[Quantity, Quantity] = {
    "timed losses": "losses after the blocks",
    "timed parameters": "parameters after the blocks",
    "timed movement": "movement after the blocks",
    "timed tensor movement": "tensor movement after the blocks",
}


def work_after_sync(left: Sequence[float], block: float) -> Check:
    """What was left to do after each timed block, in seconds. The least counts: an interruption is no evidence.

    `block`: the seconds of a timed block.
    """
    share, tolerance = max(0.0, min(left)) / block, max(UNFINISHED, RESOLUTION / block)
    return Check(quantity="work after sync", error=share, tolerance=tolerance, worst="the end of a block")


def work_after_chunks(left: Sequence[float], seconds: Sequence[float]) -> Check:
    """What was left to do after the chunks of a training, which took so long; both in seconds.

    The lower quartile counts, so the least of up to four chunks. Interruptions of a busy host hit many: on two cores
    with six other processes, one of three chunks of ddp waited up to 7 ms, and once the middle one waited 10.4 ms.
    """
    return work_after_sync([sorted(left)[(len(left) - 1) // 4]], median_low(seconds))


def pace(*, of_curve: float, of_blocks: float) -> Check:
    """Seconds of a step when the curve was repeated, and in the timed blocks."""
    return Check(quantity="pace of the blocks", error=of_curve / of_blocks, tolerance=PACE, worst="a step of the curve")


def pace_of_watched(platform: Platform, *, of_watched: float, of_blocks: float) -> Check:
    """Seconds of a step in the watched block, and in the others."""
    return Check(
        quantity="pace of the watched block",
        error=of_watched / of_blocks,
        tolerance=PACE_OF_WATCHED[platform],
        worst="a step of the timed blocks",
    )


def matrix_rate(precision: Precision, *, reached: float, possible: float) -> Check:
    """Floating-point operations per second in the timed blocks, and in a matrix product on the same devices."""
    return Check(
        quantity="share of the matrix rate",
        error=reached / possible,
        tolerance=MATRIX_RATE[precision],
        worst=f"{possible:.1e} FLOP/s",
    )


def updates_counted(state: Arrays, steps: int, optimizer: OptimizerSpec) -> Check:
    """What an optimizer or a schedule counted, in every entry of a program's state that is such a count.

    There must be one where the next update depends on it.
    """
    counts = {name: array for name, array in state.items() if name.startswith("optimizer/") and _counts(name)}
    for name, array in counts.items():
        if array.item() != steps:
            return finding("updates counted", f"{name} is {array.item():g} after {steps} updates")
    needs_one = optimizers.scheduled(optimizer) or optimizer.name in ("adam", "adamw")
    return finding("updates counted", "its state has no count of its updates" if needs_one and not counts else "")


def _counts(name: str) -> bool:
    return name.rpartition("/")[2] in COUNTS


COUNTS = ("step", "steps", "count", "updates")
"""The last part of the names under which torch.optim, Optax, and the suite's own optimizers keep their counts."""
