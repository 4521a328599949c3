"""The number formats in which a program computes, communicates and stores its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

from harness.gate.number_formats import judge
from harness.spec import Check, NumberFormats
from harness.worker.context import Context
from harness.worker.package_modules import optional_module


def number_formats(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Note the formats of this rank's timed program, and judge them. A program may train on meanwhile.

    Where workers exchange every few steps, as many are read, so that one exchange is among them.
    """
    steps_per_call, interval = context.spec.steps_per_call, context.spec.exchange_interval
    batches = cycle(resident)
    calls = [list(islice(batches, steps_per_call)) for _ in range(-(-interval // steps_per_call))]
    found, made = read(context, calls)
    if found is None:
        return ()
    context.made(made)
    context.draft.note_timing(formats=found)
    return judged(context, found)


def read(context: Context, calls: Sequence[Sequence[Any]]) -> tuple[NumberFormats | None, int]:
    """The formats of this rank's program in these calls, each with the placed batches of its steps, and how many steps
    it has made for that. None if the framework does not say."""
    module = optional_module(context.order.package, "formats")
    if module is None:
        return None, 0
    return module.read(context.program, calls), sum(map(len, calls)) if module.MAKES_STEPS else 0


def judged(context: Context, found: NumberFormats) -> tuple[Check, ...]:
    """The checks of these formats."""
    spec = context.spec
    return judge(found, spec.precision, spec.tolerances, has_stages=spec.option("cut") is not None)
