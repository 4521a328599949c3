"""Text from outside as a record can hold it, and as a reader sees it.

It comes from file names, variables, exceptions and the logs of processes, which hold anything.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal or turn the direction of text around, and halves of characters. Not the ends of
lines, and no tabs."""


def visible(text: str) -> str:
    """The text with every such character written out, as Python does: an escape sequence begins with a readable \\x1b.

    A line that ends with a carriage return is an ordinary line.
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def without_home(text: str) -> str:
    """The text with ~ in place of the user's home directory: records are published, and paths in them name people."""
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home() raises an exception where there is none)
    return re.sub(rf"(?<![\w.~-]){re.escape(home)}(?=/|$|[^\w.-])", "~", text) if home.count("/") > 1 else text


def printable(text: str) -> str:
    """The text in one line, with a question mark for each character that is not printed."""
    return "".join(character if character.isprintable() else "?" for character in text)


def mapped(value: T, change: Callable[[str], str]) -> T:
    """A value of dataclasses, sequences and mappings with `change` applied to all its texts."""
    return _mapped(value, change)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, item in found.items() if (new := _mapped(item, change)) != item}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def encodable(value: T) -> T:
    """The value with texts that can all be written as UTF-8.

    Python reads bytes that are not UTF-8, as a file name may hold them, as halves of characters (PEP 383), which no
    JSON reader takes. They are written out: "\\udcff".
    """
    return mapped(value, lambda text: text.encode("utf-8", "backslashreplace").decode())
