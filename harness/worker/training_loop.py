"""The training phase: epochs, evaluations and checkpoints of a built program, the same for every framework.

The clock runs during chunks of steps, each between two synchronizations of all ranks, like the blocks of a timed run.
It stops between chunks (reading losses, reporting progress) and between epochs (evaluation, checkpoints).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harness.contract import Loader, Program
from harness.datasets import Batches, Step, epochs_of
from harness.spec import CHECKED_LOSSES, Epoch
from harness.worker import checkpointing
from harness.worker.calls import in_calls, make_steps
from harness.worker.chunks import Chunks, Totals
from harness.worker.context import Context
from harness.worker.divergence import TargetMet, check_loss
from harness.worker.evaluation import evaluate_samples, in_words, mean
from harness.worker.position import Position
from harness.worker.sample_check import Kept
from harness.worker.training_checks import TrainingChecks


class Trainer:
    """Trains one program on one rank. All ranks do the same in the same order."""

    def __init__(
        self, context: Context, *, validation: Batches, test: Batches, position: Position, checks: TrainingChecks
    ) -> None:
        """`validation`: the samples that the target is judged on; if there are none (in runs that began before there
        were any), it is judged on the test set. `position`: where the training whose state the program holds left off.
        """
        spec = context.spec
        assert spec.training is not None
        self.spec, self.training = spec, spec.training
        self.unit = context.job.workload.unit
        self.context = context
        self.epochs = epochs_of(spec, context.batches, batch=spec.global_batch)
        self.validation, self.test = validation, test
        self.checks = checks
        self.agree, self.draft = context.agree, context.draft
        self.dtype = context.dtype
        self.position = position
        sample = context.batches.gather(np.zeros(1, np.int64), dtype=context.dtype)["x"].nbytes
        self.chunks = Chunks(context.agree, per_call=spec.steps_per_call, step_bytes=sample * spec.global_batch)

    @property
    def program(self) -> Program:
        """The program that is trained."""
        return self.context.program

    def run(self, *, loader: Loader | None, folder: Path | None) -> None:
        """Train all epochs that are left, and note each one. Checkpoints go to `folder`, if given."""
        position = self.position
        self.note()
        if not position.epochs:
            nothing = dict.fromkeys(("seconds", "first_step_seconds", "wait_seconds", "report_seconds"), 0.0)
            self.finish_epoch(steps=0, samples=0, train_loss=None, **nothing)
            self.check_start()
        while not self.over():
            self.train_epoch(loader)
            self.finish_training()
            self.draft.save()
            number = position.epochs[-1].number
            if folder and (number % self.training.save_every == 0 or self.over()):
                checkpointing.save(self.context, position, folder=folder, number=number)
        self.finish_training()

    def check_end(self) -> None:
        """What can be checked only after the training: it makes further steps, and builds another program."""
        position = self.position
        if position.steps:
            self.checks.at_end(self.epochs.steps(position.epochs[-1].number), made=position.steps)

    def over(self) -> bool:
        """Whether all epochs are done, or the target is reached and the training was asked to stop there."""
        last = self.position.epochs[-1]
        reached = last.judged_accuracy >= self.training.target_accuracy
        return last.number >= self.training.epochs or (self.training.stop_at_target and reached)

    def check_start(self) -> None:
        """Raises TargetMet if there is nothing to train, although epochs were asked for."""
        if self.over() and self.training.epochs:
            raise TargetMet(target=self.training.target_accuracy, accuracy=self.position.epochs[0].judged_accuracy)

    def finish_training(self) -> None:
        """After the last epoch, evaluate the test set, once."""
        epochs = self.position.epochs
        if self.over() and epochs[-1].test_accuracy is None:
            seconds = epochs[-1].evaluation_seconds
            found = self.evaluate(self.test, "test set", last=True)
            found["evaluation_seconds"] += seconds
            epochs[-1] = replace(epochs[-1], **found)
            self.note()
            self.draft.say(f"test accuracy {100 * found['test_accuracy']:.2f}%")

    def train_epoch(self, loader: Loader | None) -> None:
        """One epoch, and the evaluation after it."""
        number = len(self.position.epochs) - 1
        steps = self.epochs.steps(number)
        checked, read_back = self.checks.choose(number, steps, made=self.position.steps)
        alone = sorted({self.checks.step_updates.starts_at(checked, steps), checked})
        totals, done = Totals(), 0
        feed = self.open_epoch(loader, number, totals) if loader else None
        while done < len(steps):
            chunk = steps[done : self.chunks.end(done, alone)]
            if done in alone[:-1]:
                self.checks.step_updates.hold(steps[done])
            if done == checked:
                self.checks.before_step(steps[checked])
            placed = islice(feed, len(chunk)) if feed else self.resident(chunk)
            kept = Kept(read_back)
            self.checks.chunks.before(chunk, is_usual=done not in alone)
            took, wait, losses = self.train_chunk(chunk, self.checks.chunks.passing(kept.passing(placed, at=done)))
            if len(losses) != len(chunk):
                raise RuntimeError(f"the input pipeline ended after {done + len(losses)} of {len(steps)} steps")
            totals.first_step_seconds += took if not self.chunks.steps else 0.0
            totals.seconds, totals.wait_seconds = totals.seconds + took, totals.wait_seconds + wait
            self.chunks.add(took, len(chunk), counts=done not in alone)
            self.checks.chunks.after(losses, seconds=took)
            self.read_losses(chunk, losses, totals, done=done, steps=len(steps))
            if self.checks.chunks.replay(chunk):
                self.checks.note()
            self.checks.samples.took(kept)
            if done == checked:
                loss = self.program.loss(losses[0])
                self.checks.after_step(steps[checked], loss, number=number, made=self.position.steps + checked)
            done += len(chunk)
        self.checks.compare_samples(number, steps)
        self.finish_epoch(
            steps=len(steps),
            samples=totals.samples,
            seconds=totals.seconds,
            first_step_seconds=totals.first_step_seconds,
            wait_seconds=totals.wait_seconds,
            report_seconds=totals.report_seconds,
            train_loss=totals.mean_loss,
        )

    def open_epoch(self, loader: Loader, number: int, totals: Totals) -> Iterator[Any]:
        """The input of an epoch. What a loader does before its first batch is asked for is time that the training waits
        for input. (Those of the suite do nothing: their time is that of the first chunk.)"""
        self.agree.barrier()
        start = time.perf_counter()
        feed = loader.epoch(number)
        self.agree.barrier()
        totals.seconds = totals.wait_seconds = time.perf_counter() - start
        return feed

    def read_losses(
        self, chunk: Sequence[Step], losses: Sequence[Any], totals: Totals, *, done: int, steps: int
    ) -> None:
        """Read the losses of a chunk, check them, and report progress. `done`: the epoch's steps before it."""
        before = time.perf_counter()
        for index, (step, handle) in enumerate(zip(chunk, losses, strict=True)):
            loss = self.program.loss(handle)
            self.check(loss, self.position.steps + done + index)
            totals.loss += loss * len(step.chosen)
            totals.samples += len(step.chosen)
        self.report(done + len(chunk), steps=steps, loss=totals.mean_loss, rate=totals.rate)
        totals.report_seconds += time.perf_counter() - before

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
        seconds = left * self.chunks.seconds / self.chunks.steps
        detail = f"{seconds:.0f} s left, loss {loss:.4g}, {rate:,.0f} {self.unit}s/s"
        self.draft.progress(f"epoch {epoch}/{self.training.epochs}, step", done, steps, detail=detail)

    def finish_epoch(self, *, samples: int, **found: Any) -> None:
        """Evaluate, and record the epoch."""
        epochs = self.position.epochs
        ends = len(epochs) >= self.training.epochs
        judged = (self.validation, "validation samples") if len(self.validation) else (self.test, "test set")
        found |= self.evaluate(*judged, last=ends)
        whole = Epoch(number=len(epochs), samples=samples + (epochs[-1].samples if epochs else 0), **found)
        epochs.append(whole)
        self.note()
        self.checks.note()
        self.draft.say(in_words(whole, of=self.training.epochs))

    def note(self) -> None:
        """Note the epochs and the first losses so far."""
        self.draft.note_training(losses=tuple(self.position.losses), epochs=tuple(self.position.epochs))

    def evaluate(self, samples: Batches, what: str, *, last: bool = False) -> dict[str, float]:
        """Loss and accuracy as fields of an Epoch. `last`: no other evaluation of these samples follows.

        Raises Diverged for a loss that has exploded.
        """
        epochs = self.position.epochs
        state = self.checks.state_digests()
        start = time.perf_counter()
        batches = evaluate_samples(self.context, samples)
        seconds = time.perf_counter() - start
        loss, accuracy = mean(batches)
        first = (epochs[0].validation_loss or epochs[0].test_loss or loss) if epochs else loss
        check_loss([first, loss], self.position.steps)
        self.checks.compare_state(state, what=what)
        of = "test" if what == "test set" else "validation"
        # rank 0's value on all ranks: it decides whether training goes on
        agreed = self.agree.on(f"{of}{len(epochs)}", accuracy)
        last = last or (self.training.stop_at_target and agreed >= self.training.target_accuracy)
        self.checks.evaluated(samples, batches, what=what, last=last)
        return {f"{of}_loss": loss, f"{of}_accuracy": agreed, "evaluation_seconds": seconds}
