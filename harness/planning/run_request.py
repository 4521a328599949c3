"""What a user may ask for, in the user's words. Nothing here is checked yet: `request_checks` does that.

The command line fills these classes (harness/cli/arguments.py). The order of the fields is the order of the flags in
--help, and the text below each field is its help.
"""

# Annotations are not postponed here: cyclopts would look for the names in them in the module of the subclass that it
# fills (harness/cli/arguments.py).

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from harness.spec import MOST_SAMPLES, Input, LastBatch, RunOptions
from harness.spec.limits import MOST_COUNTED, Limits

MAX_LAUNCHES = 1000
MOST_SEED = 4 * 10**18
"""A record holds 64-bit integers, and launches of a training add their number. Nanoseconds since 1970 are allowed."""


@dataclass(frozen=True, kw_only=True)
class CellRequest:
    """Which cells to run, and how they train. None stands for the workload's own value."""

    frameworks: tuple[str, ...] = ("all",)
    "torch, jax, tf or all; several as a comma-separated list."
    workloads: tuple[str, ...] = ("mnist_cnn",)
    "Workloads, or all: see `list workloads`."
    strategies: tuple[str, ...] = ("all",)
    "Parallel strategies, or all: see `list strategies`."
    devices: tuple[int, ...] = ()
    "How many devices, e.g. 2 or 1,2,4. Default: all visible GPUs; without GPUs, 2 virtual CPU devices."
    global_batch: Annotated[int | None, Limits(least=1, most=MOST_SAMPLES)] = None
    "Samples per step over all devices. Default: the workload's own."
    tracks: tuple[str, ...] = ("defaults",)
    (
        "defaults: each framework without optional settings. tuned: with the best known ones. ladder: from no setting "
        "to the tuned track, with more of them on each rung. defaults,tuned runs both."
    )
    settings: Mapping[str, str] = field(default_factory=dict)
    "Turns a setting on or off, whatever the track, e.g. compile=false. Can be repeated. See `list settings`."
    optimizer: str | None = None
    "sgd, adam, adamw or adagrad, as NAME or NAME:learning_rate=0.1,schedule=cosine,... Default: the workload's own."
    learning_rate_scaling: Annotated[str, Limits(allowed=("none", "linear"))] = "none"
    (
        "linear multiplies the learning rate by the number of devices under data-parallel strategies. Use it with a "
        "global batch that grows with the devices."
    )


@dataclass(frozen=True, kw_only=True)
class MeasurementRequest:
    """How strategies are varied, and how thoroughly cells are measured. None: see the flag's help."""

    batch_norm: str | None = None
    "Which samples share BatchNorm statistics: per_device or global. Default: each strategy's own."
    preset: str | None = None
    (
        "smoke (1 launch), standard (5) or paper (10). The last two also measure one cell twice, as an A/A test. "
        "Default: smoke on CPU devices, standard on GPUs."
    )
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # several values make a sweep
    "An option of a strategy, e.g. split_size=20 or cut=layer3. Can be repeated."
    compile_cache: str = ""
    (
        "A folder in which frameworks keep compiled code, also for later runs. none: every launch compiles again. "
        "Default: of the launches of a cell, the first 60% compile again (cold), and the others reuse the code of the "
        "first one (warm) if it ran in the same session."
    )


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """Where cells run, at which size, and how often."""

    platform: str = "auto"
    "auto uses the GPUs if there are any, otherwise the CPU; cpu and gpu force one or the other."
    size: str | None = None
    "The workload's size: see `list workloads`."
    precision: str | None = None
    (
        "Precision of the timing phase: fp64, fp32 (without TF32), tf32 or bf16 (mixed). Default: fp32; bf16 with "
        "--track tuned on GPUs. The parity phase is always float64."
    )
    seed: Annotated[int, Limits(least=0, most=MOST_SEED)] = 0
    "Seed of the initial weights, the batches and the order of launches."
    launches: Annotated[int | None, Limits(least=1, most=MAX_LAUNCHES)] = None
    "How many times to launch each cell, each time in fresh processes. Default: the preset's."
    timeout_seconds: float | None = None
    (
        "Seconds that one phase of one trial may take. A phase without progress for half of that counts as hung, so a "
        "long compilation needs a larger one. Default: 600; for train one day, and 300 without progress."
    )
    interpreters: Mapping[str, str] = field(default_factory=dict)
    "The Python interpreter for one framework, e.g. tf=/opt/tf/bin/python. Can be repeated."


@dataclass(frozen=True, kw_only=True)
class RunRequest(LaunchRequest, MeasurementRequest, RunOptions, CellRequest):
    """What `run`, `train`, `sweep` and `plan` have in common. The first fields are those of the last class."""

    launcher: str = "local"
    (
        "local: on this machine. manual: prints the command to start on each of --hosts, and waits for them. slurm: "
        "starts them by srun. ray: as tasks of a Ray cluster."
    )
    hosts: tuple[str, ...] = ()
    (
        "The hosts that share the devices of each cell, e.g. node1,node2. All must have the same hardware as this "
        "machine. A number, e.g. 2: slurm and ray choose as many."
    )
    spread: tuple[int, ...] = ()
    (
        "Over how many of --hosts to spread the devices of a cell. 1,2 measures each cell on one host and over two. "
        "Default: over all."
    )
    head: str = ""
    "HOST or HOST:PORT of this machine, where the hosts reach it. Default: the first of --hosts, at any free port."


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What `train` asks for in addition."""

    epochs: Annotated[int | None, Limits(least=0, most=MOST_COUNTED)] = None
    (
        "How many epochs to train, or to train at most if --target-accuracy is given. 0 only evaluates --init-from. "
        "Default: the workload's own."
    )
    target_accuracy: float | None = None
    (
        "Stop at this accuracy on the validation samples, e.g. 0.97. They are held out of the training samples. "
        "Default: train all epochs, and report the time to the workload's own target."
    )
    seeds: Annotated[int | None, Limits(least=1, most=MAX_LAUNCHES)] = None
    "How many times to train each cell, with seeds SEED, SEED + 1, ... Default: the preset's number of launches."
    last_batch: Annotated[str, Limits(allowed=get_args(LastBatch))] = "exact"
    (
        "What to do with the last batch of an epoch if it is smaller. exact: train on it. pad: train on it at "
        "full size, with padding of weight zero. drop: leave it out."
    )
    input: Annotated[str, Limits(allowed=get_args(Input))] = "resident"
    "resident: batches are on the devices before timing. loader: the framework's input pipeline is timed as well."
    workers: tuple[int, ...] = (0,)  # each number makes a cell of its own
    (
        "Processes or threads for --input loader, e.g. 2; or 0,2,4 to compare them. Default: 0, which loads in the "
        "training process."
    )
    save_every: Annotated[int, Limits(least=0, most=MOST_COUNTED)] = 0
    "Save a checkpoint every so many epochs, and after the last one. 0 saves none."
    init_from: Path | None = None
    "Start from the weights of a checkpoint, or of a run that has one, from any framework and strategy."


@dataclass(frozen=True, kw_only=True)
class Request(RunRequest):
    """All that a user asks for. `training` is None except under `train`. `global_batches`: those that `sweep
    global_batch` compares. `twin`: whether a preset may add its A/A twin; not under `sweep`."""

    training: TrainingRequest | None = None
    global_batches: tuple[int, ...] = ()
    twin: bool = True

    @property
    def names_one_strategy(self) -> bool:
        """Whether it asks for one strategy on one workload, and for nothing beside them."""
        chosen = {*self.strategies}, {*self.workloads}
        return all(len(names) == 1 and "all" not in names for names in chosen)
