"""How a program ran: what XLA prints of the programs that it compiled, and the flags of the process.

The text says how arrays lie in memory, which library computes a convolution, and which launches are one command buffer.
JAX finds the compiled programs again, so nothing is compiled here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from harness.gate.execution import alternatives, collected, most_frequent
from jax_impl import collectives
from jax_impl.program import Program
from jax_impl.several_steps import Batch
from jax_impl.staged import StagedProgram
from jax_impl.watching import StagePhase, wrapped_stages

MODULE = re.compile(r"^HloModule ([\w.\-]+)")
TARGET = re.compile(r'custom_call_target="([^"]*conv[^"]*)"', re.IGNORECASE)
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->")
ORDER = re.compile(r"\{([\d,]+)")
BACKWARD = "transpose(jvp("
"""In the name of an operation: it computes gradients. XLA may describe their convolutions with other axes."""
AUTOTUNING = re.compile(r"--(xla_gpu_autotune_level=\S+)")
LETTERS = {"images": {"b": "N", "f": "C", "0": "H", "1": "W"}, "kernels": {"o": "O", "i": "I", "0": "H", "1": "W"}}


def execution(program: Program, placed: Sequence[Batch]) -> dict[str, str]:
    """The fields of harness.spec.Execution. A program in stages trains on the first of these batches, if there is one.

    Without batches nothing says which of the compiled programs ran. JAX does not report how many threads it has.
    """
    readers: dict[str, Callable[[], dict[str, str]]] = {"process": partial(of_process, program)}
    if placed:
        readers["compiled program"] = partial(of_texts, program, placed)
    return collected(readers)


def of_process(program: Program) -> dict[str, str]:
    """The flags of the process."""
    if program.job.world.platform == "cpu":
        return {"autotuning": "none"}
    level = AUTOTUNING.search(os.environ.get("XLA_FLAGS", ""))
    return {"autotuning": level[1] if level else "xla_gpu_autotune_level not set"}


def of_texts(program: Program, placed: Sequence[Batch]) -> dict[str, str]:
    """What is in the compiled programs."""
    staged = isinstance(program, StagedProgram)
    texts = texts_of_stages(program, placed[0]) if staged else [collectives.text_of(program, placed)]
    names = dict.fromkeys(found[1] for text in texts if (found := MODULE.match(text)))
    found = [convolution for text in texts for convolution in convolutions(text)]
    buffers = sum(name.startswith("command_buffer") for text in texts for name in collectives.parse(text)[0])
    on_cpu = program.job.world.platform == "cpu"
    scope = "XLA programs of each stage" if staged else "one XLA program of the whole step"
    return {
        "compiled": f"{scope}: {', '.join(names)}",
        # newer versions form command buffers after the text was printed, so that their absence says nothing
        "graphs": f"{buffers} command buffers" if buffers else "none" if on_cpu else "",
        "layout": layout(found),
        "convolutions": most_frequent(target for _, _, target, _ in found),
    }


def texts_of_stages(program: StagedProgram, placed: Batch) -> list[str]:
    """What XLA prints of the programs for forward and backward of each stage. This makes a step."""
    calls: dict[tuple[int, StagePhase], Callable[[], str]] = {}

    def noting(index: int, phase: StagePhase, function: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls.setdefault((index, phase), lambda: function.lower(*given).compile().as_text())
            return function(*given)

        return call

    with wrapped_stages(program, noting):
        program.step(placed)
    program.sync()
    return [text() for text in calls.values()]


Convolution = tuple[str, str, str, bool]
"""The layout of its images and of its kernels, the library's name of the call, and whether it computes a gradient."""


def convolutions(text: str) -> Iterator[Convolution]:
    """The convolutions in a compiled program."""
    computations, _ = collectives.parse(text)
    for lines in computations.values():
        shapes = {name: shape for name, shape, _, _ in lines}
        for _, _, operation, rest in lines:
            target, labels = TARGET.search(rest), LABELS.search(rest)
            if labels is None or not (operation == "convolution" or target):
                continue
            images, kernels = (shapes.get(name, "") for name in collectives.operands(rest)[:2])
            yield (
                in_memory(labels[1], images, LETTERS["images"]),
                in_memory(labels[2], kernels, LETTERS["kernels"]),
                target[1] if target else operation,
                BACKWARD in rest,
            )


def in_memory(labels: str, shape: str, letters: dict[str, str]) -> str:
    """The axes of an array in the order in which they lie in memory: "NHWC" for b01f in f32[8,5,5,2]{3,2,1,0}."""
    order = ORDER.search(shape)
    if order is None or len(labels) != 4:
        return ""
    return "".join(letters.get(labels[int(axis)], "?") for axis in reversed(order[1].split(",")))


def layout(found: Sequence[Convolution]) -> str:
    """How images and kernels lie in memory in forward."""
    forward = [each for each in found if not each[3]]
    known = {"images": alternatives(each[0] for each in forward), "kernels": alternatives(each[1] for each in forward)}
    return ", ".join(f"{name} {words}" for name, words in known.items() if words)
