"""Run options: what a user chooses for all cells of a run, and what every cell does in the same way."""

# Annotations are not postponed here: cyclopts would look for the names in them in the module of the subclass that it
# fills (harness/cli/arguments.py).

from dataclasses import dataclass, fields
from typing import Annotated, Any

from harness.spec.limits import MOST_COUNTED, Limits


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options themselves. A request, a trial and a strategy's job each have these fields.

    An option is declared here and nowhere else. The text below it is the help of its flag. Every strategy gets its
    value unchanged, as a field of the job. Cells with different values share no golden reference. If a value is not the
    default, it is part of the cell's name and of its row in reports.
    """

    accumulation_steps: Annotated[int, Limits(least=1, most=MOST_COUNTED)] = 1
    (
        "How many parts to cut each batch into under data-parallel strategies. Gradients are accumulated over the "
        "parts and synchronized once."
    )
    steps_per_call: Annotated[int, Limits(least=1, most=MOST_COUNTED)] = 1
    (
        "How many steps to make in each call of the framework, under strategies that can. The host then pays the cost "
        "of a call once for all of them. Keras calls this steps_per_execution."
    )


def values(of: RunOptions) -> dict[str, Any]:
    """The run options of a request, a trial or a job, by name, without its other fields."""
    return {item.name: getattr(of, item.name) for item in fields(RunOptions)}


def chosen(of: RunOptions) -> dict[str, Any]:
    """Those that differ from their defaults."""
    return {item.name: getattr(of, item.name) for item in fields(RunOptions) if getattr(of, item.name) != item.default}
