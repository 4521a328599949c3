"""Checkpoints: a program's state and the progress of its training in one safetensors file. Nothing is ever unpickled.

Tensors are named as in Program.state. "model/..." and "running/..." mean the same to every framework and strategy;
"optimizer/..." belongs to the strategy that wrote it. The file's metadata holds the progress.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError

FOLDER = "checkpoints"  # within a run's folder
EVERYWHERE = ("model/", "running/")  # what any framework and strategy can load
FORMAT = "likeforlike 1"


def path_of(folder: Path, cell: str, launch: int, epoch: int) -> Path:
    """The path of the checkpoint after an epoch, in a run's folder."""
    return folder / FOLDER / f"{cell}-launch{launch}" / f"epoch-{epoch:06}.safetensors"


def save(path: Path, state: Arrays, about: Mapping[str, Any]) -> None:
    """Write a state, and `about` as JSON. A reader sees the whole file or none of it."""
    from safetensors.numpy import save_file  # imported here because other phases' interpreters may not have it

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # that of a process which was killed, or a link
    # not np.ascontiguousarray, which would make 0-d arrays 1-d
    whole = {name: np.array(array, order="C") for name, array in state.items()}
    save_file(whole, temporary, metadata={"format": FORMAT, "about": json.dumps(about)})
    _to_disk(temporary)
    temporary.replace(path)
    _to_disk(path.parent)


def read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """A state and its `about`. Raises UsageError for a file that is not a complete checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UsageError(f"{path}: is not a checkpoint of this suite; its format is {metadata.get('format')!r}")
            about = json.loads(metadata["about"])
            if not isinstance(about, dict):
                raise UsageError(f"{path}: cannot be read as a checkpoint: it does not say what it is about")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path}: cannot be read as a checkpoint: {error}") from error


def newest(folder: Path, cell: str, launch: int) -> tuple[Path | None, list[str]]:
    """The last checkpoint of a trial in a run's folder from which it can go on, and what is wrong with later ones."""
    wrong = []
    for path in sorted(path_of(folder, cell, launch, 0).parent.glob("epoch-*.safetensors"), reverse=True):
        try:
            state, _ = read(path)
        except UsageError as error:
            wrong.append(str(error))
            continue
        if not (name := _not_finite(state)):
            return path, wrong
        wrong.append(f"{path}: {name} is not finite")
    return None, wrong


def _not_finite(state: Arrays) -> str:
    """The first array with a number that is not finite, or ""."""
    return next((name for name, array in state.items() if not np.all(np.isfinite(array))), "")


def find(place: Path) -> Path:
    """The checkpoint that --init-from names: a file, or the newest one in a folder with checkpoints of one trial.

    Raises UsageError if there is no checkpoint, or if there are several trials.
    """
    if place.is_file():
        return place
    found = sorted(place.rglob("epoch-*.safetensors"))
    if not found:
        raise UsageError(f"--init-from {place}: has no checkpoint; `train --save-every N` writes them")
    trials = sorted({path.parent for path in found})
    if len(trials) > 1:
        names = ", ".join(str(trial) for trial in trials[:4]) + (", ..." if len(trials) > 4 else "")
        raise UsageError(f"--init-from {place}: holds checkpoints of {len(trials)} trials; name one of {names}")
    return found[-1]


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """The part of a checkpoint that any program of the workload can load.

    `shapes`: the shapes of the workload's parameters. Raises UsageError for a checkpoint of another network.
    """
    state, _ = read(path)
    model = {name.removeprefix("model/"): a.shape for name, a in state.items() if name.startswith("model/")}
    for name in sorted(model.keys() | shapes.keys()):
        if model.get(name) != shapes.get(name):
            has, needs = model.get(name), shapes.get(name)
            problem = f"{name} has the shape {has}, but must have {needs}"
            if has is None:
                problem = f"it lacks {name}, which the workload has"
            elif needs is None:
                problem = f"it has {name}, which the workload lacks"
            raise UsageError(f"--init-from {path}: is of another network: {problem}")
    for name, array in state.items():
        if name.startswith("model/") and array.dtype.kind != "f":
            raise UsageError(f"--init-from {path}: {name} holds {array.dtype}, but must hold floating-point numbers")
    if name := _not_finite(state):
        raise UsageError(f"--init-from {path}: {name} is not finite, so that training had diverged")
    return {name: array for name, array in state.items() if name.startswith(EVERYWHERE)}
