"""Numbers as a report prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float | None) -> str:
    """Three significant digits, or all digits before the point, with thousands separated; "-" for None.

    The spread between launches supports no more digits.
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def at_most(error: float) -> str:
    """An error as an upper bound with one digit, rounded up: 4.3e-4 is "5e-04"."""
    if not math.isfinite(error) or error == 0:
        return f"{error:.0e}"
    exponent = math.floor(math.log10(error))
    digit = math.ceil(round(error / 10.0**exponent, 6))  # an error that exceeds a digit only by rounding is that digit
    return f"{digit * 10.0**exponent:.0e}"


def from_to(numbers: Sequence[int]) -> str:
    """The smallest and the largest number: "3 to 10"; "3" if they are equal; "" if there are none."""
    return " to ".join(str(value) for value in sorted({min(numbers), max(numbers)})) if numbers else ""


def count(number_of: int, noun: str, plural: str = "") -> str:
    """ "1 cell", "3 cells", "2 launches": a count with its noun, whose plural ends with "s" unless it is given."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"
