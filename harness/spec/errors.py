"""The errors that end a command with one line for the user, and the exit code that each stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The request cannot be met as written: exit code 2."""


class MachineUnfit(RuntimeError):
    """The request is fine, but this machine cannot serve it: exit code 3."""


class Interrupted(BaseException):
    """A signal asked the run to stop: exit code 128 + its number. Not an Exception, so that nothing swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.folder = ""  # of the run


def check_name(option: str, value: str, allowed: Iterable[str], *, extra: str = "") -> None:
    """Raise UsageError unless `value` is allowed, naming the nearest allowed value."""
    allowed = list(allowed)
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        if "," in value and set(value.split(",")) <= set(allowed):
            guess = "; it takes one of them"
        raise UsageError(f"{option} {value!r}: allowed are {', '.join(allowed)}{extra}{guess}")
