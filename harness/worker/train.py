"""The training phase: from initial weights or a checkpoint to the last epoch."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np

from harness.contract import Loader
from harness.datasets import Batches
from harness.worker import memory
from harness.worker.checkpointing import resume
from harness.worker.context import Context
from harness.worker.execution import note_execution
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
    del loader  # which has the program
    note_execution(context, context.program, (), fed=spec.training.input)
    memory.note_peak(context.runtime, context.job.world, context.draft)
    trainer.check_end()


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
