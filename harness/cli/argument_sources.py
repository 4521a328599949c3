"""Where flags can stand besides the command line: a TOML file and the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.cli.arguments import RunArguments, TrainArguments, flag_of
from harness.spec.errors import UsageError, check_name

PREFIX = "HARNESS_"
SHARED = tuple(
    flag_of(item.name).replace("-", "_") for arguments in (RunArguments, TrainArguments) for item in fields(arguments)
)
OF_ONE_COMMAND = ("out", "data", "config", "values", "json", "resume", "budget_minutes", "device_guard")


def read_toml(path: Path) -> dict[str, Any]:
    """The flags in a TOML file, by name with underscores. Raises UsageError."""
    try:
        read = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {path}: is not TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config {path}: cannot be read: {reason}; name a TOML file") from error
    found = {key.replace("-", "_"): value for key, value in read.items()}
    if len(found) < len(read):
        raise UsageError(f"--config {path}: a flag is given twice, with - and with _; leave one out")
    for key, value in found.items():
        if isinstance(value, dict) and key in SHARED:
            raise UsageError(f"--config {path}: {key} is a table; write it as on the command line, as a string")
        if isinstance(value, dict) or key == "config":
            raise UsageError(f"--config {path}: {key!r} is not a flag; write flags at the top level, not in tables")
    return found


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises UsageError for a variable with our prefix that names no flag: a typo must not go unnoticed."""
    known = [PREFIX + name.upper() for name in (*SHARED, *OF_ONE_COMMAND)]
    for name in environment:
        if name.startswith(PREFIX):
            check_name("environment variable", name, known)
