"""The inspection of the number formats in which the timed program computes, communicates and stores its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

from harness.gate.number_formats import judge
from harness.spec import Check
from harness.worker.context import Context
from harness.worker.package_modules import optional_module


def number_formats(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Note the formats of this rank's program, and judge them. A program may train on meanwhile.

    Where workers exchange every few steps, as many are read, so that one exchange is among them.
    """
    spec, module = context.spec, optional_module(context.order.package, "formats")
    if module is None:
        return ()
    steps_per_call, interval = spec.steps_per_call, spec.exchange_interval
    batches = cycle(resident)
    calls = [list(islice(batches, steps_per_call)) for _ in range(-(-interval // steps_per_call))]
    found = module.read(context.program, calls)
    if module.MAKES_STEPS:
        context.made(sum(map(len, calls)))
    context.draft.note_timing(formats=found)
    return judge(found, spec.precision, spec.tolerances, has_stages=spec.option("cut") is not None)
