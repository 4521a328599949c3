"""Which samples a training took: the labels of every step, and the inputs with their targets of some steps."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.datasets import Step
from harness.spec import Check
from harness.spec.checks import finding
from harness.worker import delivered
from harness.worker.context import Context
from harness.worker.delivered import Fingerprints, Form

READ_BYTES = 2**21  # of inputs that are read back from the devices in an epoch, in whole steps, but at least two steps


@dataclass
class Kept:
    """What is kept of the batches of a chunk, by their step: the targets of all, and the `wanted` batches whole."""

    wanted: set[int]
    batches: dict[int, Any] = field(default_factory=dict)
    targets: dict[int, list[Any]] = field(default_factory=dict)

    def passing(self, placed: Iterator[Any], *, at: int) -> Iterator[Any]:
        """The placed batches as they come. `at`: the first one's step."""
        for step, batch in enumerate(placed, start=at):
            self.targets[step] = list(delivered.parts(batch, "y"))
            if step in self.wanted:
                self.batches[step] = batch
            yield batch


class SampleCheck:
    """What this rank took in an epoch. All ranks call the same methods in the same order."""

    def __init__(self, context: Context) -> None:
        self.context = context
        target = context.batches.targets(np.zeros(1, np.int64))
        self.form = Form(context.job.workload.input_shape, target.size)
        self.has_labels = context.job.workload.loss != "mse"
        self.digests: list[int] = []  # of each epoch
        self.inputs: dict[int, Fingerprints] = {}  # of this epoch, by step
        self.labels: dict[int, int] = {}

    def choose(self, steps: int, rng: np.random.Generator) -> set[int]:
        """For an epoch of so many steps: those whose inputs are read back."""
        self.inputs, self.labels = {}, {}
        sample = 4 * math.prod(self.form.input_shape) * self.context.spec.global_batch
        count = min(steps, max(2, READ_BYTES // sample))
        return set(rng.choice(steps, count, replace=False).tolist())

    def took(self, kept: Kept) -> None:
        """This rank trained on these batches."""
        for step, placed in kept.batches.items():
            self.inputs[step] = delivered.read_back(placed, form=self.form)
        if self.has_labels:
            self.labels |= {step: delivered.label_sum(targets) for step, targets in kept.targets.items()}

    def compare(self, number: int, steps: Sequence[Step]) -> list[Check]:
        """Compare what all ranks took in an epoch with the samples of its steps. The result is on rank 0."""
        of_ranks = self.context.agree.gather(
            f"samples{number}",
            {"inputs": {str(step): list(prints) for step, prints in self.inputs.items()}, "labels": self.labels},
        )
        gather, dtype = self.context.batches.gather, self.context.dtype
        padding, digest, wrong = self.form.padding, 0, ""
        for at in sorted(self.inputs):
            samples = gather(steps[at].chosen, dtype=dtype)
            expected = delivered.fingerprints(samples["x"], samples["y"], form=self.form)
            numbers = dict(zip(expected, steps[at].chosen.tolist(), strict=True))
            own = [numbers.get(print_, -1) for print_ in self.inputs[at] if print_ != padding]
            digest = zlib.crc32(np.array(own, np.int64).tobytes(), digest)
            if of_ranks and not wrong:
                of_step = [tuple(rank["inputs"][str(at)]) for rank in of_ranks]
                said = delivered.wrong(expected, of_step, padding=padding)
                wrong = said and f"in epoch {number + 1}, step {at}: {said}"
        self.digests.append(digest)
        if not of_ranks:
            return []
        for at in sorted(self.labels) if not wrong else ():
            right = delivered.label_sum([self.context.batches.targets(steps[at].chosen)])
            taken = sum(rank["labels"][str(at)] for rank in of_ranks)
            if not delivered.is_multiple(taken, of=right, at_most=len(of_ranks)):
                wrong = f"in epoch {number + 1}, step {at}: its labels are not those of its samples"
                break
        return [finding("samples", wrong)]
