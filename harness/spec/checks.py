"""One comparison with what is right, as a record holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.spec.kinds import Quantity


@dataclass(frozen=True, kw_only=True)
class Check:
    """One quantity of a program that was compared: the worst error and where. A value that is not finite counts as
    infinitely wrong.

    What has no size of error (a wrong number format, a device without work) has the error 0 or infinity, and `worst`
    says what is wrong: see `finding`.
    """

    quantity: Quantity
    error: float
    tolerance: float
    worst: str

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    @property
    def severity(self) -> tuple[bool, float]:
        """Of two checks of one quantity, the larger is the worse one: they may have different tolerances."""
        return not self.passed, self.error

    def __str__(self) -> str:
        if self.tolerance == 0:
            return f"{self.quantity}: {self.worst or 'as they must be'}"
        return f"{self.quantity} off by {self.error:.1e} at {self.worst} (tolerance {digits(self.tolerance)})"


def digits(tolerance: float) -> str:
    """A tolerance in one digit, or in two where one would round it: 1e-09, 2.5e-01."""
    short = f"{tolerance:.0e}"
    return short if float(short) == tolerance else f"{tolerance:.1e}"


def finding(quantity: Quantity, wrong: str) -> Check:
    """The check of something that is right or wrong. `wrong`: in what way, or ""."""
    return Check(quantity=quantity, error=math.inf if wrong else 0.0, tolerance=0.0, worst=wrong)
