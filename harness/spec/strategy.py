"""What a framework offers, as its manifest declares it: settings, strategies, and the framework itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.spec.kinds import Algorithm, Holding, Normalization, Platform, Precision, Processes, Role, Traffic
from harness.spec.option import Option
from harness.spec.trial import OptimizerSpec
from harness.spec.tuning import TuningEffort


@dataclass(frozen=True, kw_only=True)
class SettingCell:
    """What decides in a cell whether it can have a setting, besides its strategy.

    `precision` is that of the timed run: the parity phase has the same settings. `normalizes`: whether the network has
    BatchNorm.
    """

    workload: str
    normalizes: bool
    platform: Platform
    optimizer: OptimizerSpec
    precision: Precision
    options: Mapping[str, Any]


Obstacle = str | Callable[[SettingCell], str]
"""Why a cell cannot have a setting: always, or as a function that returns "" for a cell that can."""


def obstacle_in(cell: SettingCell, obstacle: Obstacle) -> str:
    """Why this cell cannot have the setting, or ""."""
    return obstacle if isinstance(obstacle, str) else obstacle(cell)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A choice of how a framework executes a step. It never changes what is computed.

    A setting is off on the track "defaults", unless the framework itself turns it on (StrategySpec.by_default). The
    track "tuned" turns it on, on the platforms in `tuned_on`; on others only `--setting NAME=true` does. It stays off
    where it is not applicable:

    - on CPU devices, if it `needs_gpu`;
    - where the setting that it `requires` is off, or the one that takes its place (`replaced_by`) is on;
    - where `obstacle` says why;
    - where BatchNorm communicates in the middle of a step, unless it supports `synchronized` BatchNorm;
    - in a strategy that is not listed in `strategies`, if any are listed.

    `source`: who says that it makes the framework faster (documentation or a measurement).
    `rung`: settings of the same rung are turned on together by --track ladder. By default each has a rung of its own.
    `environment`: variables that workers get while it is on; one that the user has set keeps the user's value.
    `compile_seconds`: how much longer a large network compiles with it.
    """

    name: str
    summary: str
    source: str
    tuned_on: tuple[Platform, ...] = ("cpu", "gpu")
    rung: str = ""
    needs_gpu: bool = False
    requires: str = ""  # one that comes before it
    replaced_by: str = ""  # likewise
    obstacle: Obstacle = ""
    synchronized: bool = True
    strategies: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    compile_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StrategySpec:
    """What the planner must know about a parallel strategy without importing its framework.

    `processes`: "one" process drives all devices, or each device has its own ("per_device").
    `spreads`: over several hosts each device has its own process, although there is one for all devices of one host.
    `normalization`: which samples share BatchNorm statistics. `other_normalizations`: what --batch-norm may choose
    instead; each has the reason why it needs GPUs, or "".
    `one_host`: why its ranks must all be on one host, or "" if they need not.
    `options`: the strategy's own options, no two of them in the same role.
    `unused_parameters(options)`: why it cannot train a network with parameters that no output depends on, or "".
    `no_pooling_in_fp64`: why it cannot be timed in float64 with a network that has max pooling, or "" if it can.
    `tuned`: settings, and options of this strategy, that the tuned track sets differently than for the framework's
    other strategies. `tuned_because` says why; `tuned_source` says where that is documented.
    `without`: settings that this strategy, or some of its cells, cannot have, with reasons.
    `by_default`: settings that the framework's own high-level API turns on by itself where this strategy runs on GPUs,
    so they are on on the track "defaults", too; each with the source that says so. `untuned` is what that track then
    runs, as reports name it.
    `one_step_per_call`: why its programs cannot make several steps in one call (`Program.steps`), or "" if they can.
    `several_steps_need`: the setting without which they cannot, if there is one.
    `holds`: what each device keeps of the parameters and of their optimizer state. Each timed program is held to it,
    and to `traffic`, if its package can say what lies where (`holdings.py`).

    Model and pipeline strategies have one stage per device, unless an option says otherwise. The last six fields are
    the strategy's row in docs/strategies.md.

    Raises ValueError for options that do not fit together.
    """

    name: str
    summary: str
    processes: Processes
    parallelism: Literal["none", "data", "model", "pipeline"] = "data"
    spreads: bool = False
    min_devices: int = 1
    one_host: str = ""
    needs_gpu: str = ""  # why it cannot run on CPU devices; empty where it can
    algorithm: Algorithm = "synchronous"  # the others train differently, and are never ranked with synchronous ones
    normalization: Normalization = "per_device"
    other_normalizations: dict[Normalization, str] = field(default_factory=dict)
    accumulates: bool = True  # accepts --accumulation-steps, if its parallelism is "data" or "none"
    one_step_per_call: str = "its program makes one step in each call"
    several_steps_need: str = ""
    fixed_batch: bool = False  # every batch must have as many rows as the first: a short one is padded to it
    options: tuple[Option, ...] = ()
    unused_parameters: Callable[[dict[str, Any]], str] | None = None
    no_pooling_in_fp64: str = ""
    tuned: dict[str, Any] = field(default_factory=dict)
    tuned_because: str = ""
    by_default: dict[str, str] = field(default_factory=dict)
    untuned: str = ""
    tuned_source: str = ""
    without: dict[str, Obstacle] = field(default_factory=dict)
    holds: Holding = "all"
    replicated: str = ""
    sharded: str = ""
    crosses: str = ""
    waits: str = ""
    use: str = ""
    traffic: Traffic = "none"

    def __post_init__(self) -> None:
        _check_unique(f"strategy {self.name}: options named", [option.name for option in self.options])
        _check_unique(f"strategy {self.name}: options in the role", [o.role for o in self.options if o.role])
        for option in self.options:
            if option.replaces and option.replaces not in self.defaults:
                raise ValueError(
                    f"strategy {self.name}: option {option.name} replaces {option.replaces!r}, which it does not have"
                )

    def process_count(self, *, devices: int, hosts: int) -> int:
        """How many processes a cell on so many devices has."""
        return devices if self.processes == "per_device" or (self.spreads and hosts > 1) else 1

    @property
    def defaults(self) -> dict[str, Any]:
        """The default value of each option, by name."""
        return {option.name: option.default for option in self.options}

    def obstacles(self, cell: SettingCell) -> dict[str, str]:
        """The settings that a cell of this strategy cannot have, with reasons."""
        found = {name: obstacle_in(cell, obstacle) for name, obstacle in self.without.items()}
        return {name: reason for name, reason in found.items() if reason}

    def option(self, name: str) -> Option:
        """The option of that name. Raises KeyError."""
        for option in self.options:
            if option.name == name:
                return option
        raise KeyError(name)

    def roles(self, names: Iterable[str]) -> dict[Role, str]:
        """The names of those options that have a role, by role. Only the given `names` count."""
        chosen = set(names)
        return {option.role: option.name for option in self.options if option.role and option.name in chosen}


def _check_unique(what: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} {value}: {values.count(value)} instead of one")


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
    settings: tuple[Setting, ...] = ()  # what the tracks set differently
    tuning: TuningEffort | None = None  # how those of the tuned track were found; None: not known
    compile_cache: str = ""  # the variable that names the folder where it keeps what it has compiled, if it has one
    sharing: dict[str, str] = field(default_factory=dict)  # variables that leave room on a GPU for other processes
    strategies: tuple[StrategySpec, ...]
    # What its optimizers do with a parameter without a gradient, if they do something else with a gradient of zero.
    without_gradient: str = ""
    not_offered: dict[str, str] = field(default_factory=dict)  # techniques that other frameworks offer; why, and source
    workloads: tuple[str, ...] = ()  # those it has models for; () means those in its folder models/
    environment: dict[Platform, dict[str, str]] = field(default_factory=dict)
    # Whether ranks on CPU devices may be forked from a process that has imported runtime.py: the import starts nothing,
    # and does not read the variable `compile_cache`.
    forks: bool = False

    def strategy(self, name: str) -> StrategySpec:
        """The strategy of that name. Raises KeyError."""
        for strategy in self.strategies:
            if strategy.name == name:
                return strategy
        raise KeyError(name)
