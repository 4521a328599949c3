"""The parity phase: train a few steps in float64 and compare everything with the golden reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.datasets import epochs_of, parity_steps
from harness.gate import parity
from harness.reference.loops import Golden, replay
from harness.worker.context import Context


def prove(context: Context) -> None:
    """Train `parity_steps` steps and note this rank's gate result. Saves the draft: a wrong result counts even if
    another rank fails before the end."""
    program, spec, job, draft = context.program, context.spec, context.job, context.draft
    assert context.order.golden is not None
    golden = Golden.load(context.order.golden)
    losses, gradients = [], None
    epochs = epochs_of(spec, context.batches, batch=spec.parity_batch)
    steps = parity_steps(spec, epochs, normalizes=job.workload.normalizes)
    samples = [epochs.whole(step, dtype=np.float64) for step in steps]
    for step, batch in enumerate(samples):
        draft.progress("parity step", step + 1, spec.parity_steps)
        program.step(program.place(batch))
        program.sync()
        losses.append(program.loss())
        if step == 0:
            gradients = program.gradients()
    replicas = list(program.export())
    pushes = getattr(program, "pushes", None)
    if pushes is not None:
        # The result of an asynchronous run depends on the order of its updates: the reference repeats that order.
        repeated = replay(job.workload, job.params, samples, optimizer=job.optimizer, pushes=pushes())
        golden = replace(repeated, noise=golden.noise)
    found = parity.compare(
        golden,
        losses=losses,
        gradients=gradients,
        replicas=replicas,
        batch=spec.parity_batch,
        groups=context.order.groups,
        tolerances=spec.tolerances,
    )
    draft.note(parity=found)
    draft.save()
