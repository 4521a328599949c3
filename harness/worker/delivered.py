"""Which samples the input pipeline delivered: read from the batches on the devices, and not from the plan.

A sample is known by its content, whatever the layout: the CRC-32 of its sorted values.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

Fingerprints = tuple[int, ...]


def fingerprints(x: np.ndarray, *, input_shape: Sequence[int]) -> Fingerprints:
    """One number for each sample in `x`, which may be NHWC or NCHW, and may have further leading axes."""
    rows = x.reshape(-1, int(np.prod(input_shape))).astype(np.float32)
    return tuple(zlib.crc32(row.tobytes()) for row in np.sort(rows, axis=1))


def read_back(placed: Any, *, input_shape: Sequence[int]) -> Fingerprints:
    """The samples of a placed batch that this process holds, padding included."""
    arrays = (array for x in parts(placed, "x") for array in _on_host(x))
    return tuple(number for array in arrays for number in fingerprints(array, input_shape=input_shape))


def label_sum(targets: Sequence[Any]) -> int:
    """A number for the labels in these targets, whatever their order: that of two batches together is the sum of both.

    Padded targets (harness.datasets.padded) are rows of a label and a factor, which is 0 for padding.
    """
    total = 0
    for target in targets:
        for array in _on_host(target):
            if array.dtype.kind == "f":
                rows = array.reshape(-1, 2)
                array = rows[rows[:, 1] != 0, 0].astype(np.int64)
            for label, count in zip(*np.unique(array, return_counts=True), strict=True):
                total += zlib.crc32(str(int(label)).encode()) * int(count)
    return total


def is_multiple(taken: int, *, of: int, at_most: int) -> bool:
    """Whether the ranks took all labels of a step once, or all of them several times, as in a pipeline."""
    return any(taken == times * of for times in range(1, at_most + 1))


def parts(placed: Any, name: Literal["x", "y"]) -> Iterator[Any]:
    """The inputs or the targets in a placed batch, as they lie.

    The batch is (x, y) or a nest of such pairs, or None if another rank placed it.
    """
    if placed is None:
        return
    if isinstance(placed, Mapping):
        yield placed[name]
    elif len(placed) == 2 and all(_is_array(item) for item in placed):
        yield placed[0 if name == "x" else 1]
    else:
        for item in placed:
            yield from parts(item, name)


def _is_array(item: Any) -> bool:
    return not isinstance(item, tuple | list)


def _on_host(array: Any) -> Iterator[np.ndarray]:
    """Copies of an array on the host. There are several if it has a value for each replica (tf.distribute), or if other
    processes have parts of it (JAX): then those of this process's parts."""
    values = getattr(array, "values", None)
    if isinstance(values, tuple):
        for value in values:
            yield from _on_host(value)
    elif not getattr(array, "is_fully_addressable", True):
        for part in array.addressable_shards:
            yield np.asarray(part.data)
    else:
        yield np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def wrong(expected: Fingerprints, taken: Sequence[Fingerprints], *, padding: int) -> str:
    """How the samples that all ranks took in a step differ from the step's samples, or "".

    All samples must have been taken, each equally often (in a pipeline every rank takes the whole batch), and nothing
    else but padding. `padding`: the fingerprint of a row of zeros.
    """
    of_all = Counter(number for rank in taken for number in rank)
    right = Counter(expected)
    missing = sum(1 for number in right if not of_all[number])
    strange = sum(1 for number in of_all if number not in right and number != padding)
    if missing or strange:
        return f"{missing} of its {len(expected)} samples were not taken, and {strange} others were"
    times = {of_all[number] / count for number, count in right.items()}
    return "" if len(times) == 1 and min(times) >= 1 else "some of its samples were taken more often than others"
