"""The training phase: a training from its weights or its checkpoint to its last epoch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import checkpoints
from harness.contract import Job, Program
from harness.datasets import Batches
from harness.spec import TrialSpec
from harness.worker.agreement import Agreement
from harness.worker.trainer import Position, Trainer


def train(
    program: Program,
    spec: TrialSpec,
    job: Job,
    batches: Batches,
    order: dict[str, Any],
    *,
    agree: Agreement,
    answer: dict[str, Any],
    progress: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Train, from a checkpoint if there is one. `save`: writes the answer so far.

    Raises ValueError for a checkpoint of a training on other samples.
    """
    assert spec.training is not None
    position = None
    if order["checkpoint"]:
        state, about = checkpoints.read(Path(order["checkpoint"]))
        if about["samples"] != batches.fingerprint():
            raise ValueError("the checkpoint was trained on other samples: give the same --data as before")
        program.load_state(state)
        position = Position(**about["position"])
    elif order["init_from"]:
        shapes = {name: array.shape for name, array in job.params.items()}
        program.load_state(checkpoints.weights(Path(order["init_from"]), shapes))
    with np.load(order["test"], allow_pickle=False) as held:
        test = Batches(dict(held), seed=spec.seed, transform=job.workload.transform)
    trainer = Trainer(
        program,
        spec,
        train=batches,
        test=test,
        unit=job.workload.unit,
        agree=agree,
        progress=progress,
        note=lambda: save(answer),
        position=position,
    )
    folder = Path(order["run_folder"]) if spec.training.save_every else None
    if spec.training.input == "resident":
        trainer.run(loader=None, folder=folder, answer=answer)
        return
    make_loader = importlib.import_module(f"{order['package']}.loader").make_loader
    loader = make_loader(program, job, trainer.epochs, workers=spec.training.workers)
    try:
        trainer.run(loader=loader, folder=folder, answer=answer)
    finally:
        loader.close()
