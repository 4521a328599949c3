"""The parity phase: train a few steps in float64 and compare everything with the golden reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from harness.contract import Job, Program
from harness.datasets import Batches, epochs_of, parity_steps
from harness.gate import parity
from harness.reference.loops import Golden, replay
from harness.spec import TrialSpec


def prove(
    program: Program,
    spec: TrialSpec,
    job: Job,
    batches: Batches,
    *,
    golden: Golden,
    groups: int,
    answer: dict[str, Any],
    progress: Callable[[str], None],
) -> None:
    """Train `parity_steps` steps and write this rank's gate result to answer["parity"].

    `groups`: normalization groups of the reference, for the record.
    """
    losses, gradients = [], None
    epochs = epochs_of(spec, batches, batch=spec.parity_batch)
    steps = parity_steps(spec, epochs, normalizes=job.workload.normalizes)
    samples = [epochs.whole(step, dtype=np.float64) for step in steps]
    for step, batch in enumerate(samples):
        progress(f"parity step {step + 1}/{spec.parity_steps}")
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
        groups=groups,
        tolerances=spec.tolerances,
    )
    answer["parity"] = asdict(found)
