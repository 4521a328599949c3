"""The result of a trial: one line of results.jsonl, and its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from harness.spec.causes import Cause
from harness.spec.kinds import CompileCache, Quantity, Status, ToleranceSet
from harness.spec.trial import TrialSpec

SCHEMA_VERSION = 2
OUT_OF_TIME = "not yet run: the time of --budget-minutes was up; --resume continues"  # the reason of what is pending
CUT_SHORT = "ended when the time of --budget-minutes was up; --resume tries it again, last: it may need a longer budget"
CHECKED_LOSSES = 5  # of a timed run or a training: its first, which are held against golden's


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
    """What the gate found for one cell."""

    steps: int
    batch: int
    groups: int  # normalization groups of the golden reference
    checks: tuple[Check, ...]
    tolerances: ToleranceSet = "exact"

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
    """The state of a training after `number` epochs; 0 is before the first step.

    `seconds` is the time of this epoch's training steps on the slowest rank, compilation in the first step included.
    `wait_seconds` is the part of it in which the host waited for input. Neither contains evaluation or reporting.
    """

    number: int
    steps: int  # of this epoch
    samples: int  # trained on so far
    seconds: float
    first_step_seconds: float  # the part of `seconds` that the process's first step took; 0 in later epochs
    wait_seconds: float
    evaluation_seconds: float
    report_seconds: float  # reporting overhead: reading losses and writing progress
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
    reason: str = ""  # in words
    cause: Cause | None = None  # None: it was measured, or an earlier version wrote the row
    traceback: str = ""  # of the first rank that failed
    parity: Parity | None = None
    unit: str = "sample"
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    compile_cache: CompileCache = ""
    steps_per_block: int = 0
    block_seconds: tuple[tuple[float, ...], ...] = ()
    bare_block_seconds: tuple[tuple[float, ...], ...] = ()  # the same for a loop without the suite's code: bare.py
    spans: tuple[Span, ...] = ()  # of one traced step, where the strategy has stages
    epochs: tuple[Epoch, ...] = ()  # of `train`
    losses: tuple[float, ...] = ()
    golden_losses: tuple[float, ...] = ()
    precision_errors: dict[str, float] = field(
        default_factory=dict
    )  # of products, the worst rank's: harness/gate/precision_probe.py
    peak_bytes: tuple[int, ...] = ()  # one per rank
    peak_kind: str = ""
    cores: int = 0  # CPU cores that each process may use
    versions: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)  # versions of the CUDA libraries that the workers loaded
    lock: str | None = None  # the lock file that all packages of the workers match; "": none; None: not recorded
    environment: dict[str, str] = field(default_factory=dict)  # variables set for the workers
    machine: dict[str, Any] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)  # command, start, commit, data: what the report needs to say
    schema_version: int = SCHEMA_VERSION
