"""Frozen dataclasses to JSON and back, with the standard library alone: what parent and workers send each other.

Both sides know the type of what they read, so a JSON file holds no type names. A field that is missing takes its
default; a field that is unknown, or a value of another type, is an error that names its place.

Understood are dataclasses, None, bool, int, float (NaN and infinities included, as Python writes them), str, Path,
Literal, unions, tuple, list, dict with text keys, and Any for plain JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Malformed(ValueError):
    """The JSON is not what its reader expects: where, what was expected, and what was found."""


def dumps(value: Any) -> str:
    """A value as JSON text."""
    return json.dumps(encode(value))


def loads(kind: type[T], text: str) -> T:
    """The value of type `kind` that `dumps` wrote. Raises Malformed, also for text that is no JSON."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error
    return decode(kind, raw)


def encode(value: Any) -> Any:
    """A value as plain JSON data. Raises TypeError for what JSON cannot hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys must be text, are {sorted(map(repr, value))}")
        return {key: encode(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be sent: {value!r:.80}")


def decode(kind: Any, raw: Any, *, at: str = "") -> Any:
    """Plain JSON data as a value of type `kind`. `at`: where the data stands, for messages. Raises Malformed."""
    if kind is Any:
        return raw
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if any(raw == allowed and type(raw) is type(allowed) for allowed in arguments):
            return raw
        raise _unexpected(at, f"one of {', '.join(map(repr, arguments))}", raw)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, raw, at)
    if origin in (tuple, list):
        return _decode_sequence(origin, arguments, raw, at)
    if origin is dict:
        if not isinstance(raw, dict):
            raise _unexpected(at, "an object", raw)
        return {key: decode(arguments[1], item, at=f"{at}.{key}") for key, item in raw.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, raw, at)
    return _decode_scalar(kind, raw, at)


def as_received(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values of some fields of a dataclass, as its reader will see them. Raises TypeError or Malformed."""
    known = _fields(kind)
    return {
        name: decode(known[name], encode(value), at=name) if name in known else value for name, value in values.items()
    }


def _decode_scalar(kind: Any, raw: Any, at: str) -> Any:
    if kind is Path and isinstance(raw, str):
        return Path(raw)
    if kind is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if kind in (int, str, bool, types.NoneType) and type(raw) is kind:
        return raw
    raise _unexpected(at, getattr(kind, "__name__", str(kind)), raw)


def _decode_union(kinds: tuple[Any, ...], raw: Any, at: str) -> Any:
    others = [kind for kind in kinds if kind is not types.NoneType]
    if raw is None and len(others) < len(kinds):
        return None
    if len(others) == 1:
        return decode(others[0], raw, at=at)
    for kind in others:
        with contextlib.suppress(Malformed):
            return decode(kind, raw, at=at)
    raise _unexpected(at, " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds), raw)


def _decode_sequence(origin: Any, kinds: tuple[Any, ...], raw: Any, at: str) -> Any:
    if not isinstance(raw, list):
        raise _unexpected(at, "a list", raw)
    if origin is list or (len(kinds) == 2 and kinds[1] is Ellipsis):
        return origin(decode(kinds[0], item, at=f"{at}[{index}]") for index, item in enumerate(raw))
    if len(kinds) != len(raw):
        raise _unexpected(at, f"{len(kinds)} items", raw)
    return tuple(
        decode(kind, item, at=f"{at}[{index}]") for index, (kind, item) in enumerate(zip(kinds, raw, strict=True))
    )


def _decode_dataclass(kind: Any, raw: Any, at: str) -> Any:
    if not isinstance(raw, dict):
        raise _unexpected(at, kind.__name__, raw)
    known = _fields(kind)
    for name in raw:
        if name not in known:
            raise Malformed(f"{_place(at, name)}: {kind.__name__} has no such field")
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in raw:
            raise Malformed(f"{_place(at, field.name)}: missing")
    return kind(**{name: decode(known[name], item, at=_place(at, name)) for name, item in raw.items()})


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; those that classes alone hold are none."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _place(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _unexpected(at: str, expected: str, raw: Any) -> Malformed:
    return Malformed(f"{at or 'the value'}: must be {expected}, is {raw!r:.80}")
