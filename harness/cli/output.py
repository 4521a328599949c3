"""What commands print: data on standard output, errors in one line on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterable
from typing import Any

from harness.spec.text import visible


def write(text: str) -> None:
    """Print data."""
    print(visible(text))  # noqa: T201


def write_parts(parts: Iterable[str]) -> None:
    """Print data that comes in parts."""
    for part in parts:
        print(part, end="")  # noqa: T201
    print()  # noqa: T201


def write_json(content: Any) -> None:
    """Print data as one JSON document. A number that is not finite becomes a text, as in results.jsonl."""
    write(json.dumps(finite(content), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """The value with texts in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def note(text: str) -> None:
    """Print what a user should know beside the data."""
    with contextlib.suppress(OSError):
        print("note:", visible(text), file=sys.stderr, flush=True)  # noqa: T201


def fail(error: object, code: int) -> int:
    """Print an error in one line, and return the exit code."""
    with contextlib.suppress(OSError):  # the terminal is gone
        print("harness: error:", visible(" ".join(str(error).split())), file=sys.stderr, flush=True)  # noqa: T201
    return code


def open_streams() -> None:
    """Open standard streams that are closed, as under some daemons, to nothing.

    Otherwise the next files that are opened would take their places, and receive what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # characters that a terminal's encoding does not have


def flush() -> None:
    """Write out what is printed, or drop it if nobody reads it: Python would end with an exit code of its own."""
    for number, stream in ((1, sys.__stdout__ or sys.stdout), (2, sys.__stderr__ or sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
