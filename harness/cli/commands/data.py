"""The commands that look at training data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from harness.cli.output import write, write_json
from harness.datasets import DataError
from harness.spec.errors import UsageError

app = App(name="data", help="Look at folders of training data.")


@app.command(name="check")
def check_folder(
    folder: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Say which data sets a folder holds (MNIST as IDX, CIFAR-10 as .bin or .png files), and whether they are complete.

    Reads every file and compares it with its published MD5. Exit code 1 if something is missing or damaged.

    Parameters
    ----------
    folder
        A folder as for --data.
    as_json
        Print one JSON document.
    """
    from harness.datasets.check import check

    try:
        found = check(folder)
    except DataError as error:
        raise UsageError(str(error)) from error
    rows = [asdict(finding) for finding in found]
    if as_json:
        write_json(rows)
    else:
        from harness.cli.tables import print_table

        header = ["data set", "split", "shape", "classes", "whole"]
        print_table(str(folder), header, [[*list(row.values())[:4], "NO" if row["problem"] else "yes"] for row in rows])
        for finding in found:
            if finding.problem:
                write(f"- {finding.dataset} {finding.split}: {finding.problem}")
    return 1 if any(finding.problem for finding in found) else 0
