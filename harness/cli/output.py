"""What commands print: data on standard output, errors in one line on standard error."""

from __future__ import annotations

import json
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
    print("harness: error:", " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
    return code
