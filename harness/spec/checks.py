"""One comparison with what is right, as a record holds it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.spec.kinds import Quantity


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
