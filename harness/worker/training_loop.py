"""The training phase: epochs, evaluations and checkpoints of a built program, the same for every framework.

The clock runs during chunks of steps, each between two synchronizations of all ranks, like the blocks of a timed run.
It stops between chunks (reading losses, reporting progress) and between epochs (evaluation, checkpoints).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harness import checkpoints
from harness.contract import Loader
from harness.datasets import Batches, Step, epochs_of, evaluation_batches
from harness.spec import CHECKED_LOSSES, Epoch, Training, codec
from harness.worker import timing
from harness.worker.calls import in_calls, make_steps
from harness.worker.context import Context
from harness.worker.divergence import check_loss

CHUNK_SECONDS = 1.0  # of training between two readings of the losses
LEAST_STEPS = 10  # of a chunk, so that the wait for its last step hardly counts
CHUNK_BYTES = 2**30  # at most for a chunk's inputs, which wait on the devices if there is no loader


@dataclass
class Position:
    """The progress of a training: what a checkpoint keeps in addition to the program's state."""

    epochs: list[Epoch] = field(default_factory=list)  # from number 0, before the first step
    losses: list[float] = field(default_factory=list)  # of the first CHECKED_LOSSES steps

    @property
    def steps(self) -> int:
        """Steps of all epochs so far."""
        return sum(epoch.steps for epoch in self.epochs)


