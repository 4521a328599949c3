"""Where flags can stand besides the command line: a TOML file and the environment."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from cyclopts import App
from cyclopts.config import Dict

from harness.cli.arguments import RunArguments, TrainArguments, flag_of
from harness.cli.habits import instead_of
from harness.spec.errors import UsageError, check_name

PREFIX = "HARNESS_"
SHARED = tuple(
    flag_of(item.name).replace("-", "_") for arguments in (RunArguments, TrainArguments) for item in fields(arguments)
)
OF_ONE_COMMAND = (
    *("out", "data", "config", "values", "json", "resume", "budget_minutes", "markdown", "device_guard", "telemetry"),
    *("csv", "latex", "parquet", "fail_above", "dry_run"),
)
LISTS = {"values"} | {
    flag_of(name).replace("-", "_")
    for arguments in (RunArguments, TrainArguments)
    for name, kind in get_type_hints(arguments).items()
    if get_origin(kind) in (tuple, Mapping)
}
"""The flags that take several values."""
NEAR = 0.75  # how similar a variable's name must be to one of ours to be taken for a typo of it, from 0 to 1


def read_toml(path: Path) -> dict[str, Any]:
    """The flags in a TOML file, by name with underscores. Raises UsageError."""
    try:
        read = tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a BOM
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config {path}: cannot be read: {reason}; name a TOML file") from error
    except RecursionError as error:
        raise UsageError(f"--config {path}: is not TOML with flags: it is nested too deeply") from error
    except ValueError as error:  # tomllib's own, or that of an integer with thousands of digits
        raise UsageError(f"--config {path}: is not TOML: {str(error).split(';')[0]}") from error
    found = {key.replace("-", "_"): value for key, value in read.items()}
    if len(found) < len(read):
        raise UsageError(f"--config {path}: a flag is given twice, with - and with _; leave one out")
    for key, value in found.items():
        if isinstance(value, dict) and key in SHARED:
            raise UsageError(f"--config {path}: {key} is a table; write it as on the command line, as a string")
        if isinstance(value, dict) or key == "config":
            raise UsageError(f"--config {path}: {key!r} is not a flag; write flags at the top level, not in tables")
        if isinstance(value, list) and (not value or any(isinstance(item, list | dict) for item in value)):
            raise UsageError(
                f"--config {path}: {key} = {value}: must be one value or a list of values; or leave it out"
            )
        known = [name for name in (*SHARED, *OF_ONE_COMMAND) if name != "config"]
        if key not in known and (instead := instead_of(key)):
            raise UsageError(f"--config {path}: there is no flag {key!r}; {instead}")
        check_name(f"--config {path}: the flag", key, known)
        if isinstance(value, list) and key not in LISTS:
            raise UsageError(f"--config {path}: {key} = {value}: takes one value")
    return found


def file_source(path: Path, app: App) -> Dict:
    """The flags in a TOML file, as a source of configuration for any command of the app. Raises UsageError."""
    found = read_toml(path)

    def below(command: App) -> dict[str, Any]:
        names = [name for name in command if not name.startswith("-")]  # without --help and --version
        return {name: below(command[name]) for name in names} or found

    # The flags are repeated for each command. At the top level, cyclopts would take `data` for the command of that
    # name, and skip it without a word.
    return Dict(below(app), source=str(path))


def set_elsewhere(said: str, tokens: Sequence[str], config: Path | None) -> str:
    """Where the flag that an error begins with was set, if not on the command line: " (--precision is set in a.toml)".

    `tokens`: the command line. `config`: the TOML file of this command.
    """
    found = re.match(r"--[a-z][a-z-]*", said)
    if found is None or any(token.partition("=")[0] == found.group() for token in tokens):
        return ""
    name = found.group().removeprefix("--").replace("-", "_")
    variable = f"{PREFIX}{name.upper()}"
    if variable in os.environ:
        return f" ({found.group()} is set by the environment variable {variable})"
    if config is not None and name in read_toml(config):
        return f" ({found.group()} is set in {config})"
    return ""


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises UsageError for a variable that is nearly the name of a flag: a typo must not go unnoticed.

    Raises it for an empty variable, too. Others with our prefix are not ours: a CI product called Harness sets
    HARNESS_BUILD_ID and the like in every job.
    """
    known = [name.upper() for name in (*SHARED, *OF_ONE_COMMAND)]
    for name, value in environment.items():
        if not name.startswith(PREFIX):
            continue
        rest = name.removeprefix(PREFIX)
        if rest in known and not value.strip():
            raise UsageError(f"environment variable {name}: is empty; give it a value, or unset it")
        if rest not in known and difflib.get_close_matches(rest, known, cutoff=NEAR):
            check_name("environment variable", name, [PREFIX + flag for flag in known])
