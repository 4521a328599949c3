"""What a data folder holds, and whether it is complete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from harness.datasets import DataError, cifar10, mnist
from harness.spec.arrays import Arrays

SOURCES = f"MNIST is at {mnist.SOURCE}, CIFAR-10 at {cifar10.SOURCE}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One part of a data set. `problem` is "" if it is complete."""

    dataset: str
    split: Literal["train", "test"]
    shape: str = "-"
    classes: str = "-"
    problem: str = ""


def check(folder: Path) -> list[Finding]:
    """Read all data sets in a folder, and check sizes, MD5 sums, shapes and labels.

    Raises DataError for a folder without a known data set.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; name one with MNIST's IDX files or with CIFAR-10; {SOURCES}")
    found = []
    if any(
        (folder / f"{name}{end}").exists()
        for names in mnist.IDX_FILES.values()
        for name in names
        for end in ("", ".gz")
    ):
        found += [
            _finding("MNIST (IDX)", split, lambda split: mnist.from_idx(folder, split)) for split in ("train", "test")
        ]
    form = cifar10.form_of(folder)
    if form is not None:
        name = f"CIFAR-10 ({form})"
        found += [_finding(name, split, lambda split: cifar10.load(folder, split)) for split in ("train", "test")]
    if not found:
        raise DataError(f"{folder}: holds neither MNIST's IDX files nor CIFAR-10 as .bin or .png files; {SOURCES}")
    return found


def _finding(dataset: str, split, load) -> Finding:
    try:
        arrays: Arrays = load(split)
    except DataError as error:
        return Finding(dataset=dataset, split=split, problem=str(error))
    counts = np.bincount(arrays["y"])
    spread = f"{counts.min():,} to {counts.max():,}" if counts.min() < counts.max() else f"{counts.min():,}"
    shape = " × ".join(f"{length:,}" for length in arrays["x"].shape)
    return Finding(dataset=dataset, split=split, shape=shape, classes=f"{len(counts)} of {spread}")
