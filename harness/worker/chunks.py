"""How a training is cut into chunks of steps, at whose ends the clock stops and losses are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.worker import timing
from harness.worker.rank_agreement import Agreement

CHUNK_SECONDS = 1.0  # of training between two readings of the losses
LEAST_STEPS = 10  # of a chunk, so that the wait for its last step hardly counts
CHUNK_BYTES = 2**30  # at most for a chunk's inputs, which wait on the devices if there is no loader


@dataclass
class Totals:
    """What an epoch has come to so far. `loss` is the sum over its samples."""

    samples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    first_step_seconds: float = 0.0
    wait_seconds: float = 0.0
    report_seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        """The mean loss of the samples so far."""
        return self.loss / self.samples

    @property
    def rate(self) -> float:
        """Samples per second of training."""
        return self.samples / self.seconds


class Chunks:
    """The lengths of chunks, the same on every rank.

    The first chunk is the call that compiles, the second is short, and its time sets the length of all others.
    """

    def __init__(self, agree: Agreement, *, per_call: int, step_bytes: int) -> None:
        """`per_call`: steps of a call; `step_bytes`: of a step's inputs."""
        self.agree, self.per_call, self.step_bytes = agree, per_call, step_bytes
        self.length = per_call  # the first call compiles
        self.made = 0  # by this process
        self.steps, self.seconds = 0, 0.0  # of this process: they predict the time that is left

    def end(self, start: int, alone: Sequence[int]) -> int:
        """The step before which the chunk that begins with step `start` ends. The calls of the steps `alone`, in
        order, are chunks of their own."""
        if start in alone:
            return start + self.per_call
        return min([step for step in alone if step > start] + [start + self.length])

    def add(self, seconds: float, steps: int, *, counts: bool) -> None:
        """A chunk was made. `counts`: whether it had the usual length, and was not that of a step alone."""
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if not counts:
            return
        self.made += 1
        if self.made == 1:
            self.length = self.most_steps(max(LEAST_STEPS, 2 * self.per_call))  # of several calls: it is replayed
        elif self.made == 2:
            wanted = timing.steps_for(CHUNK_SECONDS, step_seconds=seconds / steps, at_least=LEAST_STEPS)
            self.length = int(self.agree.on("chunk_steps", self.most_steps(wanted)))

    def most_steps(self, wanted: int) -> int:
        """`wanted` steps, or as many as fit into CHUNK_BYTES, but no fewer than two, and whole calls."""
        return timing.whole_rounds(min(wanted, max(2, CHUNK_BYTES // self.step_bytes)), of=self.per_call)
