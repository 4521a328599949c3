"""The command line: reads flags, runs one command, and turns errors into one line and an exit code.

Every flag can also stand in a TOML file (-c FILE) or in the environment (HARNESS_GLOBAL_BATCH=128). The command line
wins over the environment, the environment over the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env

import harness
from harness.cli.argument_sources import PREFIX, check_environment, file_source, set_elsewhere
from harness.cli.argument_values import prepare_tokens
from harness.cli.arguments import FILES
from harness.cli.commands import check, compare, data, export, listings, plan, report, run, show, verify
from harness.cli.mistyped import told
from harness.cli.output import fail, flush, open_streams
from harness.spec.errors import Interrupted, MachineUnfit, UsageError

OF_THE_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOLCK, errno.EISDIR,
}  # fmt: skip
"""Errors of the system for which this program cannot be at fault: a full or read-only disk, no more processes, a
folder in place of a file."""


def shown_default(value: Any) -> str | None:
    """A flag's default as --help shows it. The texts of flags without names as their default explain it in words."""
    if isinstance(value, tuple):
        names = [item for item in value if isinstance(item, str)]
        return ",".join(names) or None
    return None if value in (None, "", {}) else str(value)


app = App(
    name="harness",
    version=harness.__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative="", show_default=shown_default),
    help=(
        "Which framework and which parallel strategy trains fastest on these devices, and is it really the same "
        "training?\n\nExit codes: 0 ok, even if --budget-minutes left cells pending; 1 some cells failed; 2 wrong "
        "usage; 3 this machine cannot run it; 4 compare --fail-above found a slower cell; 5 check found a run unfit; "
        f"{os.EX_SOFTWARE} a defect of this program; 129, 130 and 143 interrupted."
    ),
)
measuring = (run.run, run.train, run.sweep, run.reproduce)
for command in (*measuring, plan.plan):
    app.command(command)
MEASURING = tuple((command.__name__,) for command in measuring)
app.command(listings.list_choices, name="list")
app.command(report.report)
app.command(show.show)
app.command(export.export)
app.command(compare.compare)
app.command(verify.verify)
app.command(check.check)
app.command(data.app)

CONFIG = Parameter(name=["--config", "-c"], env_var=f"{PREFIX}CONFIG", show_env_var=False, group=FILES)


@app.meta.default
def configured(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, CONFIG] = None,
) -> int:
    """Parameters
    ----------
    config
        A TOML file with any of the flags, e.g. global_batch = 128. HARNESS_CONFIG names one as well.
    """
    check_environment(os.environ)
    sources: list = [Env(PREFIX, command=False)]
    if config is not None:
        sources.append(file_source(config, app))
    app.config = [*sources, prepare_tokens]
    try:
        return app(tokens, exit_on_error=False, print_error=False) or 0
    except (UsageError, CycloptsError) as error:
        said = _refusal(error)
        if where := set_elsewhere(said, tokens, config):
            raise UsageError(f"{said}{where}") from error
        raise
    except (OSError, MemoryError) as error:
        if app.parse_commands(tokens)[0][:1] in MEASURING:
            error.add_note("a run keeps what it has measured, and run --resume goes on with it")
        raise


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    open_streams()
    try:
        try:
            code = app.meta(arguments, exit_on_error=False, print_error=False)
        except SystemExit as ended:  # cyclopts ends the program itself
            code = ended.code
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception, Interrupted) as error:
        code = exit_code(error)
    flush()
    sys.exit(code)


def _refusal(error: UsageError | CycloptsError) -> str:
    """What is wrong with the arguments, in one line. Converters of ours raise UsageError within cyclopts' error."""
    if isinstance(error, UsageError):
        return str(error)
    return str(error.__cause__) if isinstance(error.__cause__, UsageError) else told(error)


def exit_code(error: BaseException) -> int:
    """Say in one line what ended a command, and return its exit code. An unexpected error shows its traceback, too."""
    match error:
        case CycloptsError():
            ours = isinstance(error.__cause__, UsageError)
            return fail(f"{_refusal(error)}{'' if ours else ' (see --help)'}", 2)
        case UsageError():
            return fail(error, 2)
        case MachineUnfit():
            return fail(error, 3)
        case OSError(errno=errno.ENAMETOOLONG):
            name = str(error.filename)
            return fail(f"{name[:60]}... has {len(name)} characters, too many for a path; name a shorter one", 2)
        case OSError(errno=number) if number in OF_THE_MACHINE:
            return fail("; ".join([str(error), *getattr(error, "__notes__", ())]), 3)
        case MemoryError():
            return fail("; ".join(["out of host memory", *getattr(error, "__notes__", ())]), 3)
        case Interrupted(measured=True):
            report = shlex.join(["python", "-m", "harness", "report", error.folder])
            return fail(f"interrupted, but everything was measured; {report} writes the report", 128 + error.number)
        case Interrupted():
            go_on = f"interrupted: what was measured is kept; go on with run --resume {error.folder}"
            return fail(go_on, 128 + error.number)
        case KeyboardInterrupt():
            return 130
    with contextlib.suppress(OSError):  # the terminal is gone
        traceback.print_exception(error)
    said = f"{type(error).__name__}: {error}; this is a defect of likeforlike: please report it with the above"
    return fail(said, os.EX_SOFTWARE)
