"""The command that holds a run against the referee's checklist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli import records
from harness.cli.output import write, write_json

UNFIT = 5  # exit code
ADVICE = (
    "docs/method.md says what each requirement asks for. A run with `--preset standard` has the rounds, warm-up and "
    "blocks that most of them need; some can be met on GPUs alone."
)


def check(
    run: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Hold a run against 20 requirements of good benchmarking (docs/method.md). Writes nothing.

    Exit code 0 if all of them pass that apply to the run, else 5.

    python -m harness check reports/<run>
    python -m harness check reports/<run> --json

    Parameters
    ----------
    run
        The folder of a run, or of a common report of several runs.
    as_json
        Print one JSON document.
    """
    from harness.cli.screen import print_report_table
    from harness.cli.tables import print_sentence
    from harness.reporting import checklist_section, summary
    from harness.reporting.checklist import requirements

    results = records.read(run)
    rows = requirements.check(results, summary.summarize(results))
    code = 0 if checklist_section.met(rows) else UNFIT
    if as_json:
        answers = [
            {
                "number": row.number,
                "requirement": row.requirement,
                "outcome": row.answer.outcome,
                "figures": row.answer.figures,
            }
            for row in rows
        ]
        write_json({"run": str(run), "requirements": answers, "exit_code": code})
        return code
    print_report_table("Referee's checklist", checklist_section.table(rows))
    write(checklist_section.summary(rows))
    if code:
        print_sentence(ADVICE)
    return code
