"""The reference phase: the first timed steps in float64 on the device, for networks that NumPy cannot afford.

harness/session/device_references.py says when, and what makes such a program a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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

    The second training rounds as the judged program does (`step_with_rounding`). Its distance from the first is the
    noise that such a program may have.
    """
    order, program = context.order, context.program
    assert order.output is not None
    exact = _train(context, lambda batch: program.step(program.place(batch)))
    load(context, initial_state(context))
    known = {"bits": SIGNIFICANT_BITS[order.rounding], "dice": np.random.default_rng(context.spec.seed)}
    other = _train(context, partial(step_with_rounding, context, **known))
    timed_curve.with_noise(exact, other).save(order.output)


def step_with_rounding(context: Context, batch: Arrays, *, bits: int, dice: np.random.Generator) -> None:
    """One step whose gradients are taken at rounded kernels. It updates the kernels that were not rounded.

    Rounding the initial weights alone is not enough. Where a network amplifies rounding, the gradient of one step
    lowers the loss of the next one less than it would without rounding.

    Where a batch holds samples more than once, their copies have equal gradients, or nearly equal ones under other
    BatchNorm statistics. A program that rounds its activations moves such copies apart, so their sum becomes shorter.
    So the inputs of each copy are rounded as well, up or down at random.
    """
    program, x = context.program, batch["x"]
    if context.spec.global_batch > len(context.batches) and x.dtype.kind == "f":
        batch = {**batch, "x": rounded(x, bits=bits, dice=dice)}
    state = _state(context)
    kernels = {name: array for name, array in state.items() if name.startswith("model/") and array.ndim > 1}
    short = {name: rounded(array, bits=bits) for name, array in kernels.items()}
    program.load_state(state | short)
    program.step(program.place(batch))
    moved = _state(context)
    program.load_state(moved | {name: array + (moved[name] - short[name]) for name, array in kernels.items()})


def _state(context: Context) -> Arrays:
    """A copy: on CPU devices, a state may be the program's own memory."""
    state = context.program.state()
    assert state is not None  # the only process has all of it
    return copied(state)


def _train(context: Context, step: Callable[[Arrays], None]) -> Golden:
    losses = []
    for number in range(context.spec.curve_steps):
        context.draft.progress("reference in float64, step", number + 1, context.spec.curve_steps)
        step(context.batches.batch(number, context.spec.global_batch, dtype=context.dtype))
        losses.append(context.program.loss())
    (params,) = context.program.export()
    return Golden(initial=dict(context.job.params), losses=np.array(losses), after_first=(), params=copied(params))
