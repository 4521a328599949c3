"""The command that writes a run's results for other programs."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness import whole_files
from harness.cli import records
from harness.cli.output import READ_ONLY, write
from harness.spec import TrialResult
from harness.spec.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

STANDARD_OUTPUT = Path("-")
File = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]
OF_THE_PATH = READ_ONLY | {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
"""Also errors of paths that lead nowhere: the last, of a socket."""


def export(
    run: Path,
    /,
    *,
    csv: File = None,
    latex: File = None,
    parquet: File = None,
) -> int:
    """Write a run's launches as CSV or Parquet, or its result table in LaTeX. - stands for standard output.

    python -m harness export reports/<run> --csv launches.csv --latex results.tex
    python -m harness export reports/<run> --csv - | head

    Parameters
    ----------
    run
        The folder of a run.
    csv
        A file for one row per launch, with the columns of docs/columns.md. A text that a spreadsheet would take for a
        formula begins with an apostrophe.
    latex
        A file for the result table, with booktabs and siunitx.
    parquet
        A file for the same rows as --csv. Needs pyarrow.
    """
    files = {"--csv": csv, "--latex": latex, "--parquet": parquet}
    given = {flag: path for flag, path in files.items() if path is not None}
    check_files(run, given)
    results = records.read(run)
    for flag, path in given.items():
        content = CONTENT[flag](run, results)
        if path == STANDARD_OUTPUT:
            write(content.decode().rstrip("\n"))
        else:
            write_file(flag, path, content)
    return 0


def check_files(run: Path, given: Mapping[str, Path]) -> None:
    """Raises UsageError for files that cannot be written as asked, before anything is read or written.

    No run loses what it recorded or reported, whether it is the one that is exported or another.
    """
    if not given:
        raise UsageError(f"export {run}: names no file to write; give {', '.join(CONTENT)}, or several of them")
    if given.get("--parquet") == STANDARD_OUTPUT:
        raise UsageError("--parquet -: is no text for standard output; name a file")
    if "--parquet" in given and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            f"--parquet {given['--parquet']}: needs pyarrow, which is not installed here; "
            "run pip install pyarrow, or use --csv"
        )
    seen: dict[Path, str] = {}
    for flag, path in given.items():
        if path != STANDARD_OUTPUT and str(path).startswith("-"):
            raise UsageError(f"{flag} {path}: is no file name; name a file, or - for standard output")
        if path.is_dir():
            raise UsageError(f"{flag} {path}: is a folder; name a file")
        try:
            other = seen.setdefault(path.resolve(), flag)
        except RuntimeError as error:
            raise UsageError(f"{flag} {path}: is a link that leads to itself; name another file") from error
        if other != flag:
            raise UsageError(f"{flag} {path}: {other} names the same file; name two")
    for path, flag in seen.items():
        if path == run.resolve() or _is_of_a_run(path):
            raise UsageError(f"{flag} {path}: is a record or report of a run, which must stay; name another file")


def _is_of_a_run(path: Path) -> bool:
    """Whether a run has or may have this file: a record, a log, a checkpoint, its report or a picture of it."""
    from harness.reporting import document
    from harness.results import store

    for folder in path.parents:
        if any((folder / name).is_file() for name in (store.RESULTS, store.RUN)):
            first, *below = path.relative_to(folder).parts
            written = (*store.WRITTEN_IN_PLACE, store.RUN, "environment.json", "report.md", document.EPOCHS_FILE)
            return first in written or (path.suffix == ".png" and not below)
    return False


def write_file(flag: str, path: Path, content: bytes) -> None:
    """Write a file that the user has named: whole, in place of the one to which the path leads; links stay.

    A device or a pipe is written into, until its reader has seen enough. Raises UsageError where the path leads
    nowhere, or to a place where nothing may be written.
    """
    try:
        if path.exists() and not path.is_file():
            with whole_files.naming(path), suppress(BrokenPipeError), path.open("wb", buffering=0) as file:
                whole_files.write_all(file.fileno(), content)
        else:
            whole_files.write(path.resolve(), content)
    except OSError as error:
        if error.errno not in OF_THE_PATH:
            raise
        raise UsageError(
            f"{flag} {path}: cannot be written: {error.strerror}; name a file in a folder that you may write"
        ) from error


def _csv(run: Path, results: Sequence[TrialResult]) -> bytes:
    from harness.reporting import comma_separated

    return comma_separated.render(_launches(run, results)).encode()


def _parquet(run: Path, results: Sequence[TrialResult]) -> bytes:
    written = _launches(run, results).to_parquet(None, engine="pyarrow", index=False)
    assert written is not None, "pandas returns what it is not asked to write"
    return written


def _launches(run: Path, results: Sequence[TrialResult]) -> pd.DataFrame:
    from harness.results import tidy

    return tidy.of_launches(results, run=tidy.run_names([run])[0])


def _latex(run: Path, results: Sequence[TrialResult]) -> bytes:
    from harness.reporting import latex, summary, training
    from harness.reporting.tables import result_table, training_table

    first = results[0].run
    remark = f"likeforlike {first.version}, commit {first.commit}, run of {first.started}"
    cells = summary.summarize(results)
    kinds = ((result_table.table, training.timed(cells)), (training_table.table, training.trained(cells)))
    return "\n".join(latex.render(table(of), remark=remark) for table, of in kinds if of).encode()


CONTENT: dict[str, Callable[[Path, Sequence[TrialResult]], bytes]] = {
    "--csv": _csv,
    "--latex": _latex,
    "--parquet": _parquet,
}
"""What each flag writes."""
