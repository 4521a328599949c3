"""The command that makes a report again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli import records
from harness.cli.output import READ_ONLY, write_json
from harness.spec.errors import UsageError

OF_THE_FOLDER = READ_ONLY | {errno.EISDIR}


def report(
    *folders: Path,
    out: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Write report.md and its plots again, from results.jsonl alone. Several runs make one report.

    Exit code 0 if the report was written, even if it says that cells failed.
    The status of each launch is in what --json prints.

    python -m harness report reports/<run>
    python -m harness report reports/<run> reports/<training> --out reports/both

    Parameters
    ----------
    folders
        The folders of one or more runs, on the same machine or on identical ones.
    out
        A new folder for the report and the results of all runs. Required for several runs; one run's report goes to
        its own folder by default.
    as_json
        Print the results as one JSON document, and write nothing.
    """
    from harness import reporting
    from harness.cli.screen import show
    from harness.results import merging, run_folders, store

    if not folders:
        raise UsageError("report: names no run; give one folder, or several folders and --out")
    if len(folders) > 1 and out is None and not as_json:
        raise UsageError(f"report: {len(folders)} runs need a folder for their common report; name a new one by --out")
    results = merging.merge([records.read(folder) for folder in folders])
    if as_json:
        write_json(store.dump(results))
        return 0
    first = next(iter(folders))
    target = first if first.is_dir() else first.parent
    if out is not None:
        target = run_folders.create_folder(out)
        for result in results:
            store.append(target, result)
    with _refused(target):
        reporting.write(target, results)
    show(results, target)
    return 0


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    """In place of an OSError of a place that cannot be written, a UsageError that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in OF_THE_FOLDER:
            raise
        raise UsageError(
            f"report: {error.filename or folder} cannot be written: {error.strerror}; name a new folder by --out"
        ) from error
