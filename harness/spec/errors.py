"""The errors that end a command with one line for the user, and the exit code that each stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence


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
        self.measured = False  # everything, so that the report alone is left


NEAR = 0.65  # how similar two names must be for one to be taken for a typo of the other, from 0 to 1
BEGINNING = 3  # letters: a shorter beginning of a name may be that of anything
MOST_MEANT = 3  # so many names are suggested at most
MOST_ALLOWED = 30  # an error lists no more allowed names than this beside a suggestion


def meant(typed: str, known: Iterable[str]) -> list[str]:
    """The names that one may have meant by this: those that begin with it, or else the longest one that it begins with,
    or else the most similar one."""
    typed, names = typed.lstrip("-"), {name.lstrip("-"): name for name in known}
    found = [name for name in names if name.startswith(typed)][:MOST_MEANT] if len(typed) >= BEGINNING else []
    if not found:
        within = [name for name in names if typed.startswith(name) and len(name) >= BEGINNING]
        found = sorted(within, key=len)[-1:] or difflib.get_close_matches(typed, names, n=1, cutoff=NEAR)
    return [names[name] for name in found]


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """ "did you mean --devices or --device-guard?", or "" if nothing is near."""
    found = meant(typed, known)
    return f"did you mean {' or '.join(found)}?" if found else ""


def check_name(
    option: str, value: str, allowed: Iterable[str], *, extra: str = "", also: Mapping[str, str] = {}
) -> None:
    """Raise UsageError unless `value` is allowed, naming the nearest allowed value. `also`: allowed values, by other
    names, in small letters, that people may use for them."""
    allowed = list(allowed)
    if value not in allowed:
        raise UsageError(not_allowed(option, value, allowed, extra=extra, also=also))


def not_allowed(
    option: str, value: str, allowed: Sequence[str], *, extra: str = "", also: Mapping[str, str] = {}
) -> str:
    """That a value is none of those that are allowed. `also`: as in check_name."""
    guess = did_you_mean(also.get(value.lower(), value), allowed)
    if "," in value and set(value.split(",")) <= set(allowed):
        guess = "it takes one of them"
    elif guess and len(allowed) > MOST_ALLOWED:
        return f"{option} {value!r}: there is none of this name; {guess}"
    return f"{option} {value!r}: allowed are {', '.join(allowed)}{extra}{guess and f'; {guess}'}"
