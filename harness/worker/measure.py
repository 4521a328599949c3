"""The timing phase: the first step, the loss curve, and then blocks of steps with the clock running."""

from __future__ import annotations

import gc
import importlib
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from harness.contract import Job, Program
from harness.gate import timed_program
from harness.spec import TrialSpec, run_options
from harness.spec.optimizers import scheduled
from harness.worker import memory, timing
from harness.worker.after_blocks import inspect
from harness.worker.context import Context
from harness.worker.divergence import check_loss
from harness.worker.draft import Draft
from harness.worker.execution import note_execution
from harness.worker.loss_curve import follow_curve, place
from harness.worker.package_modules import optional_module
from harness.worker.step_series import time_series
from harness.worker.watched_block import WatchedBlock, watch

BARE_BLOCKS = 6  # at most; even, so that half come before the suite's block and half after it
WATCHED_SECONDS = 3.0  # of a watched block at most: it is made up to three times
RESIDENT_BATCHES = 4  # batches that wait on the devices during the timed blocks, used in turn

BareLoop = Callable[[Program, Sequence[Any]], Callable[[int], None]]
"""Maps a program and its placed batches to a function that makes a given number of steps without the suite's code."""


def measure(context: Context) -> None:
    """Time the program as the trial's protocol says: see TrialSpec.protocol."""
    package = context.order.package
    if context.spec.protocol == "from_host":
        measure_from_host(context, importlib.import_module(f"{package}.from_host").make_batches)
    else:
        measure_resident(context, bare_loop(package, context.spec, context.job))


def measure_resident(context: Context, bare: BareLoop | None = None) -> None:
    """First step, loss curve, pilot, warm-up, the timed blocks, each noted as it ends, and then single steps.

    `bare`: the framework's loop over the same model without the suite's code (`<package>/bare.py`), if it has one.
    """
    program, spec, draft = context.program, context.spec, context.draft
    follow_curve(context)
    steps = range(spec.curve_steps, spec.curve_steps + RESIDENT_BATCHES)
    resident = [place(context, step) for step in steps]
    timed = partial(
        timing.time_blocks,
        program,
        resident,
        steps_per_call=spec.steps_per_call,
        clock=time.perf_counter,
        barrier=context.agree.barrier,
    )
    by_hand = bare(program, resident) if bare is not None else None  # before the warm-up: the devices idle meanwhile
    steps_per_block = choose_steps_per_block(context, timed)
    draft.note_timing(steps_per_block=steps_per_block)
    bare_steps = partial(by_hand, steps_per_block) if by_hand is not None else None
    watched = time_blocks_in_turn(context, partial(timed, blocks=1), bare_steps)
    first_loss = draft.timing.losses[:1]
    check_loss([*first_loss, program.loss()], spec.curve_steps + spec.blocks * steps_per_block)
    time_series(context, resident)
    trace = getattr(program, "trace", None)
    if trace is not None and spec.launch == 0:
        draft.progress("tracing one step")
        trace(resident[0])  # the first trace compiles kernels that no step needed: the input's gradient
        draft.note_timing(spans=tuple(trace(resident[0])))
        context.made(2)
    inspect(context, resident, watched)
    note_execution(context, program, resident[:1] * spec.steps_per_call, fed="resident")


def choose_steps_per_block(context: Context, timed: Callable[..., list[timing.Timed]]) -> int:
    """How many steps fill `block_seconds`, measured in a pilot block and a warm-up; the same on every rank."""
    spec, agree, draft = context.spec, context.agree, context.draft
    in_whole_calls = partial(timing.whole_rounds, of=spec.steps_per_call)
    # The pilot also warms up the pattern that is timed: steps without reading the loss in between.
    draft.progress("pilot")
    steps = in_whole_calls(spec.steps_per_block)
    (pilot,) = timed(blocks=1, steps_per_block=steps)
    context.made(steps)
    step_seconds = agree.on("pilot", pilot.seconds / steps)
    if spec.warmup_seconds:
        draft.progress("warm-up")  # clocks rise from idle, and then swing for some seconds: reports/probes/steady
        steps = in_whole_calls(timing.steps_for(spec.warmup_seconds, step_seconds=step_seconds, at_least=1))
        (warm,) = timed(blocks=1, steps_per_block=steps)
        context.made(steps)
        step_seconds = agree.on("warm-up", warm.seconds / steps)  # over more steps than the pilot had
    steps = timing.steps_for(spec.block_seconds, step_seconds=step_seconds, at_least=spec.steps_per_block)
    # strategies that synchronize every few steps do so equally often in every block
    return timing.whole_rounds(steps, of=spec.whole_rounds)


