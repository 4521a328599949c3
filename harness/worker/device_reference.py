"""The reference phase: the first timed steps in float64 on the device, for networks that NumPy cannot afford.

harness/session/device_references.py says when, and what makes such a program a reference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.gate import timed_curve
from harness.layers.rounding import SIGNIFICANT_BITS, rounded
from harness.reference.golden import Golden
from harness.spec.arrays import Arrays
from harness.worker.context import Context
from harness.worker.loading import initial_state, load
from harness.worker.prove import copied


def make_reference(context: Context) -> None:
    """Train twice, and write a reference to the file that the order names.

    The second training rounds as the judged program does (`RoundedSteps`). Its distance from the first is the noise
    that such a program may have.
    """
    order, program = context.order, context.program
    assert order.output is not None
    exact = _result(context, _losses(context, lambda batch: program.step(program.place(batch))))
    load(context, initial_state(context))
    dice = np.random.default_rng(context.spec.seed)
    steps = RoundedSteps(context, bits=SIGNIFICANT_BITS[order.rounding], dice=dice)
    losses = _losses(context, steps.make)
    program.load_state(steps.state)
    timed_curve.with_noise(exact, _result(context, losses)).save(order.output)


class RoundedSteps:
    """Steps whose gradients are taken at rounded kernels. They update the kernels that were not rounded, in `state`.

    Rounding the initial weights alone is not enough. Where a network amplifies rounding, the gradient of one step
    lowers the loss of the next one less than it would without rounding.

    Where a batch holds samples more than once, their copies have equal gradients, or nearly equal ones under other
    BatchNorm statistics. A program that rounds its activations moves such copies apart, so their sum becomes shorter.
    So the inputs of each copy are rounded as well, up or down at random.
    """

    def __init__(self, context: Context, *, bits: int, dice: np.random.Generator) -> None:
        self.context, self.bits, self.dice = context, bits, dice
        self.state = _state(context)

    def make(self, batch: Arrays) -> None:
        """One step. Afterwards the program still has the rounded kernels, moved; only `state` has the right ones."""
        program, x = self.context.program, batch["x"]
        if self.context.spec.global_batch > len(self.context.batches) and x.dtype.kind == "f":
            batch = {**batch, "x": rounded(x, bits=self.bits, dice=self.dice)}
        kernels = {name: array for name, array in self.state.items() if name.startswith("model/") and array.ndim > 1}
        short = {name: rounded(array, bits=self.bits) for name, array in kernels.items()}
        program.load_state(self.state | short)
        program.step(program.place(batch))
        moved = _state(self.context)
        self.state = moved | {name: array + (moved[name] - short[name]) for name, array in kernels.items()}


def _state(context: Context) -> Arrays:
    """A copy: on CPU devices, a state may be the program's own memory."""
    return copied(context.state())


def _losses(context: Context, step: Callable[[Arrays], None]) -> np.ndarray:
    losses = []
    for number in range(context.spec.curve_steps):
        context.draft.progress("reference in float64, step", number + 1, context.spec.curve_steps)
        step(context.batches.batch(number, context.spec.global_batch, dtype=context.dtype))
        losses.append(context.program.loss())
    return np.array(losses)


def _result(context: Context, losses: np.ndarray) -> Golden:
    (params,) = context.replicas()
    return Golden(initial=dict(context.job.params), losses=losses, after_first=(), params=copied(params))
