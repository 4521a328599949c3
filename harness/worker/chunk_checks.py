"""Checks of the chunks of a training, whose steps nobody waits for: is work left when a chunk's clock has stopped, and
are its steps those that the program makes when each is waited for?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from harness.datasets import Epochs, Step
from harness.gate import timed_program, trained
from harness.spec import Check, Quantity
from harness.spec.arrays import Arrays
from harness.spec.checks import finding
from harness.worker import timing
from harness.worker.calls import make_in_calls
from harness.worker.chunks import LEAST_STEPS
from harness.worker.context import Context
from harness.worker.loading import load_on_all
from harness.worker.prove import copied, copied_replicas


class ChunkChecks:
    """The checks of one rank's chunks. All ranks call the same methods in the same order, when no clock runs."""

    def __init__(self, context: Context, epochs: Epochs) -> None:
        self.context, self.spec, self.epochs = context, context.spec, epochs
        self.found: list[Check] = []
        self.is_replayed = context.spec.algorithm == "asynchronous"  # the order of whose updates is not known
        self._begun: tuple[Arrays, list[Arrays]] | None = None  # the state before a chunk, and each replica
        self._left: list[tuple[int, float, float]] = []  # steps of a chunk, its seconds, and seconds of work left

    def before(self, chunk: Sequence[Step], *, is_usual: bool) -> None:
        """Read the state before the first chunk of several calls, whose clock does not run yet. It is a short one, so
        that what differs by chance hardly grows. `is_usual`: it is not that of a step alone."""
        if is_usual and len(chunk) > self.spec.steps_per_call and not self.is_replayed:
            self._begun = copied(self.context.program.state() or {}), copied_replicas(self.context.program)

    def after(self, losses: Sequence[Any], *, seconds: float) -> None:
        """How long does the first reading of a chunk's last loss wait? `seconds`: of the chunk."""
        program, barrier = self.context.program, self.context.agree.barrier
        _, left = timing.work_left(lambda: program.loss(losses[-1]), clock=time.perf_counter, barrier=barrier)
        self._left.append((len(losses), seconds, left))

    def replay(self, chunk: Sequence[Step]) -> bool:
        """Replay a chunk if its start was read. Returns whether it was. Call it when its losses have been read, so that
        a training that diverges ends there."""
        if self._begun is None:
            return False
        self._replay(chunk, *self._begun)
        self._begun, self.is_replayed = None, True
        return True

    def unchecked(self) -> dict[Quantity, str]:
        """Why no chunk has been replayed, if none has."""
        if self.spec.algorithm == "asynchronous":
            return {"replayed block": "workers do not wait"}
        return {} if self.is_replayed else {"replayed block": "no chunk had several calls"}

    def checks(self) -> list[Check]:
        """What was found so far."""
        return [*self.found, self._work_left()] if self._left else self.found

    def _work_left(self) -> Check:
        """The work that was left after a chunk: the median over long ones, since an interruption hits few of them."""
        usual = [each for each in self._left if each[0] >= LEAST_STEPS] or self._left
        _, seconds, left = (median(column) for column in zip(*usual, strict=True))
        return timed_program.work_after_sync([left], seconds)

    def _replay(self, chunk: Sequence[Step], begun: Arrays, before: list[Arrays]) -> None:
        """Load the state from before the chunk, make its steps again, waiting for each call, and go on from its end."""
        context, agree = self.context, self.context.agree
        context.draft.progress("replaying a chunk of steps")
        ended = agree.arrays("chunk-end", copied(context.program.state() or {}))
        straight = copied_replicas(context.program)
        if self._loaded(agree.arrays("chunk-start", begun), "start"):
            make_in_calls(context, self.epochs, chunk, wait=True)
            again = copied_replicas(context.program)
            if all(np.isfinite(array).all() for replica in straight for array in replica.values()):
                # else it diverges, and its next loss says so
                self.found += trained.compare_again(before, straight, again, spec=self.spec, quantity="replayed block")
        self._loaded(ended, "end")

    def _loaded(self, state: Arrays, name: str) -> bool:
        """Load a state. Returns whether the program has it now."""
        has_it, wrong = load_on_all(self.context, state, f"chunk-{name}-loaded")
        if wrong:
            self.found.append(finding("replayed block", wrong))
        return has_it
