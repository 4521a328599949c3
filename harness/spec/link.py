"""How fast one host of a run reaches another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way from one host to another, over one TCP connection, as it was when the session began."""

    source: str
    target: str
    round_trip_seconds: float
    bytes_per_second: float

    def __str__(self) -> str:
        speed = f"{_digits(1e3 * self.round_trip_seconds)} ms, {_digits(self.bytes_per_second / 1e9)} GB/s"
        return f"{self.source} to {self.target}: {speed}"


def _digits(value: float) -> str:
    """Two significant digits, or all before the point."""
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"
