"""What commands print: data on standard output, errors in one line on standard error."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from harness.spec.text import visible

READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of a place where nothing may be written: another one helps."""


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
    sys.stdout, sys.stderr = _lasting(sys.stdout, 1), _lasting(sys.stderr, 2)


class _Lasting(io.FileIO):
    """A standard stream that drops what is printed once its reader is gone, as in `harness list ... | head`.

    It drops it as well after another error, such as that of a full disk, which is raised once.
    """

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            _drop_output(self.fileno())
            return len(content)
        except OSError as error:
            _drop_output(self.fileno())
            name = "standard output" if self.fileno() == 1 else "standard error"
            raise OSError(error.errno, error.strerror, name) from error


def _lasting(stream: TextIO, number: int) -> TextIO:
    """A standard stream whose reader may leave: a command then ends its work, with the exit code of that.

    Characters that a terminal's encoding does not have are escaped. A stream that a test has put in place stays.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with contextlib.suppress(OSError):  # it is no file
        if stream.fileno() == number:
            raw = io.BufferedWriter(_Lasting(number, "wb", closefd=False))
            lines, through = stream.line_buffering, stream.write_through
            return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", None, lines, through)
    stream.reconfigure(errors="backslashreplace")
    return stream


def _drop_output(number: int) -> None:
    """Let a standard stream lead to nothing from now on."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, number)
    os.close(nothing)


def flush() -> None:
    """Write out what is printed, or drop it if that fails: Python would end with an exit code of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _drop_output(number)
