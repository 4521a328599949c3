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


def make_reference(context: Context) -> None:
    """Train twice, and write a reference to the file that the order names.

    In every step of the second training, the kernels of convolutions and products are rounded to the precision of the
    judged program, which rounds them as well. Its distance from the first is the noise that such a program may have.

    Where a batch holds samples more than once, their copies have equal gradients, or nearly equal ones under other
    BatchNorm statistics. A program that rounds its activations moves such copies apart, so their sum becomes shorter.
    There the second training changes each copy's inputs as well, at random and by as much as rounding does.
    """
    order, spec, batches = context.order, context.spec, context.batches
    assert order.output is not None
    bits, dice = SIGNIFICANT_BITS[order.rounding], np.random.default_rng(spec.seed)

    def changed(batch: Arrays) -> Arrays:
        repeats = spec.global_batch > len(batches)
        return {**batch, "x": perturbed(batch["x"], bits=bits, dice=dice)} if repeats else batch

    exact = _train(context, context.program.step, lambda batch: batch)
    load(context, initial_state(context))
    step = partial(step_with_rounded_kernels, context, bits=bits)
    timed_curve.with_noise(exact, _train(context, step, changed)).save(order.output)


def perturbed(array: np.ndarray, *, bits: int, dice: np.random.Generator) -> np.ndarray:
    """Numbers changed at random, by at most the distance to the next one of so many significant bits. Integers stay."""
    if array.dtype.kind != "f":
        return array
    change = dice.random(array.shape, dtype=np.float32)
    change -= 0.5
    return array * (1 + change * 2.0 ** (2 - bits))


def step_with_rounded_kernels(context: Context, placed: object, *, bits: int) -> None:
    """One step whose gradients are taken at rounded kernels. It updates the kernels that were not rounded.

    Rounding the initial weights alone is not enough. Where a network amplifies rounding, the gradient of one step
    lowers the loss of the next one less than it would without rounding.
    """
    program = context.program
    state = _state(context)
    # copies: on CPU devices, a state may be the program's own memory
    kernels = {name: array.copy() for name, array in state.items() if name.startswith("model/") and array.ndim > 1}
    short = {name: rounded(array, bits=bits) for name, array in kernels.items()}
    program.load_state(state | short)
    program.step(placed)
    moved = _state(context)
    program.load_state(moved | {name: array + (moved[name] - short[name]) for name, array in kernels.items()})


def _state(context: Context) -> Arrays:
    state = context.program.state()
    assert state is not None  # the only process has all of it
    return state


def _train(context: Context, step: Callable[..., None], change: Callable[[Arrays], Arrays]) -> Golden:
    """`change`: what becomes of a batch before it is placed."""
    losses = []
    for number in range(context.spec.curve_steps):
        context.draft.progress("reference in float64, step", number + 1, context.spec.curve_steps)
        batch = context.batches.batch(number, context.spec.global_batch, dtype=context.dtype)
        step(context.program.place(change(batch)))
        losses.append(context.program.loss())
    (params,) = context.program.export()
    return Golden(initial=dict(context.job.params), losses=np.array(losses), after_first=(), params=params)
