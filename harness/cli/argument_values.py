"""How the text of a command-line argument becomes a value. Every error names the flag and the text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from harness.spec.errors import UsageError


def whole_number(type_: type, tokens: Sequence[Token]) -> int:
    """A cyclopts converter that refuses 3.5, which cyclopts itself would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


WholeNumber = Annotated[int, Parameter(converter=whole_number)]


def split(values: Sequence[str]) -> list[str]:
    """The parts of comma-separated lists, from one flag or several, as one list."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def names(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    """At least one name. Raises UsageError."""
    found = tuple(split(values))
    if not found:
        raise UsageError(f"{flag}: is empty; give names, a comma-separated list, or all")
    return found


def check_not_empty(flag: str, value: str | None) -> None:
    """Raises UsageError for an empty text: it may come from an unset shell variable, and must not mean the default."""
    if value == "":
        raise UsageError(f"{flag}: is empty; give a name, or leave the flag out")


def integer(flag: str, value: str) -> int:
    """A whole number. Raises UsageError."""
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{flag} {value!r}: must be a whole number, or a comma-separated list of them") from None


def pairs(
    flag: str, texts: Sequence[str], *, example: str, if_repeated: str = "", form: str = "NAME=VALUE"
) -> dict[str, str]:
    """NAME=VALUE texts as a mapping.

    Raises UsageError for a text of another form, and for a name that is given twice. `if_repeated`: what the user
    should do then.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag} {text!r}: must be {form}, e.g. {example}")
        if name in found:
            raise UsageError(f"{flag} {name}: given twice, as {found[name]} and {value}{if_repeated}")
        found[name] = value
    return found


def compile_cache(value: str) -> str:
    """A folder that exists or can be made, as an absolute path; "none" and "" as they are. Raises UsageError."""
    if value in ("", "none"):
        return value
    folder = Path(value).expanduser().absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())  # frameworks make the rest
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise UsageError(f"--compile-cache {value}: {existing} is not a writable folder; name another folder, or none")
    return str(folder)


def interpreters(values: Sequence[str]) -> dict[str, str]:
    """NAME=PATH texts as a mapping from names to absolute paths. Raises UsageError."""
    paths = {}
    for name, value in pairs("--interpreter", values, example="tf=/opt/tf/bin/python", form="NAME=PATH").items():
        path = Path(value).expanduser().absolute()  # not resolve(): the python of a virtual environment is a link
        if not path.is_file():
            raise UsageError(f"--interpreter '{name}={value}': there is no such file; name a Python executable")
        paths[name] = str(path)
    return paths
