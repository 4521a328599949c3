"""Flags of other programs that people type here, and what to use instead."""

from __future__ import annotations

from dataclasses import fields

from harness.cli.arguments import TrainArguments, flag_of

RATE = "the learning rate belongs to the optimizer: --optimizer sgd:learning_rate=0.1"
SCHEDULE = "it belongs to the optimizer: --optimizer sgd:schedule=step"
BATCH = "use --global-batch, the samples of one step over all devices"
EPOCHS = "`train` has --epochs; the other commands train no epochs, but time blocks of steps"
DEVICES = "use --devices; strategies with one process per device start as many processes by themselves"
SAVING = "use `train --save-every N`, which also saves after the last epoch"
ACCURACY = "progress is shown without a flag, and `train` shows the accuracy after each epoch"
BACKEND = "PyTorch uses nccl on GPUs and gloo on CPU devices; TensorFlow's is --option communication=nccl"
INSTEAD = {
    **dict.fromkeys(("lr", "learning-rate"), RATE),
    **dict.fromkeys(("batch-size", "batch", "bs", "train-batch-size"), BATCH),
    "test-batch-size": "evaluation takes --global-batch samples at a time, as training does",
    "momentum": "it belongs to the optimizer: --optimizer sgd:momentum=0.9",
    **dict.fromkeys(("weight-decay", "wd"), "it belongs to the optimizer: --optimizer sgd:weight_decay=0.0001"),
    **dict.fromkeys(("scheduler", "lr-scheduler", "gamma"), SCHEDULE),
    **dict.fromkeys(("epochs", "num-epochs", "n-epochs", "steps", "num-steps", "iterations"), EPOCHS),
    **dict.fromkeys(("log-interval", "print-freq", "log-every", "verbose"), ACCURACY),
    **dict.fromkeys(("save-model", "save", "checkpoint", "save-dir"), SAVING),
    **dict.fromkeys(("gpus", "gpu", "num-gpus", "ngpus", "world-size", "nproc-per-node", "num-devices"), DEVICES),
    **dict.fromkeys(("no-cuda", "cpu", "cuda", "device"), "use --platform cpu, or --platform gpu"),
    **dict.fromkeys(("backend", "dist-backend"), BACKEND),
    **dict.fromkeys(("fp16", "amp", "bf16", "mixed-precision", "dtype"), "use --precision bf16"),
    **dict.fromkeys(("workers", "num-workers"), "`train --input loader` has --num-workers"),
    **dict.fromkeys(("model", "arch", "network"), "use --workload; `list workloads` names them"),
    **dict.fromkeys(("dataset", "data-dir", "data-path"), "use --data, a folder with MNIST's or CIFAR-10's files"),
}
"""By the name of a flag without dashes before it: what to use instead."""


def instead_of(flag: str) -> str:
    """What to use instead of a flag that a command does not have, or "". `flag`: as typed, maybe with a value."""
    name = flag.partition("=")[0].lstrip("-").replace("_", "-")
    of_train = {flag_of(item.name) for item in fields(TrainArguments)}
    return INSTEAD.get(name) or ("only `train` has this flag" if name in of_train else "")
