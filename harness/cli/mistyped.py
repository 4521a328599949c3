"""What is said of a flag, a command or a value that there is not: which one was meant, or which there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from harness import workloads
from harness.cli.habits import instead_of
from harness.spec import registry
from harness.spec.errors import did_you_mean, not_allowed

WANTED = {
    "SWEPT": "name the option to sweep, e.g. sweep split_size --values 2,4; `list options` names all",
    "RECIPE": "name what to reproduce: reproduce tutorial",
    "--values": "list the values to try, e.g. --values 2,4",
    "A": "name two runs: A, to compare with, and B, as in compare reports/BEFORE reports/AFTER",
    "B": "name a second run, B, as in compare reports/BEFORE reports/AFTER",
    "RUN": "name the folder of a run, or its results.jsonl",
}
"""By the name of an argument that must not be left out: what to write."""
OF_ALL = ("--help", "--config")
"""The flags that every command takes."""


def told(error: CycloptsError) -> str:
    """What an error of cyclopts says, with suggestions of ours: it would suggest what is hardly similar."""
    if isinstance(error, UnknownOptionError):
        return _unknown_flag(error)
    if isinstance(error, UnknownCommandError) and error.app and error.unused_tokens:
        return _unknown_command(error.unused_tokens[0], [name for name in error.app if not name.startswith("-")])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return _no_flag(error.unused_tokens[0])
    if isinstance(error, MissingArgumentError) and error.argument:
        name = error.argument.name
        where = f"{' '.join(error.command_chain)}: " if error.command_chain else ""  # --config belongs to all commands
        if name in WANTED:
            return f"{where}{WANTED[name]}"
        if name.startswith("--"):
            return f"{where}{name} needs a value; write {name}=VALUE if it begins with -"
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword}: is given twice; give it once"
    if isinstance(error, CoercionError) and error.argument and error.token:
        return _bad_value(error.argument.name, error.token.value, error.target_type) or str(error)
    return str(error)


def _bad_value(flag: str, text: str, wanted: object) -> str:
    """A value that is not one of those that a flag takes, or not of its type; "" for types that no flag of ours has."""
    if get_origin(wanted) is Literal:
        return not_allowed(flag, text, [str(each) for each in get_args(wanted)])
    names = {float: "a number", bool: "true or false"}
    return f"{flag} {text!r}: must be {names[wanted]}" if wanted in (float, bool) else ""


def _unknown_flag(error: UnknownOptionError) -> str:
    """A flag that the command does not have, whether it was typed or stands in a file."""
    token = error.token
    typed = (token.keyword or token.value).strip("[]")
    flag = f"--{typed.partition('=')[0].lstrip('-').replace('_', '-')}"
    known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    where = "" if token.source == "cli" else f" in {token.source}"
    help_text = instead_of(flag) or did_you_mean(flag, [*known, *OF_ALL]) or "leave it out"
    return f"{typed}{where}: there is no such flag here; {help_text}"


def _no_flag(typed: str) -> str:
    """A word that no flag takes. It may be the name of something that a flag chooses."""
    known = {
        "--strategy": [each.name for name in registry.packages() for each in registry.framework(name).strategies],
        "--framework": registry.packages(),
        "--workload": workloads.names(),
    }
    meant = [f"{flag} {typed}" for flag, names in known.items() if typed in names]
    return f"{typed!r}: is no flag; {f'choose it by {meant[0]}' if meant else 'leave it out'}"


def _unknown_command(typed: str, commands: Sequence[str]) -> str:
    if typed.startswith("-"):
        guess = did_you_mean(typed, OF_ALL) or "write flags behind a command"
        return f"{typed}: there is no such flag here; {guess}"
    guess = did_you_mean(typed, commands) or f"there are {', '.join(commands)}"
    return f"{typed}: there is no such command; {guess}"
