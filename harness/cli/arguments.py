"""The options that commands share, and how their text is read. Long because each option's help stands beside it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from harness.checkpoints import find
from harness.planning.run_request import Request, TrainingRequest
from harness.spec.errors import UsageError, check_name


def whole_number(type_: type, tokens: Sequence[Token]) -> int:
    """A converter that refuses 3.5, which cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


TIMEOUT_SECONDS, TRAINING_TIMEOUT_SECONDS = 600.0, 86400.0
HIDDEN_DEFAULT = Parameter(show_default=False)
WholeNumber = Annotated[int, Parameter(converter=whole_number)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What `run` and `plan` have in common. Names can be given as comma lists."""

    framework: list[str] = field(default_factory=lambda: ["all"])
    "torch, jax, tf or all."
    workload: list[str] = field(default_factory=lambda: ["mnist_cnn"])
    "Workloads, or all: see `list workloads`."
    strategy: list[str] = field(default_factory=lambda: ["all"])
    "Parallel strategies, or all: see `list strategies`."
    devices: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "How many devices, e.g. 2 or 1,2,4. Default: all visible GPUs; without GPUs 2 virtual CPU devices."
    platform: str = "auto"
    "auto takes the GPUs if there are any; cpu or gpu insists."
    size: str | None = None
    "The workload's size: see `list workloads`."
    global_batch: WholeNumber | None = None
    "Samples of one step over all devices. Default: the workload's own."
    track: list[str] = field(default_factory=lambda: ["defaults"])
    "defaults: without tuned settings. tuned: the best known settings of each framework. Or both."
    setting: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "A framework's setting instead of its track's, e.g. compile=false. Can be repeated. See `list settings`."
    precision: Annotated[str | None, HIDDEN_DEFAULT] = None
    "Of the timed phase: fp64, fp32 (no TF32), tf32, bf16 (mixed). Default: fp32; bf16 with --track tuned on GPUs. "
    "The parity phase is always float64."
    optimizer: str | None = None
    "Instead of the workload's own: sgd, adam, adamw or adagrad, as NAME or NAME:learning_rate=0.1,schedule=cosine,..."
    learning_rate_scaling: str = "none"
    "linear multiplies the rate by the number of devices under data-parallel strategies: made for batches that grow so."
    accumulation_steps: WholeNumber = 1
    "Parts that a data-parallel step's batch comes in, their gradients accumulated and synchronized once."
    batch_norm: str | None = None
    "per_device or global: which samples share BatchNorm statistics. Default: each strategy's own."
    seed: WholeNumber = 0
    "Of the initial weights, the batches and the order of launches."
    preset: str | None = None
    "smoke (1 launch), standard (5) or paper (10). Default: smoke on CPU devices, standard on GPUs."
    launches: WholeNumber | None = None
    "Of each cell, instead of the preset's: so many times it starts anew."
    timeout: float | None = None
    "Seconds that one phase of one trial may take; half of it, or 300, without progress counts as hung. Default: 600, "
    "and a day to train."
    option: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "An option of a strategy, e.g. split_size=20 or cut=layer3. Can be repeated."
    interpreter: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "A Python for one framework, e.g. tf=/opt/tf/bin/python. Can be repeated."

    compile_cache: Annotated[str, HIDDEN_DEFAULT] = ""
    "A folder that keeps what frameworks compile, also for other runs; none: every launch compiles anew. Default: the "
    "launches of a session share it, so that the first of a cell is cold and the others are warm."

    def arguments(self) -> list[str]:
        """The command-line form of what differs from the defaults, wherever it came from, for others to repeat: without
        the interpreters, which lie elsewhere on their machines."""
        return _typed(replace(self, interpreter=[]), RunArguments())

    def request(self) -> Request:
        """The request that these options make. Raises UsageError."""
        for name in ("size", "precision", "batch_norm", "preset"):
            if getattr(self, name) == "":  # an unset variable in a script, say, must not be taken for the default
                raise UsageError(f"--{name.replace('_', '-')}: names nothing; give a name, or leave it out")
        sweeps = "; `sweep` compares values"
        options = pairs("--option", split(self.option), example="split_size=20", beside=sweeps)
        return Request(
            frameworks=names("--framework", self.framework),
            workloads=names("--workload", self.workload),
            strategies=names("--strategy", self.strategy),
            devices=tuple(integer("--devices", value) for value in split(self.devices)),
            platform=self.platform,  # pyright: ignore[reportArgumentType] -- make_plan checks it
            size=self.size,
            global_batch=self.global_batch,
            tracks=names("--track", self.track),
            settings=pairs("--setting", split(self.setting), example="compile=false"),
            precision=self.precision,
            optimizer=self.optimizer,
            learning_rate_scaling=self.learning_rate_scaling,
            accumulation_steps=self.accumulation_steps,
            batch_norm=self.batch_norm,
            seed=self.seed,
            preset=self.preset,
            launches=self.launches,
            timeout_seconds=TIMEOUT_SECONDS if self.timeout is None else self.timeout,
            options={name: (value,) for name, value in options.items()},
            interpreters=interpreters(split(self.interpreter)),
            compile_cache=compile_cache(self.compile_cache),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """What `train` has beside them."""

    epochs: WholeNumber | None = None
    "Epochs to train, or at most with --target-accuracy. Default: the workload's own; 0 evaluates --init-from."
    target_accuracy: float | None = None
    "Stop at this test accuracy, e.g. 0.97. Default: all epochs; the time to the workload's own target is reported."
    seeds: WholeNumber | None = None
    "Trainings of each cell: seed, seed + 1, ... Default: the preset's launches."
    last_batch: str = "exact"
    "An epoch's last, smaller batch: exact trains on it, pad too but at full size with weights of zero, drop does not."
    input: str = "resident"
    "resident: batches wait on the devices. loader: the framework's own input pipeline, in the timed part."
    num_workers: Annotated[list[str], HIDDEN_DEFAULT] = field(default_factory=list)
    "Processes or threads of --input loader, e.g. 2, or 0,2,4 to compare. Default: 0, on the spot."
    save_every: WholeNumber = 0
    "Epochs between checkpoints; the last epoch's is then always written. 0: none."
    init_from: Path | None = None
    "A checkpoint, or the folder of a run with one, of any framework and strategy: begin with its weights."

    def arguments(self) -> list[str]:
        """As RunArguments.arguments."""
        return _typed(self, TrainArguments())

    def request(self, options: RunArguments) -> Request:
        """The request that these and the shared options make. Raises UsageError."""
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
        timeout = TRAINING_TIMEOUT_SECONDS if options.timeout is None else options.timeout
        return replace(options.request(), training=training, timeout_seconds=timeout)


def _typed(options: Any, defaults: Any) -> list[str]:
    given = []
    for item in fields(options):
        value = getattr(options, item.name)
        if value != getattr(defaults, item.name):
            text = ",".join(split(value)) if isinstance(value, list) else str(value)
            given += [f"--{item.name.replace('_', '-')}", text]
    return given


def split(values: Sequence[str]) -> list[str]:
    """Comma lists and repeated options to one list."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def names(option: str, values: Sequence[str]) -> tuple[str, ...]:
    """At least one name. Raises UsageError."""
    found = tuple(split(values))
    if not found:
        raise UsageError(f"{option}: names nothing; give names, a comma list, or all")
    return found


def integer(option: str, value: str) -> int:
    """A whole number. Raises UsageError."""
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{option} {value!r}: must be a whole number, or a comma list of them") from None


def pairs(
    option: str, texts: Sequence[str], *, example: str, beside: str = "", form: str = "NAME=VALUE"
) -> dict[str, str]:
    """NAME=VALUE texts as a mapping. Raises UsageError for what is none, and for a name that is given twice; `beside`
    is what to do then."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {text!r}: must be {form}, e.g. {example}")
        if name in found:
            raise UsageError(f"{option} {name}: given twice, as {found[name]} and {value}{beside}")
        found[name] = value
    return found


def compile_cache(value: str) -> str:
    """A folder that is there or can be made, as an absolute path; or "none", or "". Raises UsageError."""
    if value in ("", "none"):
        return value
    folder = Path(value).expanduser().absolute()
    there = next(place for place in (folder, *folder.parents) if place.exists())  # frameworks make what is below
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise UsageError(f"--compile-cache {value}: {there} is no folder to write to; name another, or none")
    return str(folder)


def interpreters(values: Sequence[str]) -> dict[str, str]:
    """NAME=PATH texts as a mapping to absolute paths. Raises UsageError."""
    paths = {}
    for name, value in pairs("--interpreter", values, example="tf=/opt/tf/bin/python", form="NAME=PATH").items():
        path = Path(value).expanduser().absolute()  # not resolve: a virtual environment's python is a link
        if not path.is_file():
            raise UsageError(f"--interpreter '{name}={value}': there is no such file; name a Python executable")
        paths[name] = str(path)
    return paths


def read_toml(path: Path) -> dict:
    """A TOML file of options. Raises UsageError."""
    try:
        read = tomllib.loads(path.read_text())
        found = {key.replace("-", "_"): value for key, value in read.items()}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config {path}: cannot read it: {reason}; name a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from error
    if len(found) < len(read):
        raise UsageError(f"--config {path}: an option is given twice, with - and with _; leave one out")
    known = {item.name for kind in (RunArguments, TrainArguments) for item in fields(kind)}
    for key, value in found.items():
        if isinstance(value, dict) and key in known:
            raise UsageError(f"--config {path}: {key} is a table; write its value as on the command line, as a string")
        if isinstance(value, dict) or key == "config":
            raise UsageError(f"--config {path}: {key!r} is no option; options stand at the top level, without a table")
    return found


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises UsageError for a HARNESS_ variable that names no option: a typo must not go unnoticed."""
    known = [item.name for kind in (RunArguments, TrainArguments) for item in fields(kind)]
    known += ["out", "data", "config", "values", "json", "resume", "budget_minutes"]
    for name in environment:
        if name.startswith("HARNESS_"):
            check_name("environment variable", name, [f"HARNESS_{option.upper()}" for option in known])
