"""Which samples make up step k: the same for every framework, strategy and device count.

Where they come from is in mnist.py and cifar10.py; check.py says what a folder holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from harness.layers import Arrays


class DataError(ValueError):
    """The data that was asked for is not there or not what it should be. The message is for the user."""


def split_arrays(arrays: Arrays, split: Literal["train", "test"], *, test: int, seed: int) -> Arrays:
    """The training or the test part of a set: a seeded permutation whose last `test` samples are the test part."""
    order = np.random.default_rng([seed, 0x5B117]).permutation(len(arrays["y"]))
    chosen = order[:-test] if split == "train" else order[-test:]
    return {name: array[chosen] for name, array in arrays.items()}


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


class Batches:
    """Step k's global batch, the same whoever asks: seeded permutations of the samples, one after another."""

    def __init__(self, arrays: Arrays, *, seed: int, transform: Callable[[np.ndarray], np.ndarray]) -> None:
        self._arrays, self._seed, self._transform = arrays, seed, transform

    def indices(self, step: int, global_batch: int) -> np.ndarray:
        """Which samples step `step` takes, (global_batch,): the next ones in an endless row of shuffled epochs."""
        count = len(self._arrays["y"])
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        return np.array([_permutation(self._seed, int(p // count), count)[p % count] for p in positions])

    def batch(self, step: int, global_batch: int, *, dtype: type = np.float64) -> Arrays:
        """{"x": inputs, "y": targets} of one step, both with `global_batch` rows; what is not a label is `dtype`."""
        chosen = self.indices(step, global_batch)
        x, y = self._transform(self._arrays["x"][chosen]), self._arrays["y"][chosen]
        return {"x": x.astype(dtype, copy=False), "y": y if y.dtype.kind == "i" else y.astype(dtype, copy=False)}
