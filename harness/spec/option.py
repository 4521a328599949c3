"""An option of a strategy, as a manifest declares it: a parameter that changes how the strategy trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.spec.kinds import Role, ToleranceSet

# roles of whole numbers
COUNTS: tuple[Role, ...] = ("micro_batches", "micro_batch_size", "averaging_interval", "push_interval")
SET_BY_WORKLOAD: tuple[Role, ...] = ("cut", "micro_batch_size")  # roles of options with no default of their own
AVERAGINGS_IN_PARITY = 2  # local training averages at least this often in the parity phase
PUSHES_IN_PARITY = 2  # each worker that sums gradients pushes at least this often in it
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
EXCHANGES_IN_PARITY: dict[Role | None, int] = {
    "averaging_interval": AVERAGINGS_IN_PARITY,
    "push_interval": PUSHES_IN_PARITY,
}


def as_typed(value: Any) -> str:
    """The value of an option as --option takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class CellShape:
    """The numbers of a cell that decide which values it can have. `micro_batches` is 1 without a pipeline."""

    devices: int
    global_batch: int
    micro_batches: int


@dataclass(frozen=True, kw_only=True)
class ParityPhase:
    """What the parity phase changes: it makes `steps` steps of `parity_batch` samples instead of `global_batch`."""

    global_batch: int
    parity_batch: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a strategy. `--option NAME=VALUE` sets it, and `sweep` compares its values.

    `default`: also fixes the type, which is bool, int, float or str. `choices`: all values that a text option may have.
    `least`: the smallest value of a number, which must also be finite. `most`: its largest value.

    `role`: what the option means to the harness; see `Role` in kinds.py. The name is free. An option that only its
    strategy reads has no role.
    `replaces`: the name of another option of the strategy that says the same thing in other terms. A cell has only one
    of the two: this one if it was chosen, else the other one.
    `always_shown`: plans and reports show the value even if it is the default.

    Four mappings describe single values. `needs_gpu` and `needs_even_devices` say why a value needs these.
    `tolerances`: a larger set of tolerances for the parity gate. `stages_per_device`: how many stages of a pipeline
    each device gets, if it is more than one.

    `not_applicable(value, cell)`: why a cell cannot have the value, or "".
    `in_parity(value, phase)`: the value in the parity phase. Without it, a micro_batch_size keeps the number of
    micro-batches and a short last one, an averaging_interval or a push_interval becomes short enough for several
    averagings or pushes if the phase has too few steps for its own value, and all others keep their value.

    Raises ValueError for a declaration that contradicts itself.
    """

    name: str
    summary: str
    default: Any
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    role: Role | None = None
    replaces: str = ""
    always_shown: bool = False
    needs_gpu: dict[Any, str] = field(default_factory=dict)
    needs_even_devices: dict[Any, str] = field(default_factory=dict)
    tolerances: dict[Any, ToleranceSet] = field(default_factory=dict)
    stages_per_device: dict[Any, int] = field(default_factory=dict)
    not_applicable: Callable[[Any, CellShape], str] | None = None
    in_parity: Callable[[Any, ParityPhase], Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in (bool, int, float, str):
            raise ValueError(f"option {self.name}: its default must be a bool, int, float or str, is {self.default!r}")
        if self.least is not None and not (self.kind in (int, float) and self.default >= self.least):
            raise ValueError(f"option {self.name}: its default {self.default!r} is not at least {self.least}")
        if self.role in COUNTS and self.kind is not int:
            raise ValueError(f"option {self.name}: in the role {self.role}, its default must be an int")
        from_one = self.role == "micro_batches" or self.role in EXCHANGES_IN_PARITY
        if from_one and (self.least is None or self.least < 1):
            raise ValueError(f"option {self.name}: in the role {self.role}, its least value must be at least 1")
        if self.choices:
            by_value = (self.needs_gpu, self.needs_even_devices, self.tolerances, self.stages_per_device)
            for value in (self.default, *(value for values in by_value for value in values)):
                if value not in self.choices:
                    raise ValueError(f"option {self.name}: {value!r} is not one of its choices {self.choices}")

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    def parity_value(self, value: Any, phase: ParityPhase) -> Any:
        """What `value` becomes in the parity phase."""
        if self.in_parity:
            return self.in_parity(value, phase)
        if self.role == "micro_batch_size":
            return self._size_in_parity(value, phase)
        if exchanges := EXCHANGES_IN_PARITY.get(self.role):
            return min(value, max(1, phase.steps // exchanges))
        return value

    def _size_in_parity(self, size: int, phase: ParityPhase) -> int:
        """The size of micro-batches that cuts the phase's batch as `size` cuts the global batch: see
        harness/planning/parity_phase.py, which chooses that batch."""
        if size < 1 or phase.parity_batch == phase.global_batch:  # a cell that is skipped may have any size
            return size
        count, ends_short = math.ceil(phase.global_batch / size), phase.global_batch % size != 0
        return max(math.ceil(phase.parity_batch / count), 2 if ends_short else 1)

    @property
    def is_free_text(self) -> bool:
        """Whether it takes any text, so that its values cannot be listed."""
        return self.kind is str and not self.choices

    @property
    def values_in_words(self) -> str:
        """The values: "a whole number, set by the workload"; "none by default, or bf16"."""
        if self.choices:
            return f"{self.choices[0]} by default, or {', '.join(self.choices[1:])}"
        default = "set by the workload" if self.is_set_by_workload else f"{self._default_in_words} by default"
        return f"{KINDS[self.kind]}, {default}"

    @property
    def _default_in_words(self) -> str:
        return f"{self.default:g}" if self.kind is float else str(self.default).lower()

    @property
    def is_set_by_workload(self) -> bool:
        """Whether the workload gives the value where the user gives none."""
        return self.role in SET_BY_WORKLOAD and not self.default

    def described(self) -> dict[str, Any]:
        """What a user must know of it, as plain data. A default of None: the workload gives one."""
        return {
            "name": self.name,
            "summary": self.summary,
            "type": self.kind.__name__,
            "default": None if self.is_set_by_workload else self.default,
            "choices": list(self.choices),
            "least": self.least,
            "values": self.values_in_words,
        }


CUT = Option(
    name="cut",
    summary="where the network is cut into stages: flops, time or parameters balances them; or names of network blocks",
    default="",  # set by the workload
    role="cut",
    always_shown=True,
)
MICRO_BATCHES = Option(
    name="micro_batches",
    summary="how many equal micro-batches the batch is cut into",
    default=4,
    least=1,
    role="micro_batches",
    always_shown=True,
)
SPLIT_SIZE = Option(
    name="split_size",
    summary="how many samples each micro-batch has; the last one has what is left",
    default=0,  # without a value, micro_batches decides
    role="micro_batch_size",
    replaces=MICRO_BATCHES.name,
    always_shown=True,
)
