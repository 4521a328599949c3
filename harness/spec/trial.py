"""What is measured: one cell of the matrix, one launch of it, with all that decides what it computes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.spec.kinds import (
    Algorithm,
    BatchGrowth,
    Input,
    LastBatch,
    Normalization,
    Platform,
    Precision,
    Protocol,
    Role,
    Schedule,
    ToleranceSet,
    Track,
)
from harness.spec.run_options import RunOptions

MOST_SAMPLES = 2**24  # in a global batch
FROM_HOST_VERSION = 2  # the version of the protocol that is measured now; version 1 made its batches with NumPy


SAFE_NAME, UNSAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+,-]*"), re.compile(r"[^A-Za-z0-9_.=+,-]")
LONGEST_NAME = 150  # file systems allow 255 bytes; phases, launches and attempts add to a cell's name


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An update rule and its learning-rate schedule, defined in harness/spec/optimizers.py as in torch.optim.

    Every framework computes exactly this rule. `RULES` and `SCHEDULES` there list the fields that each one reads.
    """

    name: Literal["sgd", "adam", "adamw", "adagrad"]
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0  # coupled (added to the gradient), but decoupled in adamw
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = "constant"
    warmup_steps: int = 0  # updates before the schedule begins, at rates that rise linearly
    step_size: int = 1  # "step": the rate is multiplied by gamma after every so many updates
    gamma: float = 0.1
    total_steps: int = 0  # "cosine": all updates, warm-up included; afterwards the rate is 0
    scaled_by: int = 1  # the factor of the linear scaling rule that learning_rate already contains


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """What `train` does with a cell instead of timing blocks of steps."""

    epochs: int  # at most
    target_accuracy: float  # on the validation samples; the time to it is reported
    stop_at_target: bool = False  # after the first epoch that reaches it
    last_batch: LastBatch = "exact"
    batch_unit: int = 1  # every batch size must be a multiple of it; 0: all batches have the size of the first
    input: Input = "resident"
    workers: int = 0  # of the loader: processes or threads that read ahead
    save_every: int = 0  # epochs between checkpoints; 0: none
    init_from: str = ""  # a checkpoint whose weights training begins from
    validation_share: float = 0.0  # of the training samples, held out; 0: records in which the test set was judged


