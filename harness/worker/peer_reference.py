"""The peer phase: the parity steps of cells of another framework, trained here, for networks that NumPy cannot train.

The program is that of `single` in float64. It is no better than the programs that it judges: what is shown is that
models which were written independently of each other compute the same training.
"""

from __future__ import annotations

import numpy as np

from harness.datasets import epochs_of, parity_steps
from harness.gate import parity
from harness.reference.golden import Golden
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.worker.context import Context
from harness.worker.loading import initial_state, load
from harness.worker.prove import copied_replicas


def make_peer_reference(context: Context) -> None:
    """Train twice, and write a reference to the file that the order names. The second training shows how sensitive the
    first is to rounding. Raises UsageError for one that diverges."""
    assert context.order.output is not None
    found = parity.make_reference(lambda start: _train(context, start), context.job.params)
    if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
        raise UsageError(f"the training diverges at learning_rate {context.spec.optimizer.learning_rate:g}; lower it")
    found.save(context.order.output)


def _train(context: Context, start: Arrays) -> Golden:
    program, spec = context.program, context.spec
    load(context, initial_state(context) | {f"model/{name}": array for name, array in start.items()})
    epochs = epochs_of(spec, context.batches, batch=spec.parity_batch)
    losses, after_first = [], {}
    for step in parity_steps(spec, epochs, normalizes=context.job.workload.normalizes):
        context.draft.progress("reference in float64, step", len(losses) + 1, spec.parity_steps)
        program.step(program.place(epochs.whole(step, dtype=np.float64)))
        losses.append(program.loss())
        if len(losses) == 1:
            (after_first,) = copied_replicas(context)
    (params,) = copied_replicas(context)
    return Golden(initial=dict(start), losses=np.array(losses), after_first=(after_first,), params=params)
