"""The values in a report's tables: numbers, text, and a small type for each value that is neither.

A number is in the unit of its column: 12.5 in a column of milliseconds, 98.4 in one of percent. None is a missing
value. How a value is written follows from the `Kind` of its column; see formatting.written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.statistics.intervals import Interval


class Kind(Enum):
    """What a column holds, which decides how many digits its numbers get."""

    TEXT = "words"
    LABEL = "a number that counts nothing, such as a version or the index of a device; or a word in its place"
    COUNT = "a whole number"
    GROUPED = "a whole number, with thousands separated"
    ROUNDED = "three significant digits, or all digits before the point, with thousands separated"
    UNTIL = "as ROUNDED, for what may never happen: infinity is written as never"
    HUNDREDTHS = "two digits after the point"
    PERCENT = "whole percent, with the sign"
    SHORTEST = "no more digits than it needs"
    ERROR = "a relative error: two digits and an exponent"
    PARITY = "the outcome of the parity gate: an error as an upper bound, and words where there is more to say"

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers alone, which a terminal aligns to the right."""
        return self not in (Kind.TEXT, Kind.LABEL, Kind.PARITY)


@dataclass(frozen=True)
class IntervalOf:
    """The interval of a measured number, with the digits that it supports."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class OutOf:
    """How many of a total: "3/5"."""

    count: int
    total: int


@dataclass(frozen=True)
class Measured:
    """A measured number, with its interval if it has one. Its digits are those that the interval supports.

    `with_interval`: whether the interval is written beside it. `condition`: what the number depends on, if readers need
    to know it: "split 20".
    """

    value: float
    interval: Interval | None
    with_interval: bool = True
    condition: str = ""


@dataclass(frozen=True)
class Following:
    """A number that follows from a measured one, as a step's time from a speed. It is written with as many significant
    digits."""

    value: float
    measured: Measured


@dataclass(frozen=True)
class PerStage:
    """One number for each stage."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Beside:
    """A number, with another one in brackets beside it."""

    value: float
    other: float | None


@dataclass(frozen=True)
class ByCache:
    """A number for each state of the compile cache ("cold", "warm"), or one number if there is no such cache."""

    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Quantity:
    """A number with its unit. The unit is written only if it is not that of the column."""

    value: float | Measured
    unit: str


@dataclass(frozen=True)
class ParityError:
    """The worst relative error in the parity gate. `tolerances`: the gate's set of tolerances, usually "exact"."""

    error: float
    passed: bool
    tolerances: str


@dataclass(frozen=True)
class OfTolerance:
    """A relative error and its tolerance."""

    error: float
    tolerance: float


@dataclass(frozen=True)
class Formula:
    """A number and the formula that gives it."""

    value: float
    formula: str


@dataclass(frozen=True)
class Missing:
    """A value that there is not, with the reason in a word or two."""

    reason: str


Composite = (
    Interval
    | IntervalOf
    | OutOf
    | Measured
    | Following
    | PerStage
    | Beside
    | ByCache
    | Quantity
    | ParityError
    | OfTolerance
    | Formula
    | Missing
)
"""Values that are made of numbers."""
Value = str | int | float | Composite | None
