"""The flags that commands share. The text below each flag is its help."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from harness.checkpoints import find
from harness.cli.argument_values import (
    WholeNumber,
    check_not_empty,
    compile_cache,
    integer,
    interpreters,
    names,
    pairs,
    split,
)
from harness.planning.run_request import Request, TrainingRequest

TIMEOUT_SECONDS, TRAINING_TIMEOUT_SECONDS = 600.0, 86400.0
HIDDEN_DEFAULT = Parameter(show_default=False)


@dataclass(frozen=True, kw_only=True)
class CellArguments:
    """Which cells to run, and how they train."""

    framework: list[str] = field(default_factory=lambda: ["all"])
    "torch, jax, tf or all; several as a comma-separated list."
    workload: list[str] = field(default_factory=lambda: ["mnist_cnn"])
    "Workloads, or all: see `list workloads`."
    strategy: list[str] = field(default_factory=lambda: ["all"])
    "Parallel strategies, or all: see `list strategies`."
    devices: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "How many devices, e.g. 2 or 1,2,4. Default: all visible GPUs; without GPUs, 2 virtual CPU devices."
    global_batch: WholeNumber | None = None
    "Samples per step over all devices. Default: the workload's own."
    track: list[str] = field(default_factory=lambda: ["defaults"])
    "defaults: each framework without optional settings. tuned: with the best known ones. defaults,tuned runs both."
    setting: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "Turns a setting on or off, whatever the track, e.g. compile=false. Can be repeated. See `list settings`."
    optimizer: str | None = None
    "sgd, adam, adamw or adagrad, as NAME or NAME:learning_rate=0.1,schedule=cosine,... Default: the workload's own."
    learning_rate_scaling: str = "none"
    (
        "linear multiplies the learning rate by the number of devices under data-parallel strategies. Use it with a "
        "global batch that grows with the devices."
    )
    accumulation_steps: WholeNumber = 1
    (
        "How many parts to cut each batch into under data-parallel strategies. Gradients are accumulated over the "
        "parts and synchronized once."
    )
    batch_norm: str | None = None
    "Which samples share BatchNorm statistics: per_device or global. Default: each strategy's own."
    preset: str | None = None
    "smoke (1 launch), standard (5) or paper (10). Default: smoke on CPU devices, standard on GPUs."
    option: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "An option of a strategy, e.g. split_size=20 or cut=layer3. Can be repeated."
    compile_cache: Annotated[str, HIDDEN_DEFAULT] = ""
    (
        "A folder in which frameworks keep compiled code, also for later runs. none: every launch compiles again. "
        "Default: the launches of one session share a folder, so the first launch of a cell compiles (cold) and the "
        "others reuse its code (warm)."
    )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LaunchArguments:
    """Where cells run, at which size, and how often."""

    platform: str = "auto"
    "auto uses the GPUs if there are any, otherwise the CPU; cpu and gpu force one or the other."
    size: str | None = None
    "The workload's size: see `list workloads`."
    precision: Annotated[str | None, HIDDEN_DEFAULT] = None
    (
        "Precision of the timing phase: fp64, fp32 (without TF32), tf32 or bf16 (mixed). Default: fp32; bf16 with "
        "--track tuned on GPUs. The parity phase is always float64."
    )
    seed: WholeNumber = 0
    "Seed of the initial weights, the batches and the order of launches."
    launches: WholeNumber | None = None
    "How many times to launch each cell, each time in fresh processes. Default: the preset's."
    timeout: float | None = None
    (
        "Seconds that one phase of one trial may take. A phase without progress for half of that, or for 300 seconds "
        "if that is less, counts as hung. Default: 600; one day for train."
    )
    interpreter: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "The Python interpreter for one framework, e.g. tf=/opt/tf/bin/python. Can be repeated."

    def flags(self) -> list[str]:
        """The flags that differ from their defaults, wherever they were given, for others to repeat.

        Without --interpreter, since paths differ between machines.
        """
        return _given(replace(self, interpreter=[]), type(self)())

    def request(self) -> Request:
        """The request that these flags make. Raises UsageError."""
        check_not_empty("--size", self.size)
        check_not_empty("--precision", self.precision)
        return Request(
            platform=self.platform,
            size=self.size,
            precision=self.precision,
            seed=self.seed,
            launches=self.launches,
            timeout_seconds=TIMEOUT_SECONDS if self.timeout is None else self.timeout,
            interpreters=interpreters(split(self.interpreter)),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunArguments(LaunchArguments, CellArguments):
    """What `run`, `train`, `sweep` and `plan` have in common."""

    def request(self) -> Request:
        """The request that these flags make. Raises UsageError."""
        check_not_empty("--batch-norm", self.batch_norm)
        check_not_empty("--preset", self.preset)
        options = pairs(
            "--option", split(self.option), example="split_size=20", if_repeated="; use `sweep` to compare values"
        )
        return replace(
            super().request(),
            frameworks=names("--framework", self.framework),
            workloads=names("--workload", self.workload),
            strategies=names("--strategy", self.strategy),
            devices=tuple(integer("--devices", value) for value in split(self.devices)),
            global_batch=self.global_batch,
            tracks=names("--track", self.track),
            settings=pairs("--setting", split(self.setting), example="compile=false"),
            optimizer=self.optimizer,
            learning_rate_scaling=self.learning_rate_scaling,
            accumulation_steps=self.accumulation_steps,
            batch_norm=self.batch_norm,
            preset=self.preset,
            options={name: (value,) for name, value in options.items()},
            compile_cache=compile_cache(self.compile_cache),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """What `train` has in addition."""

    epochs: WholeNumber | None = None
    (
        "How many epochs to train, or to train at most if --target-accuracy is given. 0 only evaluates --init-from. "
        "Default: the workload's own."
    )
    target_accuracy: float | None = None
    (
        "Stop at this test accuracy, e.g. 0.97. Default: train all epochs, and report the time to the workload's own "
        "target."
    )
    seeds: WholeNumber | None = None
    "How many times to train each cell, with seeds SEED, SEED + 1, ... Default: the preset's number of launches."
    last_batch: str = "exact"
    (
        "What to do with the last batch of an epoch if it is smaller. exact: train on it. pad: train on it at "
        "full size, with padding of weight zero. drop: leave it out."
    )
    input: str = "resident"
    "resident: batches are on the devices before timing. loader: the framework's input pipeline is timed as well."
    num_workers: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    (
        "Processes or threads for --input loader, e.g. 2; or 0,2,4 to compare them. Default: 0, which loads in the "
        "training process."
    )
    save_every: WholeNumber = 0
    "Save a checkpoint every so many epochs, and after the last one. 0 saves none."
    init_from: Path | None = None
    "Start from the weights of a checkpoint, or of a run that has one, from any framework and strategy."

    def flags(self) -> list[str]:
        """The flags that differ from their defaults."""
        return _given(self, TrainArguments())

    def request(self, arguments: RunArguments) -> Request:
        """The request that these flags and the shared ones make. Raises UsageError."""
        workers = tuple(dict.fromkeys(integer("--num-workers", value) for value in split(self.num_workers)))
        training = TrainingRequest(
            epochs=self.epochs,
            target_accuracy=self.target_accuracy,
            seeds=self.seeds,
            last_batch=self.last_batch,
            input=self.input,
            workers=workers or (0,),
            save_every=self.save_every,
            init_from=str(find(self.init_from).absolute()) if self.init_from else "",
        )
        timeout = TRAINING_TIMEOUT_SECONDS if arguments.timeout is None else arguments.timeout
        return replace(arguments.request(), training=training, timeout_seconds=timeout)


RUN_DEFAULTS, LAUNCH_DEFAULTS, TRAIN_DEFAULTS = RunArguments(), LaunchArguments(), TrainArguments()


def _given(arguments: Any, defaults: Any) -> list[str]:
    """Flags and values for the fields of a dataclass that differ from the defaults."""
    given = []
    for item in fields(arguments):
        value = getattr(arguments, item.name)
        if value != getattr(defaults, item.name):
            text = ",".join(split(value)) if isinstance(value, list) else str(value)
            given += [f"--{item.name.replace('_', '-')}", text]
    return given
