"""Which samples make up step k, and the batches of an epoch: the same for every framework, strategy and device count.

mnist.py and cifar10.py read the samples; check.py says what a folder holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from harness.spec import LastBatch, TrialSpec
from harness.spec.arrays import Arrays
from harness.spec.partition import share_rows

VALIDATION_SEED = 0x7A11D


class DataError(ValueError):
    """The requested data are missing or not what they should be. The message is for the user."""


def split_arrays(arrays: Arrays, split: Literal["train", "test"], *, test: int, seed: int) -> Arrays:
    """The training or the test part of a data set. The test part is the last `test` samples of a seeded permutation."""
    order = np.random.default_rng([seed, 0x5B117]).permutation(len(arrays["y"]))
    chosen = order[:-test] if split == "train" else order[-test:]
    return {name: array[chosen] for name, array in arrays.items()}


def held_out(arrays: Arrays, *, share: float) -> tuple[Arrays, Arrays]:
    """The samples that `train` trains on, and those that it holds out to judge the target by: `share` of them.

    Which ones does not depend on the seed of a training.
    """
    count = round(share * len(arrays["y"]))
    if not count:
        return arrays, {name: array[:0] for name, array in arrays.items()}
    return (
        split_arrays(arrays, "train", test=count, seed=VALIDATION_SEED),
        split_arrays(arrays, "test", test=count, seed=VALIDATION_SEED),
    )


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


def digest(arrays: Arrays) -> str:
    """What identifies samples: a SHA-256 of their values, shapes and types."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


