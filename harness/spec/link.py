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
        speed = f"{1e3 * self.round_trip_seconds:.2g} ms, {self.bytes_per_second / 1e9:.2g} GB/s"
        return f"{self.source} to {self.target}: {speed}"
