"""The parity phase: train a few steps in float64 and compare everything with the golden reference."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np

from harness.datasets import epochs_of, parity_steps
from harness.gate import parity
from harness.reference import asynchronous
from harness.reference.golden import Golden
from harness.spec import Check, Parity
from harness.spec.arrays import Arrays
from harness.worker.calls import in_calls, make_steps_in_turn, read_losses
from harness.worker.context import Context


def prove(context: Context) -> None:
    """Train `parity_steps` steps and note this rank's gate result. Saves the draft: a wrong result counts even if
    another rank fails before the end.

    The first step is a call of its own, because the parameters after it are compared: with SGD, their change is the
    gradient times the rate. So are all steps up to the first push, where workers sum the gradients of several. The
    other steps are made in calls as the timed or trained program makes them. Only a program that cannot record the
    order of its asynchronous updates makes its steps in another way (`step_in_turn`).
    """
    program, spec, job, draft = context.program, context.spec, context.job, context.draft
    assert context.golden is not None
    golden = context.golden
    losses, after_first = [], []
    epochs = epochs_of(spec, context.batches, batch=spec.parity_batch)
    steps = parity_steps(spec, epochs, normalizes=job.workload.normalizes)
    samples = [epochs.whole(step, dtype=np.float64) for step in steps]
    waiting = iter(samples)
    first = spec.push_interval(of=spec.parity_options)
    for call in [*([step] for step in steps[:first]), *in_calls(steps[first:], of=spec.steps_per_call)]:
        draft.progress("parity step", len(losses) + len(call), spec.parity_steps)
        placed = [program.place(batch) for batch in islice(waiting, len(call))]
        handles = make_steps_in_turn(program, placed)
        program.sync()
        losses += read_losses(program, handles)
        if len(losses) == first:
            after_first = copied_replicas(context)
    replicas = context.replicas()
    pushes, impossible = getattr(program, "pushes", None), ""
    if pushes is not None:
        golden, impossible = repeated(context, golden, samples, pushes())
    found = parity.compare(
        golden,
        losses=losses,
        after_first=after_first,
        replicas=replicas,
        running=running_statistics(context),
        statistics_of=getattr(program, "statistics_of", "all"),
        batch=spec.parity_batch,
        first_replica=job.world.rank * job.world.local_devices,
        groups=context.order.groups,
        tolerances=spec.tolerances,
    )
    draft.note(parity=found if not impossible else refuted(found, impossible))
    draft.save()


def repeated(
    context: Context, golden: Golden, samples: list[Arrays], history: asynchronous.History
) -> tuple[Golden, str]:
    """The reference in the order of a history, because the result of an asynchronous run depends on that order.

    For an impossible history: the reference in which workers take turns, and why the history is impossible.
    """
    job, push_every = context.job, context.spec.push_interval(of=context.spec.parity_options)
    known = {"optimizer": job.optimizer, "history": history, "push_every": push_every}
    try:
        found = asynchronous.replay(job.workload, job.params, samples, **known)
    except asynchronous.ImpossibleHistory as error:
        return golden, str(error)
    return replace(found, noise=golden.noise), ""


def refuted(found: Parity, why: str) -> Parity:
    """A gate result that has failed, whatever its numbers are."""
    wrong = Check(quantity="parameters", error=math.inf, tolerance=parity.EXACT["parameters"], worst=why)
    return replace(found, checks=(*found.checks, wrong))


def copied(replica: Arrays) -> Arrays:
    """Arrays that do not change when training goes on: a framework may hand out views of its own memory."""
    return {name: np.array(array) for name, array in replica.items()}


def copied_replicas(context: Context) -> list[Arrays]:
    """The weights of each replica that this rank holds now. A collective."""
    return [copied(replica) for replica in context.replicas()]


def running_statistics(context: Context) -> Arrays | None:
    """BatchNorm's running statistics as the program would save them. None on all ranks but 0, and where these
    statistics are not defined.

    They are not defined where a device updates them several times in a step (micro-batches, accumulation).
    """
    spec = context.spec
    once = spec.normalization != "per_microbatch" and spec.accumulation_steps == 1
    if not (context.job.workload.normalizes and once):
        return None
    state = context.state()
    if context.draft.rank:
        return None
    return {name.removeprefix("running/"): array for name, array in state.items() if name.startswith("running/")}