class Batches:
    """The global batch of each step, the same for everyone: seeded permutations of the samples, one after another."""

    def __init__(self, arrays: Arrays, *, seed: int, transform: Callable[[np.ndarray], np.ndarray]) -> None:
        self._arrays, self._seed, self._transform = arrays, seed, transform

    def indices(self, step: int, global_batch: int) -> np.ndarray:
        """The samples of a step, (global_batch,): the next ones in an endless sequence of shuffled epochs."""
        count = len(self._arrays["y"])
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        return np.array([_permutation(self._seed, int(p // count), count)[p % count] for p in positions])

    def batch(self, step: int, global_batch: int, *, dtype: DTypeLike = np.float64) -> Arrays:
        """{"x": inputs, "y": targets} of one step, both with `global_batch` rows. All but labels have `dtype`."""
        return self.gather(self.indices(step, global_batch), dtype=dtype)

    def gather(self, chosen: np.ndarray, *, dtype: DTypeLike = np.float64) -> Arrays:
        """{"x": inputs, "y": targets} of the chosen samples. All but labels have `dtype`."""
        x, y = self._transform(self._arrays["x"][chosen]), self._arrays["y"][chosen]
        return {"x": x.astype(dtype, copy=False), "y": y if y.dtype.kind == "i" else y.astype(dtype, copy=False)}

    def targets(self, chosen: np.ndarray) -> np.ndarray:
        """The targets of the chosen samples, as they are stored."""
        return self._arrays["y"][chosen]

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._arrays["y"])

    def digest(self) -> str:
        """What identifies the samples."""
        return digest(self._arrays)

    def permutation(self, epoch: int) -> np.ndarray:
        """The order of the samples in an epoch."""
        return _permutation(self._seed, epoch, len(self))


@dataclass(frozen=True)
class Step:
    """One step of an epoch: the numbers of its true samples, and the rows of its batch. Further rows are padding."""

    chosen: np.ndarray
    rows: int


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The steps of each epoch. The last step may have fewer samples than the others.

    `last_batch` says how that batch is handled. "drop" leaves it out. "exact" and "pad" train on it, with the mean over
    its true samples: "pad" fills it up to a whole batch, "exact" only to a multiple of `unit`, as the strategy needs
    for cutting it. `shuffle`: each epoch has its own order; otherwise the samples keep theirs.
    """

    batches: Batches
    global_batch: int
    last_batch: LastBatch = "exact"
    unit: int = 1
    shuffle: bool = True

    def steps(self, epoch: int) -> list[Step]:
        """All steps of an epoch, in order. Every sample is in one of them, unless it is dropped."""
        count = len(self.batches)
        order = self.batches.permutation(epoch) if self.shuffle else np.arange(count)
        steps = []
        for start in range(0, count, self.global_batch):
            chosen = order[start : start + self.global_batch]
            if len(chosen) == self.global_batch or self.last_batch != "drop":
                steps.append(Step(chosen, self.rows(len(chosen))))
        return steps

    def rows(self, count: int) -> int:
        """The number of rows in a batch with `count` true samples."""
        unit = self.global_batch if self.last_batch == "pad" else self.unit
        return -(-count // unit) * unit

    def gather(
        self, step: Step, *, dtype: DTypeLike = np.float32, rank: int = 0, ranks: int = 1, parts: int = 1
    ) -> list[Arrays]:
        """What `rank` trains on: a batch for each of `parts` accumulation steps, as `partition.shares` cuts it.

        Only these samples are read. Padding is zeros, and its targets are those of `padded`.
        """
        found = []
        for rows in share_rows(step.rows, steps=parts, rank=rank, ranks=ranks):
            own = self.batches.gather(step.chosen[rows.start : rows.stop], dtype=dtype)
            if step.rows != len(step.chosen):
                own = padded(own, rows.stop - rows.start, factor=step.rows / len(step.chosen))
            found.append(own)
        return found

    def whole(self, step: Step, *, dtype: DTypeLike = np.float32) -> Arrays:
        """The global batch of a step."""
        return self.gather(step, dtype=dtype)[0]


def epochs_of(spec: TrialSpec, batches: Batches, *, batch: int) -> Epochs:
    """The epochs of a cell with batches of this size. A cell without `training` has only whole batches."""
    if spec.training is None:
        return Epochs(batches=batches, global_batch=batch, last_batch="drop")
    unit = spec.training.batch_unit or batch
    return Epochs(batches=batches, global_batch=batch, last_batch=spec.training.last_batch, unit=unit)


def parity_steps(spec: TrialSpec, epochs: Epochs, *, normalizes: bool) -> list[Step]:
    """The steps of the parity phase. Before a training, the last one is short, as an epoch's last batch may be.

    `normalizes`: with BatchNorm, it is not padded, because padding would enter the statistics.
    """
    batch, unit = spec.parity_batch, epochs.unit
    steps = [Step(epochs.batches.indices(number, batch), batch) for number in range(spec.parity_steps)]
    if epochs.last_batch != "drop":
        count = batch // 2 + 1
        if normalizes:
            count = batch if epochs.last_batch == "pad" else unit * max(1, batch // unit - 1)
        steps[-1] = Step(steps[-1].chosen[:count], epochs.rows(count))
    return steps


def padded(batch: Arrays, rows: int, *, factor: float | None = None) -> Arrays:
    """The batch followed by rows of zeros, with targets that say which rows are true samples.

    Targets get a last column, by which a sample's loss is multiplied before the mean over all rows. It is `factor` for
    true samples and 0 for padding. The default is rows / true samples, which makes the mean over all rows that over the
    true samples, also where it is computed as a mean over devices' means. Labels become floating-point numbers in the
    first column, which is exact for small integers. Raises ValueError for inputs that are not floating-point numbers,
    whose format would cut the factors, and for targets of more than two axes.
    """
    count, dtype = len(batch["x"]), batch["x"].dtype
    if dtype.kind != "f" or batch["y"].ndim > 2:
        raise ValueError(f"cannot pad inputs of {dtype} with targets of {batch['y'].ndim} axes")
    y = batch["y"].astype(dtype)
    column = np.full((count, 1), rows / count if factor is None else factor, dtype)
    found = {"x": batch["x"], "y": np.concatenate([y[:, None] if y.ndim == 1 else y, column], axis=1)}
    return {
        name: np.concatenate([array, np.zeros((rows - count, *array.shape[1:]), dtype)])
        for name, array in found.items()
    }


def evaluation_batches(
    batches: Batches, global_batch: int, *, dtype: DTypeLike = np.float32, first: int | None = None
) -> Iterator[tuple[int, Arrays]]:
    """All samples, each once and in order, as (number of true samples, batch).

    Every batch has `global_batch` rows and the targets of `padded`, so that one compiled program serves all of them.
    `first`: a single batch with so many of its samples instead.
    """
    epochs = Epochs(batches=batches, global_batch=global_batch, last_batch="pad", shuffle=False)
    for step in epochs.steps(0) if first is None else epochs.steps(0)[:1]:
        chosen = step.chosen[:first]
        yield len(chosen), padded(batches.gather(chosen, dtype=dtype), global_batch)