def time_blocks_in_turn(
    context: Context, time_block: Callable[..., list[timing.Timed]], bare_steps: Callable[[], None] | None
) -> WatchedBlock:
    """All timed blocks, with a bare block beside each of the first BARE_BLOCKS. Returns a block that is not timed.

    Their order alternates from block to block (after, before, after, ...), so that any drift affects both.
    """
    spec, draft = context.spec, context.draft
    steps_per_block = draft.timing.steps_per_block
    blocks: list[timing.Timed] = []
    bare_blocks: list[timing.Timed] = []
    left: list[float] = []

    def suite_block() -> list[timing.Timed]:
        found = time_block(steps_per_block=steps_per_block)
        left.append(timing.work_left(context.program.loss, clock=time.perf_counter, meet=context.agree.meet)[1])
        return found

    def bare_block() -> None:
        assert bare_steps is not None
        bare_blocks.append(
            timing.time_call(context.program, bare_steps, clock=time.perf_counter, barrier=context.agree.barrier)
        )

    def timed_suite_block() -> None:
        blocks.extend(suite_block())

    watched = WatchedBlock()
    place_of_watched = context.agree.on("watched", secrets.randbelow(spec.blocks))
    for block in range(spec.blocks):
        draft.progress("block", block + 1, spec.blocks)
        alone = bare_steps is None or block >= BARE_BLOCKS
        pair = [timed_suite_block] if alone else [timed_suite_block, bare_block]
        for run_block in reversed(pair) if block % 2 else pair:
            run_block()
        note_blocks(draft, blocks, bare_blocks)
        if block == place_of_watched:
            # Reading the state, and all that follows the blocks, is no part of the training.
            memory.note_peak(context.runtime, context.job.world, draft)
            step_seconds = context.agree.on("watched step", blocks[0].seconds / steps_per_block)
            watched = watch(context, time_block, watched_steps(spec, step_seconds, steps_per_block))
            if spec.warmup_seconds and block + 1 < spec.blocks:
                suite_block()  # not timed: clocks fell while the state was read
    # Not timed: an interruption after each of a few blocks must not pass for a sync that does not wait.
    for _ in range(spec.blocks, timed_program.LEAST_READINGS):
        suite_block()
    context.made(steps_per_block * (len(left) + len(bare_blocks)))
    block = context.agree.on("block", median(draft.timing.block_seconds))  # rank 0's: other ranks may only serve it
    draft.note_checks([timed_program.work_after_sync(left, block)])
    return watched


def note_blocks(draft: Draft, blocks: Sequence[timing.Timed], bare_blocks: Sequence[timing.Timed]) -> None:
    """Note the timed blocks so far, and the bare ones."""
    draft.note_timing(
        block_seconds=tuple(block.seconds for block in blocks),
        block_starts=tuple(block.start for block in blocks),
        bare_block_seconds=tuple(block.seconds for block in bare_blocks),
    )


def watched_steps(spec: TrialSpec, step_seconds: float, steps_per_block: int) -> int:
    """The steps of a watched block: those of a timed one, or fewer if that takes long."""
    most = timing.steps_for(WATCHED_SECONDS, step_seconds=step_seconds, at_least=1)
    return min(steps_per_block, timing.whole_rounds(most, of=spec.whole_rounds))


def bare_loop(package: str, spec: TrialSpec, job: Job) -> BareLoop | None:
    """The framework's bare loop for a cell on GPUs, if it has one. CPU timings are too noisy to show a difference."""
    plain = not run_options.chosen(spec) and not scheduled(job.optimizer)
    bare = optional_module(package, "bare")
    return bare.LOOPS.get(spec.strategy) if bare and plain and spec.platform != "cpu" else None


def measure_from_host(context: Context, make_batches: Callable[..., Any]) -> None:
    """Time as tutorials do, to compare with the numbers that they publish.

    `make_batches`: the framework's `from_host.make_batches`.
    """
    spec, draft = context.spec, context.draft
    losses: list[float] = []
    seconds: list[float] = []
    starts: list[float] = []
    like = context.batches.batch(0, spec.global_batch, dtype=np.float32)
    draft.note_timing(steps_per_block=spec.steps_per_block)
    context.release()
    for block in range(spec.blocks):
        draft.progress("block", block + 1, spec.blocks)
        program = context.build()
        made = make_batches(program, like, seed=spec.seed + block)
        program.sync()
        context.agree.barrier()
        starts.append(time.monotonic())
        start = time.perf_counter()
        for _ in range(spec.steps_per_block):
            program.step(next(made))  # batches are made on the host in the timed part: this protocol measures that
        seconds.append(time.perf_counter() - start)  # the last step is not waited for, as in the tutorial
        losses.append(program.loss())
        first = seconds[0] / spec.steps_per_block
        draft.note_timing(
            losses=tuple(losses), block_seconds=tuple(seconds), block_starts=tuple(starts), first_step_seconds=first
        )
        check_loss([losses[-1]], block)
        if block + 1 == spec.blocks:
            note_execution(context, program, [next(made)], fed="from_host")
        del program, made  # before the next one is built: the peak of memory is that of one program
        gc.collect()
