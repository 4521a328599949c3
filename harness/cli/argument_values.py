"""How the text of a command-line argument becomes a value. Every error names the flag and the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cyclopts import UNSET, App, Argument, ArgumentCollection, Parameter, Token

from harness.spec.errors import UsageError
from harness.spec.text import encodable

NAMES, NUMBERS = tuple[str, ...], tuple[int, ...]


def split(flag: str, text: str) -> list[str]:
    """The parts of a comma-separated list; none of a text with nothing but commas.

    Raises UsageError if one part of several is empty: it may come from an unset shell variable, as in `torch,$OTHER`.
    """
    parts = [part.strip() for part in text.split(",")]
    if any(parts) and not all(parts):
        number = parts.index("") + 1
        raise UsageError(f"{flag} {text!r}: part {number} of the list is empty; name it, or drop its comma")
    return [part for part in parts if part]


def split_pairs(text: str, *, separators: str = ",") -> list[str]:
    """The parts of a list of NAME=VALUE texts. A value may hold a separator: only one before another NAME= counts."""
    return [part.strip() for part in re.split(rf"[{separators}](?=[\s{separators}]*[\w.-]+=)", text) if part.strip()]


def prepare_tokens(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Check the texts that cyclopts found for each flag in all sources, and cut lists into parts for it to convert.

    cyclopts calls this like a source of configuration, after all others. Raises UsageError for a text that is empty: it
    may come from an unset shell variable, and must not mean the default. Raises it for a number that is not whole, too,
    which cyclopts would round.
    """
    flags = [argument for argument in arguments if argument.field_info.is_keyword]
    for argument in flags:
        for token in argument.tokens:
            if token.implicit_value is UNSET and not token.value.strip(", "):
                raise UsageError(f"{argument.name}: is empty; give a value, or leave the flag out")
            _check_can_be_recorded(argument, token)
        if argument.hint in (NAMES, NUMBERS):
            argument.tokens = _parts(argument)
        if argument.hint in (NUMBERS, int, int | None):
            for token in argument.tokens:
                _check_whole(token)


def _parts(argument: Argument) -> list[Token]:
    """The texts of a list, cut at the commas."""
    parts = [token.evolve(value=part) for token in argument.tokens for part in split(argument.name, token.value)]
    return [part.evolve(index=index) for index, part in enumerate(parts)]


NOT_RECORDED = ("--out", "--resume", "--csv", "--latex", "--parquet")


def _check_can_be_recorded(argument: Argument, token: Token) -> None:
    """A file's name may be any bytes except NUL, but a record is UTF-8."""
    if "\0" in token.value:
        raise UsageError(f"{argument.name} {token.value!r}: holds a NUL character; leave it out")
    if argument.name not in NOT_RECORDED and encodable(token.value) != token.value:
        raise UsageError(f"{argument.name} {token.value!r}: is not UTF-8, so that no record can hold it; rename it")


def _check_whole(token: Token) -> None:
    try:
        int(token.value)
    except ValueError:
        in_file = (token.keyword or "").startswith("[")  # as cyclopts writes it
        name = f"--config {token.source}: {token.keyword.strip('[]')}" if token.keyword and in_file else token.keyword
        raise UsageError(f"{name} {token.value!r}: must be a whole number") from None


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


def as_settings(texts: Sequence[str]) -> dict[str, str]:
    """What --setting gives. Raises UsageError."""
    return pairs("--setting", texts, example="compile=false")


def as_options(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What --option gives: one value for each name. Raises UsageError."""
    found = pairs("--option", texts, example="split_size=20", if_repeated="; use `sweep` to compare values")
    return {name: (value,) for name, value in found.items()}


def as_interpreters(texts: Sequence[str]) -> dict[str, str]:
    """What --interpreter gives, with absolute paths. Raises UsageError."""
    paths = {}
    for name, value in pairs("--interpreter", texts, example="tf=/opt/tf/bin/python", form="NAME=PATH").items():
        path = Path(value).expanduser().absolute()  # not resolve(): the python of a virtual environment is a link
        if not path.is_file():
            raise UsageError(f"--interpreter '{name}={value}': there is no such file; name a Python executable")
        paths[name] = str(path)
    return paths


def mapping(convert: Callable[[Sequence[str]], Mapping[str, Any]]) -> Parameter:
    """A flag whose comma-separated texts `convert` turns into a mapping. It can be repeated."""
    return Parameter(
        converter=partial(_converted, convert=convert),
        accepts_keys=False,  # --option split_size=20, not --option.split_size 20
        n_tokens=-1,  # any number
        env_var_split=lambda _, text, **_options: split_pairs(text, separators=r",\s"),  # a variable may hold a list
    )


def _converted(_: type, tokens: Sequence[Token], *, convert: Callable[[Sequence[str]], Mapping[str, Any]]) -> Any:
    return convert([part for token in tokens for part in split_pairs(token.value)])
