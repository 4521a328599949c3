"""The training phase: from initial weights or a checkpoint to the last epoch."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np

from harness import checkpoints
from harness.contract import Loader
from harness.datasets import Batches
from harness.spec import codec
from harness.worker.context import Context
from harness.worker.execution import note_execution
from harness.worker.loading import load
from harness.worker.position import Position
from harness.worker.training_checks import TrainingChecks
from harness.worker.training_loop import Trainer


def train(context: Context) -> None:
    """Train, from a checkpoint if there is one. Raises ValueError if the checkpoint saw other samples."""
    spec = context.spec
    assert spec.training is not None
    samples = {
        "validation": samples_of(context, context.order.validation),
        "test": samples_of(context, context.order.test),
    }
    trainer = Trainer(context, **samples, position=resume(context), checks=TrainingChecks(context))
    folder = context.order.run_folder if spec.training.save_every else None
    loader = None if spec.training.input == "resident" else open_loader(context, trainer)
    try:
        trainer.run(loader=loader, folder=folder)
    finally:
        if loader is not None:
            loader.close()
    note_execution(context, context.program, (), fed=spec.training.input)


def resume(context: Context) -> Position:
    """Load the checkpoint or weights that the order names into the program. Returns how far its training has got."""
    order = context.order
    if order.checkpoint is not None:
        state, about = checkpoints.read(order.checkpoint)
        if about["samples"] != context.batches.digest():
            raise ValueError("the checkpoint was trained on other samples: give the same --data as before")
        load(context, state)
        return codec.decode(Position, about["position"])
    if order.init_from is not None:
        shapes = {name: array.shape for name, array in context.job.params.items()}
        load(context, checkpoints.weights(order.init_from, shapes))
    return Position()


def samples_of(context: Context, file: Path | None) -> Batches:
    """The samples in one of the order's files."""
    assert file is not None
    with np.load(file, allow_pickle=False) as held:
        return Batches(dict(held), seed=context.spec.seed, transform=context.job.workload.transform)


def open_loader(context: Context, trainer: Trainer) -> Loader:
    """The framework's own input pipeline over this rank's samples."""
    assert context.spec.training is not None
    make_loader = importlib.import_module(f"{context.order.package}.loader").make_loader
    return make_loader(context.program, context.job, trainer.epochs, workers=context.spec.training.workers)
