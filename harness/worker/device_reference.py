"""The reference phase: the first timed steps in float64 on the device, for networks that NumPy cannot afford.

harness/session/device_references.py says when, and what makes such a program a reference.
"""

from __future__ import annotations

import numpy as np

from harness.gate import timed_curve
from harness.layers.rounding import SIGNIFICANT_BITS, rounded
from harness.reference.golden import Golden
from harness.spec.arrays import Arrays
from harness.worker.context import Context
from harness.worker.loading import initial_state, load
from harness.worker.loss_curve import place


def make_reference(context: Context) -> None:
    """Train twice, and write a reference to the file that the order names.

    The second training begins with weights that are rounded to the precision of the judged program: its distance from
    the first is the noise that such a program may have.
    """
    order, params = context.order, context.job.params
    assert order.output is not None
    exact = _train(context, params)
    bits = SIGNIFICANT_BITS[order.rounding]
    start = {name: rounded(array, bits=bits) for name, array in params.items()}
    load(context, initial_state(context) | {f"model/{name}": array for name, array in start.items()})
    other = _train(context, start)
    # parameters are judged by how far they moved from where each training began
    moved = {name: params[name] + (other.params[name] - start[name]) for name in params}
    noise = Golden(initial=exact.initial, losses=other.losses, after_first=(), params=moved)
    timed_curve.with_noise(exact, noise).save(order.output)


def _train(context: Context, start: Arrays) -> Golden:
    losses = []
    for step in range(context.spec.curve_steps):
        context.draft.progress("reference in float64, step", step + 1, context.spec.curve_steps)
        context.program.step(place(context, step))
        losses.append(context.program.loss())
    (params,) = context.program.export()
    return Golden(initial=dict(start), losses=np.array(losses), after_first=(), params=params)
