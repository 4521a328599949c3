"""Evaluation of samples by a program: every sample once, shared by all devices, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.datasets import Batches, evaluation_batches
from harness.spec import Epoch
from harness.worker.context import Context


@dataclass(frozen=True)
class EvaluatedBatch:
    """What the program said about a batch: mean loss and accuracy over its true samples."""

    chosen: np.ndarray  # their numbers
    loss: float
    accuracy: float

    @property
    def count(self) -> int:
        """True samples."""
        return len(self.chosen)


def evaluate_samples(context: Context, samples: Batches, *, first: int | None = None) -> list[EvaluatedBatch]:
    """Evaluate all samples, or the `first` ones of the first batch alone."""
    found: list[EvaluatedBatch] = []
    seen = 0
    for count, batch in evaluation_batches(samples, context.spec.global_batch, dtype=context.dtype, first=first):
        context.draft.progress("evaluating, sample", seen, len(samples) if first is None else first)
        loss, accuracy = context.program.evaluate(context.program.place(batch))
        found.append(EvaluatedBatch(np.arange(seen, seen + count), loss, accuracy))
        seen += count
    return found


def mean(batches: Sequence[EvaluatedBatch]) -> tuple[float, float]:
    """Loss and accuracy over the samples of all batches."""
    count = sum(batch.count for batch in batches)
    # a whole number again, although a float32 mean is rounded
    right = sum(round(batch.count * batch.accuracy) for batch in batches)
    return sum(batch.count * batch.loss for batch in batches) / count, right / count


def in_words(epoch: Epoch, *, of: int) -> str:
    """How good the network is after an epoch. `of`: epochs in all."""
    loss = "" if epoch.train_loss is None else f", training loss {epoch.train_loss:.4g}"
    samples = "test" if epoch.validation_accuracy is None else "validation"
    return f"epoch {epoch.number}/{of}: {samples} accuracy {100 * epoch.judged_accuracy:.2f}%{loss}"
