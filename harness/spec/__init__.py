"""The nouns of the suite: what is trained, by which strategy, in which trial, and what came of it.

Frozen data and nothing else. Workers read and write these as JSON with the standard library alone, so that an
interpreter needs only numpy and its own framework; `harness.results.store` validates them on the way back in. Long
because every field says what it means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

SCHEMA_VERSION = 1
OUT_OF_TIME = "not yet run: --budget-minutes were over; --resume goes on"  # the reason of what is pending
CUT_SHORT = (
    "ended when --budget-minutes were over; --resume tries it again, after the others: it may need a longer budget"
)
FROM_HOST_VERSION = 2  # of the protocol as it is measured now; its first made its batches with NumPy
CHECKED_LOSSES = 5  # of a timed run or a training: its first, which are held against golden's
LOCAL_STEPS_IN_PARITY = 2  # at most so many steps between two meetings of workers that train on their own

Processes = Literal["one", "per_device"]
Normalization = Literal["global", "per_device", "per_microbatch"]
Algorithm = Literal["synchronous", "local", "asynchronous"]
Band = Literal["exact", "bf16_gradients"]  # how near to the golden reference: harness/gate/parity.py
# what crosses devices in a step: harness/planning/traffic.py
Traffic = Literal["none", "all_reduce", "replicate", "shard", "average", "activations", "every_tick", "push_pull"]
Schedule = Literal["constant", "step", "cosine"]
LastBatch = Literal["exact", "pad", "drop"]  # what becomes of an epoch's last batch: harness/datasets/__init__.py
Input = Literal["resident", "loader"]
Platform = Literal["cpu", "gpu"]
Protocol = Literal["resident", "from_host"]  # see TrialSpec
Precision = Literal["fp64", "fp32", "tf32", "bf16"]
Track = Literal["defaults", "tuned"]
CompileCache = Literal[
    "cold", "warm", "none", ""
]  # what compilation found there; "none": nothing was compiled; or unknown
Quantity = Literal["losses", "gradients", "parameters"]
Status = Literal[
    "ok",  # parity proved and timed
    "parity_failed",  # computes something else: never timed
    "oom",
    "timeout",  # still making progress when its time was up
    "hung",  # alive, but no progress
    "crashed",
    "killed",  # ended by a signal
    "diverged",  # a loss that is not finite, explodes, or leaves the golden curve: speed void
    "unavailable",  # the framework is missing or broken
    "skipped",  # cannot run here, for a stated reason
    "pending",  # not yet run: the sitting's time was up
]
FAILURES: tuple[Status, ...] = (
    "parity_failed", "oom", "timeout", "hung", "crashed", "killed", "diverged", "unavailable",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An update rule and its learning-rate schedule, defined in harness/spec/optimizers.py as in torch.optim.

    Every framework computes exactly it. `RULES` and `SCHEDULES` there say which of these each rule and schedule reads.
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
    scaled_by: int = 1  # what learning_rate has been multiplied with already, by the linear scaling rule


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a framework executes a step, where its tracks differ; never what is computed.

    Off is what the framework does in its own tutorials, on what makes it fastest, as its makers or a measurement say:
    `source`. It stays off on CPU devices if it `needs_gpu`; but for plain SGD at one rate if it needs a
    `constant_update`; where BatchNorm communicates in the middle of a step unless it bears `synchronized` ones; and in
    all strategies but `strategies`, if there are any. `environment`: what the workers' variables get where it is on,
    before what they have.
    """

    name: str
    summary: str
    source: str
    needs_gpu: bool = False
    constant_update: bool = False
    synchronized: bool = True
    strategies: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StrategySpec:
    """What the planner must know of one parallel strategy without importing its framework.

    `processes`: "one" process drives all devices, or one "per_device". `normalization`: which samples share BatchNorm
    statistics; `other_normalizations`: what --batch-norm may choose instead, each with the reason why it needs GPUs, or
    "". `options`: the strategy's own options with their defaults; 0 and "" stand for a default that depends on
    the workload, which the planner fills in. `choices`: the values that an option of text may have. `options_need_gpu`:
    values of options ("cross_device=nccl"), each with the reason why it needs GPUs. `bands`: values of options
    ("compression=bf16") under which the parity gate is looser. Model and pipeline strategies have as many
    stages as devices. `tuned`: what the tuned track sets otherwise than for the framework's other strategies, settings
    and this one's own options alike; `tuned_because` says why, and `tuned_source` where that is written.
    `without`: settings that it cannot have, with reasons.

    The last six fields are the strategy's row in docs/strategies.md.
    """

    name: str
    summary: str
    processes: Processes
    parallelism: Literal["none", "data", "model", "pipeline"] = "data"
    min_devices: int = 1
    needs_gpu: str = ""  # why it cannot run on CPU devices; empty where it can
    algorithm: Algorithm = "synchronous"  # the others train differently, and are never ranked with these
    normalization: Normalization = "per_device"
    other_normalizations: dict[Normalization, str] = field(default_factory=dict)
    accumulates: bool = True  # takes --accumulation-steps, if it is data-parallel or none
    fixed_batch: bool = False  # every batch must have as many rows as the first: a short one is padded to it
    options: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options_need_gpu: dict[str, str] = field(default_factory=dict)
    bands: dict[str, Band] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)
    tuned_because: str = ""
    tuned_source: str = ""
    without: dict[str, str] = field(default_factory=dict)
    options_need_even_devices: dict[str, str] = field(default_factory=dict)  # likewise, with the reason
    replicated: str = ""
    sharded: str = ""
    crosses: str = ""
    waits: str = ""
    use: str = ""
    traffic: Traffic = "none"


