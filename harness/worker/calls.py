"""How steps are grouped into calls of the framework: one step in each, or several (TrialSpec.steps_per_call)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from harness.contract import Program
from harness.datasets import Epochs, Step
from harness.worker.context import Context


def in_calls(steps: Sequence[Step], *, of: int) -> list[list[Step]]:
    """The steps as the calls that make them, in order: `of` steps in each call, and what is left one by one.

    All batches of a call have the same shapes, so a short last batch is a call of its own.
    """
    calls: list[list[Step]] = []
    for _, same in groupby(steps, key=_shapes):
        alike = list(same)
        whole = len(alike) - len(alike) % of
        calls += [alike[start : start + of] for start in range(0, whole, of)]
        calls += [[step] for step in alike[whole:]]
    return calls


def make_steps(program: Program, placed: Sequence[Any]) -> list[Any]:
    """One update for each placed batch: a single one by `step`, several in one call. Returns their losses, not waiting.

    Raises RuntimeError for a program that cannot make several, although its manifest says so.
    """
    if len(placed) == 1:
        return [program.step(placed[0])]
    several = getattr(program, "steps", None)
    if several is None:
        raise RuntimeError("the manifest says that the program can make several steps in one call, but it has no steps")
    return list(several(placed))


def make_steps_in_turn(program: Program, placed: Sequence[Any]) -> list[Any]:
    """The same. If the program has `step_in_turn`, each worker's update waits for the one before it."""
    in_turn = getattr(program, "step_in_turn", None)
    return make_steps(program, placed) if in_turn is None else [in_turn(each) for each in placed]


def place_each(context: Context, epochs: Epochs, steps: Sequence[Step]) -> Iterator[Any]:
    """The batches of these steps, each placed when it is asked for."""
    return (context.program.place(epochs.whole(step, dtype=context.dtype)) for step in steps)


def make_in_calls(context: Context, steps: Sequence[Step], placed: Iterable[Any], *, wait: bool) -> list[Any]:
    """Make these steps on placed batches, and return the losses. `wait`: for each call, not only for the last."""
    program, batches, losses = context.program, iter(placed), list[Any]()
    for call in in_calls(steps, of=context.spec.steps_per_call):
        losses += make_steps(program, list(islice(batches, len(call))))
        if wait:
            program.sync()
    program.sync()
    return losses


def read_losses(program: Program, handles: Sequence[Any]) -> list[float]:
    """The losses of the last call. For a single step the loss is read without a handle, because a program that only
    supports `run` may not take one."""
    if len(handles) == 1:
        return [program.loss()]
    return [program.loss(handle) for handle in handles]


def _shapes(step: Step) -> tuple[int, bool]:
    """A key that differs if the shapes of two batches differ: padding adds a column to the targets."""
    return step.rows, step.rows == len(step.chosen)
