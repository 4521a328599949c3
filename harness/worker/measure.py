"""The timing phase: the first step, the loss curve, and then blocks of steps with the clock running."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from harness.contract import Program
from harness.datasets import Batches
from harness.spec import TrialSpec
from harness.worker import timing
from harness.worker.agreement import Agreement
from harness.worker.divergence import check_loss

BARE_BLOCKS = 6  # at most; even, so that as many come before as after
RESIDENT_BATCHES = 4  # batches that wait on the devices during the timed blocks, used in turn

Answer = dict[str, Any]
Report = Callable[[str], None]
BareLoop = Callable[[Program, Sequence[Any]], Callable[[int], None]]
"""A program and its placed batches to a function that makes so many steps without the suite's code."""


def measure(
    program: Program,
    spec: TrialSpec,
    batches: Batches,
    agree: Agreement,
    *,
    answer: Answer,
    progress: Report,
    bare: BareLoop | None = None,
) -> None:
    """First step, loss curve, pilot, warm-up, then the timed blocks. `answer` is filled as results come.

    `bare`: the framework's loop over the same model without the suite's code (`<package>/bare.py`), if it has one.
    """
    follow_curve(program, spec, batches, agree, answer=answer, progress=progress)
    steps = range(spec.curve_steps, spec.curve_steps + RESIDENT_BATCHES)
    dtype = number_format(spec)
    resident = [program.place(batches.batch(step, spec.global_batch, dtype=dtype)) for step in steps]
    timed = partial(timing.time_blocks, program, resident, clock=time.perf_counter, barrier=agree.barrier)
    steps_per_block = choose_steps_per_block(timed, spec, agree, progress)
    answer["steps_per_block"] = steps_per_block
    bare_steps = partial(bare(program, resident), steps_per_block) if bare is not None else None
    time_blocks_in_turn(program, timed, spec, agree, bare_steps=bare_steps, answer=answer, progress=progress)
    check_loss([*answer["losses"][:1], program.loss()], spec.curve_steps + spec.blocks * steps_per_block)
    trace = getattr(program, "trace", None)
    if trace is not None and spec.launch == 0:
        progress("tracing one step")
        trace(resident[0])  # the first trace compiles kernels that no step needed: the input's gradient
        answer["spans"] = [asdict(span) for span in trace(resident[0])]


def follow_curve(
    program: Program, spec: TrialSpec, batches: Batches, agree: Agreement, *, answer: Answer, progress: Report
) -> None:
    """The first `curve_steps` steps from the initial weights: their losses, and the time of the very first one."""
    losses: list[float] = answer.setdefault("losses", [])
    for step in range(spec.curve_steps):
        progress(f"loss curve, step {step + 1}/{spec.curve_steps}")
        placed = program.place(batches.batch(step, spec.global_batch, dtype=number_format(spec)))
        if step == 0:
            answer["first_step_seconds"] = timing.time_first_step(
                program, placed, clock=time.perf_counter, barrier=agree.barrier
            )
        else:
            program.step(placed)
        losses.append(program.loss())
        check_loss(losses, step)


def choose_steps_per_block(
    timed: Callable[..., list[float]], spec: TrialSpec, agree: Agreement, progress: Report
) -> int:
    """How many steps fill a block of `block_seconds`, by a pilot block and a warm-up; the same on every rank."""
    # The pilot also warms up the pattern that is timed: steps without a look at the loss between them.
    progress("pilot")
    (pilot,) = timed(blocks=1, steps_per_block=spec.steps_per_block)
    step_seconds = agree.on("pilot", pilot / spec.steps_per_block)
    if spec.warmup_seconds:
        progress("warm-up")  # clocks rise from idle within about a second
        steps = timing.steps_for(spec.warmup_seconds, step_seconds=step_seconds, at_least=1)
        (warm,) = timed(blocks=1, steps_per_block=steps)
        step_seconds = agree.on("warm-up", warm / steps)  # over more steps than the pilot had
    steps = timing.steps_for(spec.block_seconds, step_seconds=step_seconds, at_least=spec.steps_per_block)
    # strategies that synchronize every few steps do so equally often in every block
    return timing.whole_rounds(steps, of=spec.options.get("sync_every", 1))


def time_blocks_in_turn(
    program: Program,
    timed: Callable[..., list[float]],
    spec: TrialSpec,
    agree: Agreement,
    *,
    bare_steps: Callable[[], None] | None,
    answer: Answer,
    progress: Report,
) -> None:
    """All timed blocks, with a bare block beside each of the first BARE_BLOCKS.

    The two change places from block to block (after, before, after, ...), so that any drift affects both.
    """
    seconds = answer.setdefault("block_seconds", [])
    bare_seconds = answer.setdefault("bare_block_seconds", [])
    steps = answer["steps_per_block"]

    def suite_block() -> None:
        seconds.extend(timed(blocks=1, steps_per_block=steps))

    def bare_block() -> None:
        assert bare_steps is not None
        bare_seconds.append(timing.time_call(program, bare_steps, clock=time.perf_counter, barrier=agree.barrier))

    for block in range(spec.blocks):
        progress(f"block {block + 1}/{spec.blocks}")
        pair = [suite_block] if bare_steps is None or block >= BARE_BLOCKS else [suite_block, bare_block]
        for run_block in reversed(pair) if block % 2 else pair:
            run_block()


def measure_from_host(
    build: Callable[[], Program],
    make_batches: Callable[..., Any],
    spec: TrialSpec,
    batches: Batches,
    *,
    barrier: Callable[[], None],
    answer: Answer,
    progress: Report,
) -> None:
    """Time as tutorials do, to compare with the numbers that they publish: see TrialSpec.protocol.

    `build`: a fresh program. `make_batches`: the framework's `from_host.make_batches`.
    """
    losses: list[float] = answer.setdefault("losses", [])
    seconds = []
    like = batches.batch(0, spec.global_batch, dtype=np.float32)
    for block in range(spec.blocks):
        progress(f"block {block + 1}/{spec.blocks}")
        program = build()
        made = make_batches(program, like, seed=spec.seed + block)
        program.sync()
        barrier()
        start = time.perf_counter()
        for _ in range(spec.steps_per_block):
            program.step(next(made))  # batches are made on the host in the timed part: this protocol measures that
        seconds.append(time.perf_counter() - start)  # the last step is not waited for, as in the tutorial
        if block == 0:
            answer["first_step_seconds"] = seconds[0] / spec.steps_per_block
        losses.append(program.loss())
        check_loss([losses[-1]], block)
    answer["steps_per_block"], answer["block_seconds"] = spec.steps_per_block, seconds


def number_format(spec: TrialSpec) -> type[np.floating]:
    """What batches are made in on the host."""
    return np.float64 if spec.precision == "fp64" else np.float32