@dataclass(frozen=True, kw_only=True)
class FrameworkSpec:
    """One framework, as its manifest describes it."""

    name: str  # as given to --framework
    title: str  # as printed
    package: str  # holds runtime.py, models/ and strategies/
    modules: tuple[str, ...]  # all must be importable, else the framework is unavailable
    distributions: tuple[str, ...]  # whose versions are recorded
    install_hint: str
    execution: str  # how steps are executed in both tracks, in words
    untuned: str = ""  # what the "defaults" track runs, as reports name it
    settings: tuple[Setting, ...] = ()  # in which the tracks differ
    compile_cache: str = ""  # the variable that names the folder where it keeps what it has compiled, if it has one
    sharing: dict[str, str] = field(default_factory=dict)  # variables that leave room on a GPU for other processes
    strategies: tuple[StrategySpec, ...]
    workloads: tuple[str, ...] = ()  # that it has models for; () means those in its folder models/
    environment: dict[Platform, dict[str, str]] = field(default_factory=dict)

    def strategy(self, name: str) -> StrategySpec:
        """The strategy of that name. Raises KeyError."""
        for strategy in self.strategies:
            if strategy.name == name:
                return strategy
        raise KeyError(name)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """What `train` does with a cell instead of timing blocks of steps."""

    epochs: int  # at most
    target_accuracy: float  # on the test set; the time to it is reported
    stop_at_target: bool = False  # after the first epoch that reaches it
    last_batch: LastBatch = "exact"
    batch_unit: int = 1  # what the rows of any batch must be a multiple of; 0: all batches have the rows of the first
    input: Input = "resident"
    workers: int = 0  # of the loader
    save_every: int = 0  # epochs between checkpoints; 0: none
    init_from: str = ""  # a checkpoint whose weights training begins from


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One planned measurement: a cell of the matrix, and which launch of it."""

    framework: str
    workload: str
    size: str
    strategy: str
    platform: Platform
    devices: int
    global_batch: int
    precision: Precision
    optimizer: OptimizerSpec
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    variant: str = ""  # the options that tell this cell from others: those chosen, or dependent on the workload
    algorithm: Algorithm = "synchronous"
    normalization: Normalization = "global"
    accumulation_steps: int = 1  # a step's batch comes in so many parts, synchronized once
    band: Band = "exact"
    track: Track = "defaults"
    settings: dict[str, bool] = field(default_factory=dict)  # all of the framework's, by name
    chosen_settings: dict[str, bool] = field(default_factory=dict)  # those of --setting, whatever the track
    # "resident": batches wait on the devices, after a warm-up. "from_host": as tutorials time it: each block is a fresh
    # program that makes every batch on the host inside the timed part, without a warm-up or a final synchronization
    protocol: Protocol = "resident"
    # of from_host. 1: NumPy made the batches (NHWC, then transposed). 2: the framework does, as the tutorial's code
    protocol_version: int = 1
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
    training: TrainingSpec | None = None  # in place of the timing phase

    @property
    def parity_options(self) -> dict[str, Any]:
        """The options of the parity phase: a split_size keeps its share of the phase's smaller batch, and workers that
        train on their own meet in time for it."""
        options = dict(self.options)
        if "split_size" in options:
            share = round(options["split_size"] * self.parity_batch / self.global_batch)
            options["split_size"] = min(max(share, 1), self.parity_batch)
        if "sync_every" in options:
            options["sync_every"] = min(options["sync_every"], LOCAL_STEPS_IN_PARITY)
        return options

    @property
    def parity_optimizer(self) -> OptimizerSpec:
        """The optimizer of the parity phase. Its rate follows the phase's smaller batch by the linear scaling rule
        (Goyal et al. 2017, arXiv:1706.02677): at the full rate a deep network on a few samples is chaos. A schedule is
        squeezed, so that its warm-up and what follows both take part."""
        optimizer = self.optimizer
        updates = self.parity_steps * (self.devices if self.algorithm == "asynchronous" else 1)
        return replace(
            optimizer,
            learning_rate=optimizer.learning_rate * min(1.0, self.parity_batch / self.global_batch),
            warmup_steps=min(optimizer.warmup_steps, 2),
            step_size=min(optimizer.step_size, 2),
            total_steps=min(optimizer.total_steps, updates + 1),
        )

    @property
    def conditions(self) -> tuple:
        """What two cells must have in common for a ratio of their speeds to mean anything but this."""
        protocol = (self.protocol, self.protocol_version)
        return (self.workload, self.size, *protocol, self.track, self.precision, *self.chosen_settings.items())

    @property
    def cell(self) -> str:
        """Names the cell whatever the launch: safe as a file name and unique in a plan."""
        if self.training and self.training.input == "loader":
            return f"{self.computation}-loader-workers={self.training.workers}"
        return self.computation if self.protocol == "resident" else f"{self.computation}-{self.protocol_name}"

    @property
    def protocol_name(self) -> str:
        """The protocol with its version, of which the first is not named: "resident", "from_host", "from_host-2"."""
        return self.protocol if self.protocol_version == 1 else f"{self.protocol}-{self.protocol_version}"

    @property
    def computation(self) -> str:
        """Names what is computed, however it is timed: cells that share it share their proof."""
        variant = f"-{self.variant.replace(', ', '-')}" if self.variant else ""
        kind = f"-train-{self.training.last_batch}" if self.training else ""
        track = "-tuned" if self.track == "tuned" else ""
        return f"{self.workload}-{self.size}-{self.framework}-{self.strategy}{variant}-x{self.devices}{track}{kind}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One quantity of the parity gate: the worst error and where. A non-finite value counts as infinitely wrong."""

    quantity: Quantity
    error: float
    tolerance: float
    worst: str

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The verdict of the gate for one cell."""

    steps: int
    batch: int
    groups: int  # normalization groups of the golden reference
    checks: tuple[Check, ...]
    band: Band = "exact"

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One stage's work on one micro-batch in a traced step; seconds from the step's first span."""

    stage: int
    micro_batch: int
    phase: Literal["forward", "backward"]
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Where a training was after so many epochs; 0 is before the first step.

    `seconds` are those of this epoch's training steps, the slowest rank's, the first step's compilation included;
    `wait_seconds` the part of them in which the host waited for input. Evaluation and telling how far it is are not in
    them.
    """

    number: int
    steps: int  # of this epoch
    samples: int  # trained on so far
    seconds: float
    first_step_seconds: float  # of them those of the first step, where a process began in this epoch, else 0
    wait_seconds: float
    evaluation_seconds: float
    report_seconds: float  # reading losses and writing how far it is
    train_loss: float | None  # the mean over the epoch's samples, each at the weights of its step
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One line of results.jsonl. Every planned trial gets exactly one, whatever became of it.

    All times in seconds, memory in bytes. `block_seconds[rank][block]` is raw: each entry is the time of
    `steps_per_block` steps between two synchronizations of all ranks.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"ser_json_inf_nan": "strings", "extra": "forbid"}

    spec: TrialSpec
    status: Status
    reason: str = ""
    traceback: str = ""  # of the first rank that failed
    parity: Parity | None = None
    unit: str = "sample"
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    compile_cache: CompileCache = ""
    steps_per_block: int = 0
    block_seconds: tuple[tuple[float, ...], ...] = ()
    bare_block_seconds: tuple[tuple[float, ...], ...] = ()  # likewise, of a bare loop over the same model
    spans: tuple[Span, ...] = ()  # of one traced step, where the strategy has stages
    epochs: tuple[Epoch, ...] = ()  # of `train`
    losses: tuple[float, ...] = ()
    golden_losses: tuple[float, ...] = ()
    precision_errors: dict[str, float] = field(default_factory=dict)  # of products, the worst rank's: precision.py
    peak_bytes: tuple[int, ...] = ()  # one per rank
    peak_kind: str = ""
    cores: int = 0  # CPU cores that each process may use
    versions: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)  # of CUDA, that the workers had loaded, by their versions
    lock: str | None = None  # whose versions all of the workers' packages have: locks.py; "": none; None: not recorded
    environment: dict[str, str] = field(default_factory=dict)  # variables set for the workers
    machine: dict[str, Any] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)  # command, start, commit, data: what the report needs to say
    schema_version: int = SCHEMA_VERSION
