"""Numbers and values as a report writes them, whatever the renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from harness.reporting.model import Column, Table
from harness.reporting.values import (
    Beside,
    ByCache,
    Following,
    Formula,
    IntervalOf,
    Kind,
    Measured,
    Missing,
    OfTolerance,
    OutOf,
    ParityError,
    PerStage,
    Quantity,
    Value,
)
from harness.statistics.intervals import Interval

MISSING = "-"


def number(value: float | None) -> str:
    """Three significant digits, or all digits before the point, with thousands separated; "-" for None."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def supported(value: float, interval: Interval | None) -> str:
    """A number with the digits that its interval supports, thousands separated; three digits without an interval."""
    return _with_decimals(value, _decimals(value, interval))


def ends(value: float, interval: Interval) -> tuple[str, str]:
    """Both ends of a number's interval, with the digits that it supports."""
    decimals = _decimals(value, interval)
    return _with_decimals(interval.low, decimals), _with_decimals(interval.high, decimals)


def with_interval(value: float, interval: Interval | None, *, unit: str = "") -> str:
    """ "1.917 [1.907, 1.927]", "3.3% [2.6%, 4.1%]": with the digits that the interval supports; the number alone
    without an interval. `unit` is attached to each number."""
    found = supported(value, interval) + unit
    if interval is None:
        return found
    low, high = ends(value, interval)
    return f"{found} [{low}{unit}, {high}{unit}]"


def _decimals(value: float, interval: Interval | None) -> int:
    """Digits after the point, negative for zeros before it: the last one is at least a twentieth, and at most half, of
    the interval's half width."""
    if interval and 0 < (half := value - interval.low) < math.inf:
        return -math.floor(math.log10(half / 2))
    return 2 - _exponent(value) if value else 0


def following(value: float, measured: Measured) -> str:
    """A number that follows from a measured one, with as many significant digits."""
    digits = _decimals(measured.value, measured.interval) + _exponent(measured.value)
    return _with_decimals(value, digits - _exponent(value))


def _exponent(value: float) -> int:
    """Of the first digit: 3 for 6,970."""
    return math.floor(math.log10(abs(value))) if value else 0


def _with_decimals(value: float, decimals: int) -> str:
    if math.isinf(value):
        return "∞"
    return f"{round(value, decimals):,.{max(0, min(decimals, 12))}f}"


def at_most(error: float) -> str:
    """An error as an upper bound with one digit, rounded up: 4.3e-4 is "5e-04"."""
    if not math.isfinite(error) or error == 0:
        return f"{error:.0e}"
    exponent = math.floor(math.log10(error))
    digit = math.ceil(round(error / 10.0**exponent, 6))  # an error that exceeds a digit only by rounding is that digit
    return f"{digit * 10.0**exponent:.0e}"


def from_to(numbers: Sequence[int]) -> str:
    """The smallest and the largest number: "3 to 1,000"; "3" if they are equal; "" if there are none."""
    return " to ".join(f"{value:,}" for value in sorted({min(numbers), max(numbers)})) if numbers else ""


def count(number_of: int, noun: str, plural: str = "") -> str:
    """ "1 cell", "3 cells", "2 launches": a count with its noun, whose plural ends with "s" unless it is given."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def conjunction(items: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


DIGITS: dict[Kind, Callable[[float], str]] = {
    Kind.TEXT: str,
    Kind.LABEL: str,
    Kind.COUNT: "{:.0f}".format,
    Kind.GROUPED: "{:,.0f}".format,
    Kind.ROUNDED: number,
    Kind.UNTIL: lambda value: "never" if value == math.inf else number(value),
    Kind.HUNDREDTHS: "{:.2f}".format,
    Kind.PERCENT: "{:.0f}%".format,
    Kind.SHORTEST: "{:g}".format,
    Kind.ERROR: "{:.1e}".format,
    Kind.PARITY: at_most,
}
"""How the numbers of each kind of column are written."""


def written(value: Value, column: Column, *, brief: bool = False) -> str:
    """A value of this column as text; "-" if it is missing. `brief`: without intervals, for narrow screens."""
    digits = DIGITS[column.kind]
    match value:
        case None:
            return MISSING
        case str():
            return value
        case int() | float():
            return digits(value)
        case Interval():
            return f"{digits(value.low)} – {digits(value.high)} ({100 * value.confidence:.0f}%)"
        case IntervalOf():
            return " – ".join(ends(value.value, value.interval))
        case OutOf():
            return f"{value.count}/{value.total}"
        case Measured():
            alone = brief or not value.with_interval
            text = (supported if alone else with_interval)(value.value, value.interval)
            return text + (f" ({value.condition})" if value.condition else "")
        case Following():
            return following(value.value, value.measured)
        case PerStage():
            return " / ".join(map(digits, value.values))
        case Beside():
            return f"{digits(value.value)} ({MISSING if value.other is None else digits(value.other)})"
        case ByCache():
            return ", ".join(f"{digits(each)} {state}".rstrip() for state, each in value.values)
        case Quantity():
            return written(value.value, column) + ("" if value.unit == column.unit else f" {value.unit}")
        case ParityError():
            return _parity_error(value, digits)
        case OfTolerance():
            return f"{digits(value.error)} of {_tolerance(value.tolerance)}"
        case Formula():
            return f"{digits(value.value)} = {value.formula}"
        case Missing():
            return f"{MISSING} ({value.reason})"
        case _:
            assert_never(value)


def _parity_error(value: ParityError, digits: Callable[[float], str]) -> str:
    if not value.passed:
        return f"FAILED ({digits(value.error)})"
    named = "" if value.tolerances == "exact" else f" (larger tolerances: {value.tolerances})"
    return digits(value.error) + named


def _tolerance(value: float) -> str:
    """ "1e-11", "2.3e-07"."""
    return f"{value:.1e}".replace(".0e", "e")


def written_rows(table: Table) -> list[list[str]]:
    """The rows of a table as text."""
    return [[written(value, column) for value, column in zip(row, table.columns, strict=True)] for row in table.rows]
