"""After the last timed block: is what was timed the program whose curve was compared?

Each inspection looks at the program as it is then, outside the timed part, and returns checks. A failed check voids the
launch: harness/results/judge.py. harness/gate/timed_program.py has the tolerances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from harness.gate import timed_curve, timed_program
from harness.gate.runs import normalization
from harness.reference import loops
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.worker import timing
from harness.worker.bounds import bandwidths, speed
from harness.worker.calls import make_steps
from harness.worker.context import Context
from harness.worker.formats import number_formats
from harness.worker.further_call import affordable, call_on_new_batches, further_call, statistics_kept
from harness.worker.loading import initial_state, load
from harness.worker.local_calls import averaging, workers_call_on_new_batches, workers_further_call
from harness.worker.loss_curve import compare, place
from harness.worker.placement import devices_and_traffic, exported_parameters
from harness.worker.watched_block import WatchedBlock, replayed_block

Inspection = Callable[[Context, Sequence[Any]], Iterable[Check]]
"""Called on every rank at the same time, with the batches that the timed blocks used. It may make steps."""

CHUNK = 4  # calls whose batches wait on the devices together while the curve is repeated


def inspect(context: Context, resident: Sequence[Any], watched: WatchedBlock) -> None:
    """Make all inspections, and note their checks. The last ones leave the program in a state that they loaded."""
    last = partial(_replayed_block, watched)
    for name, inspection in (*((each.__name__, each) for each in INSPECTIONS), ("replayed_block", last)):
        words = name.replace("_", " ")
        context.draft.progress(f"inspecting the timed program: {words}")
        with context.draft.timed_check(words):
            context.draft.note_checks(tuple(inspection(context, resident)))


def _replayed_block(watched: WatchedBlock, context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    return replayed_block(context, watched, resident)


def replicas(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Are all copies of the parameters equal on all devices and ranks? Workers go on to their next exchange."""
    while context.made.steps % context.spec.exchange_interval:
        make_steps(context.program, [resident[0]])
        context.made(1)
    own = context.replicas()
    of_rank_0 = context.agree.arrays("replica", own[0] if own else {})
    for replica in own:
        yield timed_program.replicas_apart(replica, of_rank_0, rank=context.draft.rank)


def further_step(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does one more step have the loss that NumPy computes from the exported weights? And does it move them?

    Where workers push after several steps, it makes as many: only the last one moves the weights.
    """
    spec, program = context.spec, context.program
    with_loss = affordable(context)
    made = spec.updates(context.made.steps)
    before = context.replicas()
    handles: list[Any] = []
    for _ in range(spec.push_interval()):
        handles += make_steps(program, [resident[0]] * spec.steps_per_call)
    found = program.loss(handles[0])
    program.sync()
    after = context.replicas()
    context.made(len(handles))
    if with_loss and before:
        batch = context.batches.batch(spec.curve_steps, spec.global_batch)
        expected = reference_loss(context, before[0], batch)
        first = context.draft.timing.losses[0]
        yield timed_program.further_loss(spec, found=found, expected=expected, first=first)
    if before:
        yield from timed_program.moves(before, after, spec.optimizer, range(made, spec.updates(context.made.steps)))


def reference_loss(context: Context, params: Arrays, batch: Arrays) -> float:
    """The loss of a global batch at these weights, in float64 with NumPy."""
    groups = normalization(context.spec, context.spec.options)(context.spec.global_batch)
    exact = {name: array.astype(np.float64) for name, array in params.items()}
    return loops.mean_loss(context.job.workload, exact, batch, groups=groups)


def curve_from_the_start(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Repeat the curve from the initial weights, by the same compiled program and in calls as in the blocks. Does it
    have the same losses, are its steps no slower than those of the blocks, and does the optimizer count them?"""
    spec, golden = context.spec, context.golden
    counted = context.state()
    if counted:
        yield timed_program.updates_counted(counted, spec.updates(context.made.steps), spec.optimizer)
    load(context, initial_state(context))
    first = context.draft.timing.losses
    steps = len(first) if golden is None else len(golden.losses)
    losses, seconds = _run_curve(context, steps)
    counted = context.state()
    if counted:
        yield timed_program.updates_counted(counted, spec.updates(steps), spec.optimizer)
    if golden is not None:
        if spec.algorithm != "asynchronous":
            allowed = timed_curve.tolerances(golden, spec.precision, spec.tolerances).losses
            yield timed_program.curve_again(first[:steps], losses, spec=spec, tolerance=allowed)
        yield from (timed_program.after_blocks(check) for check in compare(context, golden, losses))
    yield from pace(context, seconds, lambda: _run_curve(context, steps)[1])


def pace(context: Context, seconds: float, measure_again: Callable[[], float]) -> Iterable[Check]:
    """Are the blocks' steps as slow as the curve's, which took `seconds` each? Rank 0 answers for all.

    An interruption makes a step slow as well, so a curve that seems too slow is measured again. A collective.
    """
    check = timed_program.pace(of_curve=seconds, of_blocks=context.draft.timing.fastest_step_seconds)
    for attempt in range(1, timed_program.ATTEMPTS):
        if context.agree.on(f"pace-{attempt}", float(check.passed)):
            break
        seconds = min(seconds, measure_again())
        check = timed_program.pace(of_curve=seconds, of_blocks=context.draft.timing.fastest_step_seconds)
    if context.draft.rank == 0:
        yield check


def _run_curve(context: Context, steps: int) -> tuple[list[float], float]:
    """The losses of the curve's first steps, read only after the calls of a chunk, and seconds of the fastest step."""
    spec, program = context.spec, context.program
    losses, fastest = [], np.inf
    of_chunk = CHUNK * spec.steps_per_call
    for start in range(0, steps, of_chunk):
        batches = [place(context, step) for step in range(start, min(start + of_chunk, steps))]
        handles: list[Any] = []
        calls = [batches[at : at + spec.steps_per_call] for at in range(0, len(batches), spec.steps_per_call)]
        call = partial(_make_calls, program, calls, handles)
        chunk = timing.time_call(program, call, clock=time.perf_counter, barrier=context.agree.barrier)
        fastest = min(fastest, chunk.seconds / len(batches))
        losses += [program.loss(handle) for handle in handles]
    return losses, float(fastest)


def _make_calls(program: Any, calls: Sequence[Sequence[Any]], handles: list[Any]) -> None:
    for placed in calls:
        handles += make_steps(program, placed)


INSPECTIONS: tuple[Inspection, ...] = (
    speed,
    bandwidths,
    number_formats,
    exported_parameters,
    replicas,
    devices_and_traffic,
    further_step,
    call_on_new_batches,
    workers_call_on_new_batches,
    further_call,
    workers_further_call,
    averaging,
    curve_from_the_start,
    statistics_kept,
)
"""In this order. An inspection that changes the program's state comes after those that look at it."""
