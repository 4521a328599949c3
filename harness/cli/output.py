"""What commands print: data on standard output, errors in one line on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def write(text: str) -> None:
    """Print data."""
    print(text)  # noqa: T201


def write_json(content: Any) -> None:
    """Print data as one JSON document."""
    write(json.dumps(content, indent=2))


def fail(error: object, code: int) -> int:
    """Print an error in one line, and return the exit code."""
    with contextlib.suppress(OSError):  # the terminal is gone
        print("harness: error:", printable(" ".join(str(error).split())), file=sys.stderr, flush=True)  # noqa: T201
    return code


def printable(text: str) -> str:
    """A text as a terminal may show it: with escapes for control characters, which a file of somebody else may hold."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def flush() -> None:
    """Write out what is printed, or drop it if nobody reads it: Python would end with an exit code of its own."""
    for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
