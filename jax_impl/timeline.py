"""When each stage worked, by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax

from harness.spec import Span
from jax_impl.watching import Staged, StagePhase, wrapped_stages

Key = tuple[int, StagePhase, int]
"""A stage, what it does, and on which micro-batch."""


def trace(program: Staged, placed: Any) -> list[Span]:
    """One step, with what each stage did when, in seconds from the first.

    It waits for the device after every program of a stage, so it is right only if no two stages ever work at once.
    """
    spans: list[Span] = []

    def timed(stage: int, phase: StagePhase, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            jax.block_until_ready(given)  # the copy from the previous device is not this stage's work
            start = time.perf_counter()
            result = jax.block_until_ready(function(*given))
            spans.append(Span(stage=stage, micro_batch=0, phase=phase, start=start, end=time.perf_counter()))
            return result

        return run

    program.sync()
    with wrapped_stages(program, timed):
        program.step(placed)
        program.sync()
    return from_the_first(spans)


def trace_overlapping(program: Staged, placed: Any) -> list[Span]:
    """The same for stages that work at the same time. The step does not wait: for each stage, a thread waits for its
    programs, one after another.

    A program ends when its thread sees its result. It starts when it has been called, its stage is free, and the
    neighbouring stage, or its own forward, has made its input. So a copy between devices counts as work of the stage
    that it leads to.
    """
    called: dict[Key, float] = {}
    ended: dict[Key, Future[float]] = {}
    numbers: dict[int, int] = {}  # of micro-batches, by the identity of their pullbacks
    last = len(program.stages) - 1
    threads = [ThreadPoolExecutor(1) for _ in program.stages]

    def watched(stage: int, phase: StagePhase, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begun, result = time.perf_counter(), function(*given)
            if phase == "forward":
                number, seen = sum(key[:2] == (stage, phase) for key in called), result[0]
                numbers[id(result[1])] = number
            else:  # later calls may overwrite the gradients of parameters, so they cannot be waited for
                # without parameters the gradient of the input, or else that of the outputs
                number, seen = numbers[id(given[-2])], _first_number([*result, given[-1]])
            key = stage, phase, number
            called[key], ended[key] = begun, threads[stage].submit(_when_ready, seen)
            return result

        return run

    program.sync()
    with wrapped_stages(program, watched):
        program.step(placed)
        program.sync()
    ends = {key: end.result() for key, end in ended.items()}
    for thread in threads:
        thread.shutdown()

    def input_from(stage: int, phase: StagePhase, number: int) -> Key:
        if phase == "forward":
            return stage - 1, "forward", number
        return (stage + 1, "backward", number) if stage < last else (stage, "forward", number)

    spans, free = [], dict.fromkeys(range(len(program.stages)), 0.0)
    for key, begun in called.items():  # the calls of each stage are in the order of its work
        stage, phase, number = key
        start = max(begun, free[stage], ends.get(input_from(*key), 0.0))
        free[stage] = max(start, ends[key])
        spans.append(Span(stage=stage, micro_batch=number, phase=phase, start=start, end=free[stage]))
    return from_the_first(spans)


@jax.jit
def _first_number(tree: Any) -> jax.Array:
    """One number of a tree of arrays, which exists as soon as they do."""
    return jax.tree.leaves(tree)[0].ravel()[0]


def _when_ready(array: jax.Array) -> float:
    jax.block_until_ready(array)
    return time.perf_counter()


def from_the_first(spans: list[Span]) -> list[Span]:
    """The spans with their times in seconds from the start of the first."""
    first = min((span.start for span in spans), default=0.0)
    return [replace(span, start=span.start - first, end=span.end - first) for span in spans]