class Trainer:
    """Trains one program on one rank. All ranks do the same in the same order."""

    def __init__(self, context: Context, *, test: Batches, position: Position) -> None:
        """`position`: where the training whose state the program holds left off."""
        spec = context.spec
        assert spec.training is not None
        self.program, self.spec, self.training = context.program, spec, spec.training
        self.unit = context.job.workload.unit
        self.epochs, self.test = epochs_of(spec, context.batches, batch=spec.global_batch), test
        self.agree, self.draft = context.agree, context.draft
        self.dtype = context.dtype
        self.position = position
        self.chunks_here = 0  # of this process
        self.chunk_steps = spec.steps_per_call  # the first call compiles
        self.steps_here, self.seconds_here = 0, 0.0  # of this process: they predict the time that is left

    def run(self, *, loader: Loader | None, folder: Path | None) -> None:
        """Train all epochs that are left, and note each one. Checkpoints go to `folder`, if given."""
        position = self.position
        self.note()
        if not position.epochs:
            nothing = dict.fromkeys(("seconds", "first_step_seconds", "wait_seconds", "report_seconds"), 0.0)
            self.finish_epoch(steps=0, samples=0, train_loss=None, **nothing)
        while not self.over():
            self.train_epoch(loader)
            self.draft.save()
            number = position.epochs[-1].number
            if folder and (number % self.training.save_every == 0 or self.over()):
                self.save(folder, number)

    def over(self) -> bool:
        """Whether all epochs are done, or the target is reached and the training was asked to stop there."""
        last = self.position.epochs[-1]
        reached = last.test_accuracy >= self.training.target_accuracy
        return last.number >= self.training.epochs or (self.training.stop_at_target and reached)

    def train_epoch(self, loader: Loader | None) -> None:
        """One epoch, and the evaluation after it."""
        number = len(self.position.epochs) - 1
        steps = self.epochs.steps(number)
        feed = loader.epoch(number) if loader else None
        seconds = first_step = waited = reporting = total = 0.0
        done = samples = 0
        while done < len(steps):
            chunk = steps[done : done + self.chunk_steps]
            took, wait, losses = self.train_chunk(chunk, islice(feed, len(chunk)) if feed else self.resident(chunk))
            if len(losses) != len(chunk):
                raise RuntimeError(f"the input pipeline ended after {done + len(losses)} of {len(steps)} steps")
            before = time.perf_counter()
            seconds, waited = seconds + took, waited + wait
            first_step += took if not self.steps_here else 0.0
            self.adapt_chunk(took, len(chunk))
            for index, (step, handle) in enumerate(zip(chunk, losses, strict=True)):
                loss = self.program.loss(handle)
                self.check(loss, self.position.steps + done + index)
                total += loss * len(step.chosen)
                samples += len(step.chosen)
            done += len(chunk)
            self.report(done, steps=len(steps), loss=total / samples, rate=samples / seconds)
            reporting += time.perf_counter() - before
        self.finish_epoch(
            steps=len(steps),
            samples=samples,
            seconds=seconds,
            first_step_seconds=first_step,
            wait_seconds=waited,
            report_seconds=reporting,
            train_loss=total / samples,
        )

    def resident(self, chunk: Sequence[Step]) -> Iterator[Any]:
        """The chunk's batches, all put on the devices before its clock starts."""
        return iter([self.program.place(self.epochs.whole(step, dtype=self.dtype)) for step in chunk])

    def train_chunk(self, chunk: Sequence[Step], placed: Iterator[Any]) -> tuple[float, float, list[Any]]:
        """A chunk's seconds, how many of them the host waited for input, and the losses (on the devices).

        There are fewer losses than steps if the input ends early.
        """
        losses, waited = [], 0.0
        sizes = [len(call) for call in in_calls(chunk, of=self.spec.steps_per_call)]
        self.program.sync()
        self.agree.barrier()
        start = asked = time.perf_counter()
        for size in sizes:
            batches = list(islice(placed, size))
            waited += time.perf_counter() - asked
            if len(batches) < size:
                break
            losses += make_steps(self.program, batches)
            asked = time.perf_counter()
        self.program.sync()
        self.agree.barrier()  # the chunk ends when the slowest rank's devices are idle
        return time.perf_counter() - start, waited, losses

    def adapt_chunk(self, seconds: float, steps: int) -> None:
        """The first chunk is the call that compiles, the second is short, and its time sets the length of all others.

        The length is the same on every rank.
        """
        self.steps_here, self.seconds_here = self.steps_here + steps, self.seconds_here + seconds
        self.chunks_here += 1
        if self.chunks_here == 1:
            self.chunk_steps = self.most_steps(LEAST_STEPS)
        elif self.chunks_here == 2:
            wanted = timing.steps_for(CHUNK_SECONDS, step_seconds=seconds / steps, at_least=LEAST_STEPS)
            self.chunk_steps = int(self.agree.on("chunk_steps", self.most_steps(wanted)))

    def most_steps(self, wanted: int) -> int:
        """`wanted` steps, or as many as fit into CHUNK_BYTES, but no fewer than two, and whole calls."""
        sample = self.epochs.batches.gather(np.zeros(1, np.int64), dtype=self.dtype)["x"].nbytes
        fitting = min(wanted, max(2, CHUNK_BYTES // (sample * self.spec.global_batch)))
        return timing.whole_rounds(fitting, of=self.spec.steps_per_call)

    def check(self, loss: float, step: int) -> None:
        """Raises Diverged, with the step, for a loss that is not finite or has exploded."""
        losses = self.position.losses
        if len(losses) < CHECKED_LOSSES:
            losses.append(loss)
            self.note()
        check_loss([losses[0], loss], step)

    def report(self, done: int, *, steps: int, loss: float, rate: float) -> None:
        """Write a progress message."""
        epoch = len(self.position.epochs)
        left = (self.training.epochs - epoch) * steps + steps - done
        seconds = left * self.seconds_here / self.steps_here
        detail = f"loss {loss:.4g}, {rate:,.0f} {self.unit}s/s, {seconds:.0f} s left"
        self.draft.progress(f"epoch {epoch}/{self.training.epochs}, step", done, steps, detail=detail)

    def finish_epoch(self, *, samples: int, **found: Any) -> None:
        """Evaluate, and record the epoch."""
        epochs = self.position.epochs
        start = time.perf_counter()
        loss, accuracy = self.evaluate()
        check_loss([epochs[0].test_loss if epochs else loss, loss], self.position.steps + found["steps"])
        whole = Epoch(
            number=len(epochs),
            samples=samples + (epochs[-1].samples if epochs else 0),
            test_loss=loss,
            # rank 0's value on all ranks: it decides whether training goes on
            test_accuracy=self.agree.on(f"accuracy{len(epochs)}", accuracy),
            evaluation_seconds=time.perf_counter() - start,
            **found,
        )
        epochs.append(whole)
        self.note()

    def note(self) -> None:
        """Note the epochs and the first losses so far."""
        self.draft.note(training=Training(losses=tuple(self.position.losses), epochs=tuple(self.position.epochs)))

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy over the test set: every sample once, shared by all devices."""
        loss, right, seen = 0.0, 0, 0
        for count, batch in evaluation_batches(self.test, self.spec.global_batch, dtype=self.dtype):
            detail = f"sample {seen}"
            self.draft.progress(
                "evaluating after epoch", len(self.position.epochs), self.training.epochs, detail=detail
            )
            mean_loss, accuracy = self.program.evaluate(self.program.place(batch))
            loss += count * mean_loss
            right += round(count * accuracy)  # a whole number again, although a float32 mean is rounded
            seen += count
        return loss / seen, right / seen

    def save(self, folder: Path, number: int) -> None:
        """Rank 0 writes a checkpoint; the other ranks wait until it exists."""
        state, spec = self.program.state(), self.spec
        if self.agree.rank == 0:
            assert state is not None
            about = {"framework": spec.framework, "strategy": spec.strategy, "cell": spec.cell, "seed": spec.seed}
            about["samples"] = self.epochs.batches.digest()
            path = checkpoints.path_of(folder, spec.cell, spec.launch, number)
            checkpoints.save(path, state, about | {"position": codec.encode(self.position)})
        self.agree.barrier()
