"""What a user may ask for, in the user's words. Nothing here is checked yet: `request_checks` does that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.spec import RunOptions


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What `train` asks for in addition. None stands for the workload's own value."""

    epochs: int | None = None
    target_accuracy: float | None = None
    seeds: int | None = None  # how many; None: as many as the preset has launches
    last_batch: str = "exact"
    input: str = "resident"
    workers: tuple[int, ...] = (0,)  # of the loader; each number makes a cell of its own
    save_every: int = 0
    init_from: str = ""


@dataclass(frozen=True, kw_only=True)
class Request(RunOptions):
    """What the user asks for. "all" and None stand for the defaults of this machine and these workloads."""

    frameworks: tuple[str, ...] = ("all",)
    workloads: tuple[str, ...] = ("mnist_cnn",)
    strategies: tuple[str, ...] = ("all",)
    devices: tuple[int, ...] = ()
    platform: str = "auto"
    size: str | None = None
    global_batch: int | None = None
    tracks: tuple[str, ...] = ("defaults",)
    settings: Mapping[str, str] = field(default_factory=dict)  # of frameworks; they override the track's
    precision: str | None = None  # None: the track's
    optimizer: str | None = None
    learning_rate_scaling: str = "none"
    batch_norm: str | None = None  # None: each strategy's own
    seed: int = 0
    preset: str | None = None
    launches: int | None = None  # None: the preset's
    timeout_seconds: float = 600.0
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of strategies; several values make a sweep
    interpreters: Mapping[str, str] = field(default_factory=dict)
    compile_cache: str = ""
    training: TrainingRequest | None = None  # only for `train`
