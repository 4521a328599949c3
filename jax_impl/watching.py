"""Looks at the programs of stages while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol

from jax_impl.stages import CompiledStage

StagePhase = Literal["forward", "backward"]
Wrap = Callable[[int, StagePhase, Callable[..., Any]], Callable[..., Any]]
"""Maps a stage's number, a phase and its program to what is called in its place."""


class Staged(Protocol):
    """A program that calls compiled stages one after another."""

    stages: list[CompiledStage]

    def step(self, placed: Any) -> Any: ...

    def sync(self) -> None: ...


@contextmanager
def wrapped_stages(program: Staged, wrap: Wrap) -> Iterator[None]:
    """While it is open, `wrap` stands around forward and backward of each stage."""
    stages = program.stages
    program.stages = [
        replace(
            stage,
            forward=wrap(index, "forward", stage.forward),
            backward=wrap(index, "backward", stage.backward),
            backward_and_add=wrap(index, "backward", stage.backward_and_add),
        )
        for index, stage in enumerate(stages)
    ]
    try:
        yield
    finally:
        program.stages = stages
