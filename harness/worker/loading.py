"""Loading a state into a program, and checking that it is there: what is trained or timed next begins with it."""

from __future__ import annotations

import numpy as np

from harness.layers import running_statistics
from harness.spec.arrays import Arrays
from harness.worker.context import Context

ULPS = 4
"""By how many units in the last place a number may differ from what was loaded: the mean of equal float64 numbers over
three ranks is not always that number."""


def initial_state(context: Context) -> Arrays:
    """The state that every training begins with, as a checkpoint without an optimizer would hold it."""
    running = running_statistics.initial(context.job.workload.layers)
    model = {f"model/{name}": array for name, array in context.job.params.items()}
    return model | {f"running/{name}": array for name, array in running.items()}


def load(context: Context, state: Arrays) -> None:
    """Load a state into the program. All ranks call it together, because each may hold a part.

    Raises RuntimeError on rank 0, which knows the whole state, if the program then has another one. A program that
    loses momentum or running statistics here would go on with those that it happens to have.
    """
    if wrong := load_and_compare(context, state):
        raise RuntimeError(wrong)


def load_and_compare(context: Context, state: Arrays) -> str:
    """The same. Returns what is wrong, or ""."""
    context.program.load_state(state)
    held = context.state()
    if context.draft.rank:
        return ""
    lost = [name for name, array in state.items() if name not in held or not _equal(held[name], array)]
    return f"{len(lost)} arrays are not what was loaded into the program, {lost[0]} among them" if lost else ""


def load_on_all(context: Context, state: Arrays, name: str) -> tuple[bool, str]:
    """The same. Returns whether the program has the state now, on all ranks, and what is wrong, on rank 0.

    A program whose state has holes may not even make a step. `name`: of the moment, different for each.
    """
    wrong = load_and_compare(context, state)
    return bool(context.agree.on(name, float(not wrong))), wrong


def _equal(held: np.ndarray, loaded: np.ndarray) -> bool:
    if held.size != loaded.size:
        return False
    loaded = loaded.reshape(held.shape).astype(held.dtype)  # which may be narrower
    if held.dtype.kind not in "fV":
        return np.array_equal(held, loaded)
    rounding = ULPS * np.finfo(held.dtype).eps if held.dtype.kind == "f" else 0.0
    return np.allclose(held, loaded, rtol=rounding, atol=0.0, equal_nan=True)
