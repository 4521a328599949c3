"""What is said of a flag or a command that there is not: which one was meant, or which there are."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import CycloptsError, UnknownCommandError, UnknownOptionError

from harness.cli.habits import instead_of
from harness.spec.errors import did_you_mean

OF_ALL = ("--help", "--config")
"""The flags that every command takes."""


def told(error: CycloptsError) -> str:
    """What an error of cyclopts says, with suggestions of ours: it would suggest what is hardly similar."""
    if isinstance(error, UnknownOptionError):
        return _unknown_flag(error)
    if isinstance(error, UnknownCommandError) and error.app and error.unused_tokens:
        return _unknown_command(error.unused_tokens[0], [name for name in error.app if not name.startswith("-")])
    return str(error)


def _unknown_flag(error: UnknownOptionError) -> str:
    """A flag that the command does not have, whether it was typed or stands in a file."""
    token = error.token
    typed = (token.keyword or token.value).strip("[]")
    flag = f"--{typed.partition('=')[0].lstrip('-').replace('_', '-')}"
    known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    where = "" if token.source == "cli" else f" in {token.source}"
    help_text = instead_of(flag) or did_you_mean(flag, [*known, *OF_ALL]) or "leave it out"
    return f"{typed}{where}: there is no such flag here; {help_text}"


def _unknown_command(typed: str, commands: Sequence[str]) -> str:
    if typed.startswith("-"):
        guess = did_you_mean(typed, OF_ALL) or "write flags behind a command"
        return f"{typed}: there is no such flag here; {guess}"
    guess = did_you_mean(typed, commands) or f"there are {', '.join(commands)}"
    return f"{typed}: there is no such command; {guess}"
