"""When each stage worked, by the host's clock around its programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Protocol

import jax

from harness.spec import Span
from jax_impl.stages import CompiledStage


class Staged(Protocol):
    """A program that calls compiled stages one after another."""

    stages: list[CompiledStage]

    def step(self, placed: Any) -> Any: ...

    def sync(self) -> None: ...


def trace(program: Staged, placed: Any) -> list[Span]:
    """One step, with what each stage did when, in seconds from the first.

    It waits for the device after every program of a stage, so it is right only if no two stages ever work at once.
    """
    spans: list[Span] = []

    def timed(stage: int, phase: Literal["forward", "backward"], function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            jax.block_until_ready(given)  # the copy from the previous device is not this stage's work
            start = time.perf_counter()
            result = jax.block_until_ready(function(*given))
            spans.append(Span(stage=stage, micro_batch=0, phase=phase, start=start, end=time.perf_counter()))
            return result

        return run

    stages = program.stages
    program.sync()
    program.stages = [
        replace(
            stage,
            forward=timed(index, "forward", stage.forward),
            backward=timed(index, "backward", stage.backward),
        )
        for index, stage in enumerate(stages)
    ]
    try:
        program.step(placed)
        program.sync()
    finally:
        program.stages = stages
    first = spans[0].start
    return [replace(span, start=span.start - first, end=span.end - first) for span in spans]
