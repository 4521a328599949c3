"""Which samples the input pipeline delivered: read from the batches on the devices, and not from the plan.

A sample is known by its content: the CRC-32 of its target and of its inputs in the order in which the workload has
them. So a sample with the label of another is not that sample, and neither is an image whose axes are exchanged.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from harness.layers import Shape

Fingerprints = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """What a sample of a workload consists of: the shape of its inputs, and how many numbers its target has."""

    input_shape: Shape
    target_size: int = 1

    @property
    def padding(self) -> int:
        """The fingerprint of a row of padding: zeros without a target."""
        return zlib.crc32(np.zeros(math.prod(self.input_shape), np.float32).tobytes())


def fingerprints(x: np.ndarray, y: np.ndarray, *, form: Form) -> Fingerprints:
    """One number for each sample in `x`, which may be NHWC or NCHW. Both arrays may have the same further leading axes.

    Targets may be padded (harness.datasets.padded): then a row whose factor is 0 has no target.
    """
    rows = in_order(x, form.input_shape)
    true = np.ones(len(rows), bool)
    if not len(rows) or y.size % len(rows):  # targets of other samples
        targets = np.empty((len(rows), 0), np.float32)
    else:
        targets = y.reshape(len(rows), -1).astype(np.float32)
    if targets.shape[1] == form.target_size + 1:
        targets, true = np.ascontiguousarray(targets[:, :-1]), targets[:, -1] != 0
    starts = [zlib.crc32(target.tobytes()) if has else 0 for target, has in zip(targets, true, strict=True)]
    return tuple(zlib.crc32(row.tobytes(), start) for row, start in zip(rows, starts, strict=True))


def in_order(x: np.ndarray, input_shape: Shape) -> np.ndarray:
    """A row for each sample of `x`, with its numbers in the order of `input_shape`.

    The shape tells whether images are NHWC or NCHW. It does not if all three axes are equally long: then the axes are
    rotated to the smallest of the three rows that this makes, which is the same for both layouts.
    """
    x, size = x.astype(np.float32), math.prod(input_shape)
    if len(input_shape) != 3 or x.shape[-3:] not in (input_shape, _channels_first(input_shape)):
        return x.reshape(-1, size)
    images = x.reshape(-1, *x.shape[-3:])
    if input_shape != _channels_first(input_shape):
        channels_last = x.shape[-3:] == input_shape
        return (images if channels_last else images.transpose(0, 2, 3, 1)).reshape(-1, size)
    rotated = (images, images.transpose(0, 2, 3, 1), images.transpose(0, 3, 1, 2))
    alike = zip(*(each.reshape(-1, size) for each in rotated), strict=True)
    return np.array([min(rows, key=bytes) for rows in alike], np.float32).reshape(-1, size)


def _channels_first(input_shape: Shape) -> Shape:
    return (input_shape[-1], *input_shape[:-1])


def read_back(placed: Any, *, form: Form) -> Fingerprints:
    """The samples of a placed batch that this process holds, padding included."""
    arrays = (
        pair
        for x, y in zip(parts(placed, "x"), parts(placed, "y"), strict=True)
        for pair in zip(_on_host(x), _on_host(y), strict=True)
    )
    return tuple(number for x, y in arrays for number in fingerprints(x, y, form=form))


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
    elif hasattr(array, "detach"):
        tensor = array.detach().cpu()
        yield np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)  # NumPy has no bfloat16
    else:
        yield np.asarray(array)


def wrong(expected: Fingerprints, taken: Sequence[Fingerprints], *, padding: int) -> str:
    """How the samples that all ranks took in a step differ from the step's samples, or "".

    All samples must have been taken, each equally often (in a pipeline every rank takes the whole batch), and nothing
    else but padding. `padding`: the fingerprint of a row of padding.
    """
    of_all = Counter(number for rank in taken for number in rank)
    right = Counter(expected)
    missing = sum(1 for number in right if not of_all[number])
    strange = sum(1 for number in of_all if number not in right and number != padding)
    if missing or strange:
        return f"{missing} of its {len(expected)} samples were not taken, and {strange} others were"
    times = {of_all[number] / count for number, count in right.items()}
    return "" if len(times) == 1 and min(times) >= 1 else "some of its samples were taken more often than others"
