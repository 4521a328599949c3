"""Checks of the chunks of a training, whose steps nobody waits for: is work left when a chunk's clock has stopped, and
are its steps those that the program makes when each is waited for?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.datasets import Epochs, Step
from harness.gate import timed_program
from harness.spec import Check, Quantity
from harness.spec.arrays import Arrays
from harness.spec.checks import finding
from harness.worker import timing
from harness.worker.calls import make_in_calls, place_each
from harness.worker.chunks import LEAST_STEPS
from harness.worker.context import Context
from harness.worker.loading import load_on_all
from harness.worker.prove import copied
from harness.worker.replays import compare_replays


class ChunkChecks:
    """The checks of one rank's chunks. All ranks call the same methods in the same order, when no clock runs."""

    def __init__(self, context: Context, epochs: Epochs) -> None:
        self.context, self.spec, self.epochs = context, context.spec, epochs
        self.found: list[Check] = []
        self.not_replayed, self.waits = "no chunk had several calls", True  # for a chunk that can be replayed
        if self.spec.algorithm == "asynchronous":
            self.not_replayed, self.waits = "no two runs are equal", False
        elif context.order.checkpoint is not None:
            # reading the state may round running statistics, at another step than in a training that goes straight on
            self.not_replayed, self.waits = "the training was resumed", False
        self.is_fed = context.spec.training is not None and context.spec.training.input != "resident"
        self._begun: Arrays | None = None  # the state before a chunk
        self._kept: list[Any] = []  # its batches
        self._left: list[tuple[int, float, float]] = []  # steps of a chunk, its seconds, and seconds of work left

    def before(self, chunk: Sequence[Step], *, is_usual: bool) -> None:
        """Read the state before the first chunk of several calls, whose clock does not run yet. It is a short one, so
        that what differs by chance hardly grows. `is_usual`: it is not that of a step alone."""
        if is_usual and len(chunk) > self.spec.steps_per_call and self.waits:
            self._begun = copied(self.context.state())

    def passing(self, placed: Iterator[Any]) -> Iterator[Any]:
        """The placed batches of a chunk as they come. A loader's are kept for the replay: those that are placed anew
        may lie otherwise in memory, where a CPU adds in another order (PyTorch's ddp was off by 3e-7)."""
        for batch in placed:
            if self._begun is not None and self.is_fed:
                self._kept.append(batch)
            yield batch

    def after(self, losses: Sequence[Any], *, seconds: float) -> None:
        """How long does the first reading of a chunk's last loss wait? `seconds`: of the chunk."""
        program, meet = self.context.program, self.context.agree.meet
        _, left = timing.work_left(lambda: program.loss(losses[-1]), clock=time.perf_counter, meet=meet)
        self._left.append((len(losses), seconds, left))

    def replay(self, chunk: Sequence[Step]) -> bool:
        """Replay a chunk if its start was read, and go on from its end. Returns whether it was. Call it when its losses
        have been read, so that a training that diverges ends there."""
        if self._begun is None:
            return False
        begun, kept, self._begun, self._kept = self._begun, self._kept, None, []
        context, agree = self.context, self.context.agree
        ended = copied(context.state())
        if not agree.on("chunk-is-finite", float(all(np.isfinite(array).all() for array in ended.values()))):
            return False  # it diverges, and its next loss says so
        self.waits, self.not_replayed = False, ""
        context.draft.progress("replaying a chunk of steps")

        def make() -> None:
            make_in_calls(context, chunk, kept or place_each(context, self.epochs, chunk), wait=True)

        self.found += compare_replays(context, begun, ended, make)
        _, wrong = load_on_all(context, agree.arrays("chunk-end", ended), "chunk-end-loaded")
        self.found += [finding("replayed block", wrong)] if wrong else []
        return True

    def unchecked(self) -> dict[Quantity, str]:
        """Why no chunk has been replayed, if none has."""
        return {"replayed block": self.not_replayed} if self.not_replayed else {}

    def checks(self) -> list[Check]:
        """What was found so far."""
        return [*self.found, self._work_left()] if self._left else self.found

    def read_again(self, steps: Sequence[Step]) -> int:
        """If work seems to be left after the few chunks of a short training, make further ones of these steps: other
        processes may have interrupted each of the few. Call it at the end. Returns how many steps were made."""
        context, agree, made = self.context, self.context.agree, 0
        if not self._left:
            return made
        chunk = steps[: max(count for count, _, _ in self._usual())]
        for number in range(len(self._usual()), timed_program.LEAST_READINGS):
            if agree.everywhere(f"work-left-{number}", self._work_left().passed):
                break
            context.draft.progress("reading again what a chunk leaves")
            seconds, losses = self._timed(chunk)
            self.after(losses, seconds=seconds)
            made += len(chunk)
        return made

    def _timed(self, chunk: Sequence[Step]) -> tuple[float, list[Any]]:
        """The seconds and the losses of these steps, made as a chunk is: all are placed before the clock starts."""
        context, losses = self.context, list[Any]()
        placed = list(place_each(context, self.epochs, chunk))

        def make() -> None:
            losses.extend(make_in_calls(context, chunk, placed, wait=False))

        timed = timing.time_call(context.program, make, clock=time.perf_counter, barrier=context.agree.barrier)
        return timed.seconds, losses

    def _usual(self) -> list[tuple[int, float, float]]:
        """The chunks of the usual length, without the first, which compiles."""
        others = self._left[1:] or self._left
        return [each for each in others if each[0] >= LEAST_STEPS] or others

    def _work_left(self) -> Check:
        """The work that was left after these."""
        _, seconds, left = zip(*self._usual(), strict=True)
        return timed_program.work_after_chunks(left, seconds)
