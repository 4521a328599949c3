"""Which collectives XLA has compiled into a program, and how many bytes each of them takes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "collective-permute": "send",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
}
"""XLA's names, and those of harness/gate/traffic.py. On GPUs an asynchronous one begins with "-start"."""

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
SHAPE = re.compile(r"\b(pred|bf16|[a-z]+?(\d+)\w*)\[([\d,]*)\]")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CALLED = re.compile(r"(?:calls|body|to_apply)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)")


def text_of(program: Any, batches: Sequence[Any]) -> str:
    """What XLA prints of the program that makes a step with each of these placed batches in one call.

    This compiles nothing: JAX finds the program that it has compiled for the same shapes.
    """
    one = len(batches) == 1
    compiled, given = (program.compiled, batches[0]) if one else (program.compiled_steps, (tuple(batches),))
    return compiled.lower(program.held, *given).compile().as_text()


def formats(text: str) -> Iterator[tuple[str, str]]:
    """XLA's names of each collective in a program, and of each format of the arrays in its result."""
    computations, _ = parse(text)
    for _, shape, operation, _ in (line for lines in computations.values() for line in lines):
        if (kind := operation.removesuffix("-start")) in KINDS:
            yield from ((kind, format_) for format_, _, _ in SHAPE.findall(shape))


class UnknownLength(ValueError):
    """A loop communicates, and its program does not say how many rounds it has."""


def count(text: str, *, devices: int) -> dict[str, float]:
    """Bytes of each kind of collective in one call of a program, from the text that XLA prints of it.

    The payload is what a device puts in; for all-gather, what it has afterwards. A collective in a loop counts once for
    each round; of branches, the one with the most counts. Raises UnknownLength where the number of rounds is not known.
    """
    computations, entry = parse(text)
    sizes = {name: size_of(shape) for lines in computations.values() for name, shape, _, _ in lines}
    return dict(_count(entry, computations, sizes, devices))


Instruction = tuple[str, str, str, str]  # name, shape, operation, and all that follows its opening bracket


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The instructions of each computation, and the name of the one that runs first."""
    computations: dict[str, list[Instruction]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        if (begun := COMPUTATION.match(line)) is not None:
            current = begun[1]
            computations[current] = []
            entry = current if line.startswith("ENTRY") else entry
        elif (found := INSTRUCTION.match(line)) is not None:
            computations[current].append((found[1], found[2], found[3], found[4]))
    return computations, entry


def size_of(shape: str) -> int:
    """The bytes of all arrays in a shape: "(f32[3]{0}, bf16[5,5]{1,0})"."""
    total = 0
    for kind, bits, dims in SHAPE.findall(shape):
        width = {"pred": 8, "bf16": 16}.get(kind) or int(bits)
        total += width * math.prod(int(dim) for dim in dims.split(",") if dim) // 8
    return total


def _count(name: str, computations: dict[str, list[Instruction]], sizes: dict[str, int], devices: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for _, _, operation, rest in computations.get(name, ()):
        kind = KINDS.get(operation.removesuffix("-start"))
        if kind is not None:
            size = sum(sizes[operand] for operand in operands(rest) if operand in sizes)
            total[kind] += size * devices if kind == "all_gather" else size
            continue
        inside: Counter[str] = Counter()
        for called in CALLED.findall(rest):
            inside += _count(called, computations, sizes, devices)
        inside += most(_count(branch, computations, sizes, devices) for branch in branches(rest))
        if operation == "while" and inside:
            trips = TRIPS.search(rest)
            if trips is None:
                raise UnknownLength(f"XLA does not say how often a loop in {name} communicates")
            inside = Counter({each: int(trips[1]) * size for each, size in inside.items()})
        total += inside
    return total


def operands(rest: str) -> list[str]:
    """The names of an instruction's operands, from what follows its opening bracket."""
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if not depth:
            return re.findall(r"%([\w.\-]+)", rest[:position])
    return []


def branches(rest: str) -> Iterator[str]:
    """The computations that a conditional chooses from."""
    for several, one in BRANCHES.findall(rest):
        yield from re.findall(r"[\w.\-]+", several or one)


def most(counts: Iterator[Counter[str]]) -> Counter[str]:
    """The largest of several counts."""
    return max(counts, key=lambda counted: sum(counted.values()), default=Counter())
