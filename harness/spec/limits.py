"""What a value on the command line may be, declared beside the field that takes it."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.spec.errors import UsageError, check_name

MOST_COUNTED = 10**15
"""The largest whole number that a flag takes, such as a number of steps. A record holds 64-bit integers."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a field may hold besides None, as in `Annotated[int, Limits(least=1)]`. None stands for no limit."""

    least: float | None = None
    most: float | None = None
    allowed: tuple[str, ...] = ()  # the names to choose from; none given: any text


def check_limits(asked: Any) -> None:
    """Check every field of a dataclass that declares limits.

    Raises UsageError, which names the value, what is allowed, and the flag: it is called like the field.
    """
    for name, limits in _declared(type(asked)):
        value = getattr(asked, name)
        if value is not None:
            _check(f"--{name.replace('_', '-')}", value, limits)


def _declared(kind: type) -> Iterator[tuple[str, Limits]]:
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Limits):
                yield name, note


def _check(flag: str, value: Any, limits: Limits) -> None:
    if limits.allowed:
        check_name(flag, value, limits.allowed)
    bounds = []
    if limits.least is not None:
        bounds.append(f"at least {_readable(limits.least)}")
    if limits.most is not None:
        bounds.append(f"at most {_readable(limits.most)}")
    if not _within(value, limits):
        shown = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"{flag} {shown}: must be {' and '.join(bounds)}")


def _readable(limit: float) -> str:
    """All digits of a whole number, so that it can be typed as it stands."""
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def _within(value: Any, limits: Limits) -> bool:
    """Whether a number is within its bounds; NaN is within none."""
    large_enough = limits.least is None or limits.least <= value
    small_enough = limits.most is None or value <= limits.most
    return large_enough and small_enough
