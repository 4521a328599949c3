"""The result of a trial: one line of results.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from harness.spec.causes import Cause
from harness.spec.checks import Check
from harness.spec.conditions import Conditions, Described, RunFacts
from harness.spec.kinds import FAILURES, CompileCache, CurveReference, Status, ToleranceSet
from harness.spec.measured import Bounds, Epoch, RankResult, Span, Timing
from harness.spec.telemetry import Telemetry
from harness.spec.trial import TrialSpec

SCHEMA_VERSION = 2
OUT_OF_TIME = "not yet run: the time of --budget-minutes was up; --resume continues"  # the reason of what is pending
CUT_SHORT = "ended when the time of --budget-minutes was up; --resume tries it again, last: it may need a longer budget"
CHECKED_LOSSES = 5  # of a timed run or a training: its first, which are held against golden's


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What the gate found for one cell."""

    steps: int
    batch: int
    groups: int  # normalization groups of the golden reference
    checks: tuple[Check, ...]
    tolerances: ToleranceSet = "exact"
    judge: str = ""  # the framework whose float64 training was the reference; "": NumPy

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One line of results.jsonl. Every planned trial gets exactly one, whatever became of it.

    `ranks` is raw: what each process measured. The properties say how one value for the trial follows from them.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"ser_json_inf_nan": "strings", "extra": "forbid"}

    spec: TrialSpec
    status: Status
    reason: str = ""  # in words
    cause: Cause | None = None  # None: it was measured, or an earlier version wrote the row
    traceback: str = ""  # of the first rank that failed
    parity: Parity | None = None
    golden_losses: tuple[float, ...] = ()
    golden_by: CurveReference = ""  # "": there are none, or an earlier version wrote the row, where NumPy computed them
    ranks: tuple[RankResult, ...] = ()  # in rank order
    telemetry: Telemetry | None = None  # None: --telemetry off, no launch, or an earlier version wrote the row
    # of the launch's timing phase or training as the parent saw it, start-up included; None: it was not launched, or an
    # earlier version wrote the row
    wall_seconds: float | None = None
    set_aside: int = 0  # earlier rows of this launch: their round was not completed in the hold in which it began
    unit: str = "sample"
    conditions: Conditions = field(default_factory=Conditions)
    described: Described = field(default_factory=Described)
    run: RunFacts = field(default_factory=RunFacts)
    schema_version: int = SCHEMA_VERSION

    @property
    def launched(self) -> bool:
        """Whether its timing phase or training began. A cell that failed the parity phase, in whatever way, has a row
        for each launch, and none was made."""
        if self.status in ("skipped", "pending", "unavailable"):
            return False
        return self.status not in FAILURES or (self.parity is not None and self.parity.passed)

    @property
    def timings(self) -> list[Timing]:
        """The timing phase of each rank that got to it."""
        return [rank.timing for rank in self.ranks if rank.timing is not None]

    @property
    def steps_per_block(self) -> int:
        """Steps in a timed block, the same on every rank."""
        return self.timings[0].steps_per_block if self.timings else 0

    @property
    def block_seconds(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of each timed block, [rank][block]."""
        return tuple(timing.block_seconds for timing in self.timings if timing.block_seconds)

    @property
    def bare_block_seconds(self) -> tuple[tuple[float, ...], ...]:
        """The same for a loop without the suite's code."""
        return tuple(timing.bare_block_seconds for timing in self.timings)

    @property
    def bounds(self) -> Bounds | None:
        """What simple programs reach on the devices, as rank 0 measured it for all."""
        return self.timings[0].bounds if self.timings else None

    @property
    def spans(self) -> tuple[Span, ...]:
        """Of one traced step, where rank 0 knows when each stage worked."""
        return self.timings[0].spans if self.timings else ()

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Of `train`. Each clock is the slowest rank's, because ranks wait for each other in every chunk of steps."""
        trained = [rank.training.epochs for rank in self.ranks if rank.training is not None]
        return tuple(_slowest(ranks) for ranks in zip(*trained, strict=False))

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss curve of a timed run, or the first losses of a training; the same on every rank."""
        phases = (rank.timing or rank.training for rank in self.ranks)
        return next((phase.losses for phase in phases if phase is not None), ())

    @property
    def first_step_seconds(self) -> float | None:
        """Seconds of the first step on the slowest rank."""
        timed = [timing.first_step_seconds for timing in self.timings if timing.first_step_seconds is not None]
        return max(timed) if timed else next((each.first_step_seconds for each in self.epochs if each.steps), None)

    @property
    def build_seconds(self) -> float | None:
        """Seconds in which the slowest rank built its program."""
        return max((rank.build_seconds for rank in self.ranks if rank.build_seconds is not None), default=None)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak memory of each rank that could tell it."""
        return tuple(rank.peak_bytes for rank in self.ranks if rank.peak_bytes is not None)

    @property
    def peak_kind(self) -> str:
        """What the memory is that of: "device" or "process"."""
        return next((rank.peak_kind for rank in self.ranks if rank.peak_kind), "")

    @property
    def compile_cache(self) -> CompileCache:
        """ "cold" if any rank had to compile."""
        states: list[CompileCache] = [rank.compile_cache for rank in self.ranks if rank.compile_cache]
        if "cold" in states or not states:
            return "cold" if states else ""
        return states[0]

    @property
    def precision_errors(self) -> dict[str, float]:
        """The largest error of each product over the ranks: harness/gate/precision_probe.py."""
        found: dict[str, float] = {}
        for rank in self.ranks:
            for name, error in rank.precision_errors.items():
                found[name] = max(found.get(name, 0.0), error)
        return found


def _slowest(ranks: Sequence[Epoch]) -> Epoch:
    clocks = ("seconds", "first_step_seconds", "wait_seconds", "evaluation_seconds", "report_seconds")
    return replace(ranks[0], **{clock: max(getattr(epoch, clock) for epoch in ranks) for clock in clocks})
