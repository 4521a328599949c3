"""The note of how the program ran: the part of a fair comparison that nobody sees in the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.gate.execution import reason
from harness.spec import Execution
from harness.worker.context import Context
from harness.worker.package_modules import optional_module


def note_execution(context: Context, program: Any, placed: Sequence[Any], *, fed: str) -> None:
    """Note how this rank's program ran. What fails in here is noted as unread, and fails nothing else.

    `placed`: the batches of one call, which all ranks may make together; none if no step may be made. `fed`: where
    batches came from.
    """
    context.draft.progress("reading how the program ran")
    try:
        module = optional_module(context.order.package, "ledger")
        found = {} if module is None else module.execution(program, placed)
        context.draft.note(execution=Execution(input=fed, **found))
    except Exception as error:
        context.draft.note(execution=Execution(input=fed, unread=f"ledger: {reason(error)}"))
