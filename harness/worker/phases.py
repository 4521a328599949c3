"""What a worker does with a built program: prove it, or time it. The same code for every framework."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.contract import Job, World
from harness.datasets import Batches, epochs_of, parity_steps
from harness.gate import parity
from harness.reference.loops import Golden, replay
from harness.spec import TrialSpec
from harness.worker import timing

EXPLODED = 10.0  # a loss this many times the first one, or not finite, counts as diverged
BARE_BLOCKS = 6  # at most; even, so that as many come before as after
RESIDENT_BATCHES = 4  # batches that wait on the devices during the timed blocks, used in turn


class Diverged(Exception):
    """The loss left the range in which a speed means anything."""


def prove(
    program, spec: TrialSpec, job: Job, batches: Batches, golden: Golden, groups: int, answer: dict, progress
) -> None:
    """Train `parity_steps` in float64 and hold everything against the golden reference."""
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
    if hasattr(program, "pushes"):
        # what an asynchronous run computes depends on who came when: its own history is repeated
        repeated = replay(job.workload, job.params, samples, optimizer=job.optimizer, pushes=program.pushes())
        golden = replace(repeated, noise=golden.noise)
    found = parity.compare(
        golden, losses=losses, gradients=gradients, replicas=replicas, batch=spec.parity_batch, groups=groups,
        tolerances=spec.tolerances,
    )  # fmt: skip
    answer["parity"] = asdict(found)


class Agreement:
    """The ranks' meeting point, and a number that rank 0 decides for all."""

    def __init__(self, folder: Path, rank: int, barrier: Callable[[], None]) -> None:
        self.folder, self.rank, self.barrier = folder, rank, barrier

    def on(self, name: str, value: float) -> float:
        """Rank 0's `value` on every rank."""
        path = self.folder / f"agreed-{name}"
        if self.rank == 0:
            path.write_text(repr(value))
        self.barrier()
        return float(path.read_text())


def measure(program, spec: TrialSpec, batches: Batches, agree: Agreement, answer: dict, progress, bare=None) -> None:
    """First step, loss curve, pilot, warm-up, then the timed blocks.

    `bare`: a loop over the same model without the suite's code (`<package>/bare.py`), of which a block stands beside
    each of the first timed blocks: after the first, before the second and so on, so that whatever drifts hits both.
    """
    losses: list[float] = answer.setdefault("losses", [])
    dtype = np.float64 if spec.precision == "fp64" else np.float32
    for step in range(spec.curve_steps):
        progress(f"loss curve, step {step + 1}/{spec.curve_steps}")
        placed = program.place(batches.batch(step, spec.global_batch, dtype=dtype))
        if step == 0:
            answer["first_step_seconds"] = timing.time_first_step(
                program, placed, clock=time.perf_counter, barrier=agree.barrier
            )
        else:
            program.step(placed)
        losses.append(program.loss())
        check_loss(losses, step)
    steps = range(spec.curve_steps, spec.curve_steps + RESIDENT_BATCHES)
    resident = [program.place(batches.batch(step, spec.global_batch, dtype=dtype)) for step in steps]
    clocks: Any = {"clock": time.perf_counter, "barrier": agree.barrier}
    timed = partial(timing.time_blocks, program, resident, **clocks)
    # The pilot also warms up the pattern that is timed: steps without a look at the loss between them.
    progress("pilot")
    (pilot,) = timed(blocks=1, steps_per_block=spec.steps_per_block)
    step_seconds = agree.on("pilot", pilot / spec.steps_per_block)
    if spec.warmup_seconds:
        progress("warm-up")  # clocks rise from idle within about a second
        steps = timing.steps_for(spec.warmup_seconds, step_seconds=step_seconds, at_least=1)
        (warm,) = timed(blocks=1, steps_per_block=steps)
        step_seconds = agree.on("warm-up", warm / steps)  # of more steps than the pilot's
    steps = timing.steps_for(spec.block_seconds, step_seconds=step_seconds, at_least=spec.steps_per_block)
    # workers that meet every so many steps meet equally often in every block
    steps = timing.whole_rounds(steps, of=spec.options.get("sync_every", 1))
    answer["steps_per_block"] = steps
    seconds, bare_seconds = answer.setdefault("block_seconds", []), answer.setdefault("bare_block_seconds", [])
    by_hand = bare(program, resident) if bare is not None else None

    def own_block() -> None:
        seconds.extend(timed(blocks=1, steps_per_block=steps))

    def bare_block() -> None:
        assert by_hand is not None
        bare_seconds.append(timing.time_call(program, partial(by_hand, steps), **clocks))

    for block in range(spec.blocks):
        progress(f"block {block + 1}/{spec.blocks}")
        turn = [own_block] if by_hand is None or block >= BARE_BLOCKS else [own_block, bare_block]
        for run in reversed(turn) if block % 2 else turn:
            run()
    check_loss([*losses[:1], program.loss()], spec.curve_steps + spec.blocks * steps)
    if hasattr(program, "trace") and spec.launch == 0:
        progress("tracing one step")
        program.trace(resident[0])  # the first has kernels that no step had before: those of the input's gradient
        answer["spans"] = [asdict(span) for span in program.trace(resident[0])]


def measure_from_host(
    build, make_batches, spec: TrialSpec, batches: Batches, runtime, world: World, answer: dict, progress
) -> None:
    """Time as tutorials do, to compare with what they print: see TrialSpec.protocol.

    `make_batches`: the framework's `from_host.make_batches`.
    """
    losses: list[float] = answer.setdefault("losses", [])
    seconds = []
    like = batches.batch(0, spec.global_batch, dtype=np.float32)
    for block in range(spec.blocks):
        progress(f"block {block + 1}/{spec.blocks}")
        program = build()
        made = make_batches(program, like, seed=spec.seed + block)
        program.sync()
        runtime.barrier(world)
        start = time.perf_counter()
        for _ in range(spec.steps_per_block):
            program.step(next(made))  # made on the host inside the timed part: that is what this protocol is about
        seconds.append(time.perf_counter() - start)  # without waiting for the last step: as the tutorial does
        if block == 0:
            answer["first_step_seconds"] = seconds[0] / spec.steps_per_block
        losses.append(program.loss())
        check_loss([losses[-1]], block)
    answer["steps_per_block"], answer["block_seconds"] = spec.steps_per_block, seconds


def check_loss(losses: list[float], step: int) -> None:
    """Raises Diverged if the last loss is not finite or has exploded."""
    if not math.isfinite(losses[-1]) or losses[-1] > EXPLODED * max(losses[0], 1.0):
        raise Diverged(f"loss {losses[-1]:.4g} at step {step}, from {losses[0]:.4g} at the start")