@dataclass(frozen=True, kw_only=True)
class TrialSpec(RunOptions):
    """One planned measurement: a cell of the matrix with its run options, and which launch of it."""

    framework: str
    workload: str
    size: str
    strategy: str
    platform: Platform
    devices: int
    hosts: int = 1  # on which the devices are, as many on each
    global_batch: int
    batch_growth: BatchGrowth = "fixed"
    precision: Precision
    optimizer: OptimizerSpec
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    roles: dict[Role, str] = field(default_factory=dict)  # the names of the options that the harness itself reads
    changed_in_parity: dict[str, Any] = field(default_factory=dict)  # options with another value in the parity phase
    # what tells this cell from others: options that were chosen or depend on the workload, run options, settings
    variant: str = ""
    algorithm: Algorithm = "synchronous"
    normalization: Normalization = "global"
    tolerances: ToleranceSet = "exact"
    track: Track = "defaults"
    settings: dict[str, bool] = field(default_factory=dict)  # all of the framework's, by name
    chosen_settings: dict[str, bool] = field(default_factory=dict)  # those that are not as on its track
    # "resident": batches wait on the devices, after a warm-up. "from_host": as tutorials time it: each block is a fresh
    # program that makes every batch on the host inside the timed part, without a warm-up or a final synchronization
    protocol: Protocol = "resident"
    # of from_host. 1: NumPy made the batches (NHWC, then transposed). 2: the framework does, as the tutorial's code
    protocol_version: int = 1
    twin: bool = False  # the same as another cell of the plan, launched under a name of its own: an A/A test
    launch: int = 0
    # parity phase: float64, this many steps of this many samples
    parity_steps: int = 5
    parity_batch: int = 16
    # timing phase: a loss curve from the initial weights; a warm-up of so many seconds; then blocks of steps, each of
    # at least so many steps and seconds (the number of steps is fixed by a pilot before the first block)
    curve_steps: int = 20
    warmup_seconds: float = 0.0
    blocks: int = 5
    steps_per_block: int = 10
    block_seconds: float = 0.0
    timeout_seconds: float = 600.0
    stall_seconds: float = 300.0  # without a sign of progress on any rank: the trial is hung
    training: TrainingSpec | None = None  # in place of the timing phase

    def option(self, role: Role, *, of: Mapping[str, Any] | None = None) -> Any:
        """The value of the option in this role, or None without one. `of`: the options; by default, the cell's own."""
        options = self.options if of is None else of
        return options.get(self.roles.get(role, ""))

    @property
    def judged_precision(self) -> Precision:
        """The precision whose tolerances losses and weights have: bf16 where gradients cross devices in it."""
        return "bf16" if self.tolerances == "bf16_gradients" else self.precision

    @property
    def parity_options(self) -> dict[str, Any]:
        """The options of the parity phase."""
        return self.options | self.changed_in_parity

    @property
    def exchange_interval(self) -> int:
        """Steps from one exchange of the workers to the next: they average their parameters, or push summed gradients.
        1 where they exchange in every step."""
        return self.option("averaging_interval") or self.push_interval()

    @property
    def whole_rounds(self) -> int:
        """Of how many steps the steps of a timed block are a multiple: those of whole calls and whole intervals."""
        return math.lcm(self.exchange_interval, self.steps_per_call)

    def push_interval(self, *, of: Mapping[str, Any] | None = None) -> int:
        """How many steps' gradients an asynchronous worker sums before it pushes them; 1 everywhere else. `of`: as in
        `option`."""
        return self.option("push_interval", of=of) or 1

    def updates(self, steps: int, *, of: Mapping[str, Any] | None = None) -> int:
        """How many updates so many steps make: where workers do not wait for each other, each makes its own."""
        return steps // self.push_interval(of=of) * (self.devices if self.algorithm == "asynchronous" else 1)

    @property
    def is_cut_by_time(self) -> bool:
        """Whether the stages are balanced by measured times, so that each build may cut the network elsewhere."""
        return self.option("cut") == "time"

    def cut_at(self, blocks: str) -> TrialSpec:
        """This trial, with stages that end after these blocks: partition.cut_text."""
        return replace(self, options=self.options | {self.roles["cut"]: blocks})

    @property
    def parity_optimizer(self) -> OptimizerSpec:
        """The optimizer of the parity phase. Its rate follows the phase's smaller batch by the linear scaling rule
        (Goyal et al. 2017, arXiv:1706.02677): at the full rate a deep network on a few samples is chaos. Where n
        workers do not wait for each other, a step is n updates, each from an n-th of the samples, and the rate is
        divided by the square of n (measured: docs/parity.md). A schedule is squeezed, so that its warm-up and what
        follows both take part."""
        optimizer = self.optimizer
        workers = self.devices if self.algorithm == "asynchronous" else 1
        updates = self.updates(self.parity_steps, of=self.parity_options)
        first = max(1, min(2, updates - 1))  # so many updates come before the rate first changes, or falls
        return replace(
            optimizer,
            learning_rate=optimizer.learning_rate * min(1.0, self.parity_batch / self.global_batch) / workers**2,
            warmup_steps=min(optimizer.warmup_steps, first),
            step_size=min(optimizer.step_size, first),
            total_steps=min(optimizer.total_steps, updates + 1),
        )

    @property
    def cell(self) -> str:
        """Names the cell whatever the launch: safe as a file name and unique in a plan."""
        if self.training and self.training.input == "loader":
            return f"{self.computation}-loader-workers={self.training.workers}"
        protocol = "" if self.protocol == "resident" else f"-{self.protocol_name}"
        return f"{self.computation}{protocol}{'-twin' if self.twin else ''}"

    @property
    def program(self) -> str:
        """All that changes what runs, as text, because mappings have no hash. Cells that share it are one program under
        two names: a twin and its original, or both tracks of a cell that has the same settings on both."""
        return repr(replace(self, track="defaults", variant="", chosen_settings={}, twin=False, launch=0, seed=0))

    @property
    def at_any_batch(self) -> str:
        """`program` without its global batch and what follows from it: the cells of a sweep of batches share it."""
        return replace(self, global_batch=0, parity_batch=0, parity_steps=0, changed_in_parity={}).program

    @property
    def protocol_name(self) -> str:
        """The protocol with its version, of which the first is not named: "resident", "from_host", "from_host-2"."""
        return self.protocol if self.protocol_version == 1 else f"{self.protocol}-{self.protocol_version}"

    @property
    def computation(self) -> str:
        """Names what is computed, however it is timed: cells that share it share their proof. Safe as a file name."""
        variant = f"-{self.variant.replace(', ', '-')}" if self.variant else ""
        kind = f"-train-{self.training.last_batch}" if self.training else ""
        track = "-tuned" if self.track == "tuned" else ""
        hosts = f"-hosts{self.hosts}" if self.hosts > 1 else ""
        return _file_name(
            f"{self.workload}-{self.size}-{self.framework}-{self.strategy}{variant}-x{self.devices}{hosts}{track}{kind}"
        )


def _file_name(text: str) -> str:
    """A text as part of a file name: unchanged if it is safe and short, otherwise with a digest that keeps it unique.

    An option of a plug-in may have any value, and a record may come from somebody else.
    """
    if len(text) <= LONGEST_NAME and SAFE_NAME.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{UNSAFE.sub('_', text)[: LONGEST_NAME - len(digest) - 1]}-{digest}"
