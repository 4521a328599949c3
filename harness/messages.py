"""Messages between the parent and the ranks of a trial: an Order down; Progress meanwhile and an Answer at the end, up.

All three are JSON files, encoded by harness.spec.codec. A rank writes each of its files whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from harness import whole_files
from harness.contract import World
from harness.spec import Cause, Parity, Precision, RankResult, Status, TrialSpec, codec

Phase = Literal["cut", "parity", "peer", "reference", "timing", "training"]

TIMED: tuple[Phase, ...] = ("cut", "timing", "training")
"""The phases that measure times, which would count a pause of their processes."""

ORDER = "order.json"


def answer_file(rank: int) -> str:
    """Where a rank leaves its answer when its phase is over, however it ended."""
    return f"rank{rank}.json"


def draft_file(rank: int) -> str:
    """Where a rank saves what it has found so far, in case it is killed."""
    return f"rank{rank}.so-far.json"


def progress_file(rank: int) -> str:
    """Where a rank says what it is doing."""
    return f"rank{rank}.progress"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One phase of one trial, the same for all its ranks. Paths name what a rank reads or where it writes."""

    spec: TrialSpec
    phase: Phase
    package: str  # the framework package, with its strategies
    distributions: tuple[str, ...]  # whose versions are recorded
    worlds: tuple[World, ...]  # of each rank, in rank order
    inputs: Path  # training samples
    hosts: tuple[str, ...] = ()  # the names of several hosts; empty: this machine
    agreement: str = ""  # the URL where the ranks of several hosts agree on numbers
    golden: Path | None = None  # parity, timing: the reference that the program is compared with
    groups: int = 1  # parity: normalization groups of the reference
    output: Path | None = None  # peer, reference: the file that it is written to
    rounding: Precision = "fp64"  # reference: the precision of the programs that it judges
    compile_cache: Path | None = None  # where the framework keeps what it has compiled
    validation: Path | None = None  # training: the samples that the target is judged on
    test: Path | None = None  # training: the test samples
    run_folder: Path | None = None  # training: where checkpoints go
    checkpoint: Path | None = None  # training: the checkpoint to resume from
    init_from: Path | None = None  # training: the checkpoint with the initial weights


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a rank is doing."""

    activity: str
    done: int = 0  # of `total` steps, blocks or the like
    total: int = 0  # 0: there is nothing to count
    detail: str = ""
    said: tuple[str, ...] = ()  # lines that stay on the screen, all since the phase began: the accuracy of each epoch

    def __str__(self) -> str:
        count = f" {self.done}/{self.total}" if self.total else ""
        return f"{self.activity}{count}{', ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, kw_only=True)
class Answer(RankResult):
    """How a phase ended on one rank. Fields that the rank did not get to keep their defaults."""

    rank: int
    status: Status = "ok"
    reason: str = ""
    cause: Cause | None = None
    traceback: str = ""
    ended: float = 0.0  # seconds of the host's monotonic clock: which rank failed first
    # with what it ran
    environment: dict[str, str] = field(default_factory=dict)  # variables, as the process saw them
    interpreter: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # versions of all packages that it can import
    lock: str | None = None  # the lock file that all its packages match; "": none
    libraries: dict[str, str] = field(default_factory=dict)  # versions of the CUDA libraries that it loaded
    cut: str = ""  # the blocks after which the program was cut into stages
    parity: Parity | None = None  # of the parity phase

    @property
    def measured(self) -> RankResult:
        """What a row keeps of it."""
        return RankResult(**{item.name: getattr(self, item.name) for item in fields(RankResult)})


def write(path: Path, message: Any) -> None:
    """Write a message so that a reader sees all of it or nothing."""
    whole_files.write(path, codec.dumps(message).encode())
