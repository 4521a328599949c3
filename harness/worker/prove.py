"""The parity phase: train a few steps in float64 and compare everything with the golden reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from harness.datasets import epochs_of, parity_steps
from harness.gate import parity
from harness.reference.loops import replay
from harness.worker.calls import in_calls, make_steps, read_losses
from harness.worker.context import Context


def prove(context: Context) -> None:
    """Train `parity_steps` steps and note this rank's gate result. Saves the draft: a wrong result counts even if
    another rank fails before the end.

    The first step is a call of its own, because its gradients are compared. The others are made in calls as the timed
    or trained program makes them.
    """
    program, spec, job, draft = context.program, context.spec, context.job, context.draft
    assert context.golden is not None
    golden = context.golden
    losses, gradients = [], None
    epochs = epochs_of(spec, context.batches, batch=spec.parity_batch)
    steps = parity_steps(spec, epochs, normalizes=job.workload.normalizes)
    samples = [epochs.whole(step, dtype=np.float64) for step in steps]
    waiting = iter(samples)
    for call in [steps[:1], *in_calls(steps[1:], of=spec.steps_per_call)]:
        draft.progress("parity step", len(losses) + len(call), spec.parity_steps)
        handles = make_steps(program, [program.place(batch) for batch in islice(waiting, len(call))])
        program.sync()
        losses += read_losses(program, handles)
        if len(losses) == 1:
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
