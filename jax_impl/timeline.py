"""When each stage worked, by the host's clock around its programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from harness.spec import Span
from jax_impl.watching import Staged, StagePhase, wrapped_stages


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
    first = spans[0].start
    return [replace(span, start=span.start - first, end=span.end - first) for span in spans]
