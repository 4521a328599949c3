"""How many bytes a step of an XLA program reads and writes, by the program's text.

Each kernel reads its operands from memory and writes its results: what a fused kernel keeps in registers is not
counted, and neither is what a cache saves. So the sum over all kernels, divided by the memory's bandwidth, is about the
least time that the step takes as XLA has fused it. For a convolution and a fused ReLU on a CPU, the number is that of
XLA's own cost analysis. Where a kernel reads a slice of an array, the whole array is counted: with JAX's
`flat_gradients`, that is 2.5 GB too much for a step of ResNet-50.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(.*)$")
OPERAND = re.compile(r"%?([A-Za-z_][\w.\-]*)(?:#(\d+))?")  # "%tuple#1" is the tuple's element 1, in dumps
ARRAY = re.compile(r"\b(pred|bf16|[a-z]\d*[a-z]*\d*)\[([\d,]*)\]")
MOVES_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"}
CALLS = {"call", "while", "conditional"}
CONVOLUTION = "convolution and matrix product"


def of_dump(folder: Path) -> dict[str, int]:
    """Bytes by kind of operation, of the largest program in a dump of XLA's (`--xla_dump_hlo_as_text`)."""
    dumped = sorted(folder.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size)
    return of_text(dumped[-1].read_text("utf-8", errors="replace")) if dumped else {}


def of_text(program: str) -> dict[str, int]:
    """Bytes by kind of operation: convolutions and products, and all else.

    Raises ValueError for a loop or a branch: how often it runs is not in the text.
    """
    computations, entry = _computations(program.splitlines())
    return dict(_of_computation(entry, computations))


def _computations(lines: list[str]) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, and the name of the one that is run."""
    found: dict[str, list[str]] = {}
    entry = name = ""
    for line in lines:
        if match := COMPUTATION.match(line):
            name = match[2]
            entry = name if match[1] else entry
            found[name] = []
        elif name:
            found[name].append(line)
    return found, entry


def _of_computation(name: str, computations: dict[str, list[str]]) -> Counter[str]:
    sizes: dict[str, list[int]] = {}  # of the arrays of each result
    total: Counter[str] = Counter()
    for line in computations[name]:
        if not (match := INSTRUCTION.match(line)):
            continue
        result, shape, operation, operands, rest = match.groups()
        sizes[result] = [_size(*array) for array in ARRAY.findall(shape)]
        if operation in MOVES_NOTHING:
            continue
        if operation in CALLS:
            if operation != "call":
                raise ValueError(f"{result}: a {operation} runs as often as its data say")
            called = re.search(r"to_apply=%?([\w.\-]+)", rest)
            total += _of_computation(called[1], computations) if called else Counter()
            continue
        read = {(name, element) for name, element in OPERAND.findall(operands) if name in sizes}
        written = sum(sizes[result]) - (scratch(shape) if operation == "custom-call" else 0)
        taken = sum(sizes[name][int(element)] if element else sum(sizes[name]) for name, element in read)
        total[kind_of(operation, rest)] += written + taken
    return total


def kind_of(operation: str, rest: str) -> str:
    """Convolutions and products, by a library or not, or all else."""
    target = re.search(r'custom_call_target="([^"]*)"', rest)
    named = target[1] if target else operation
    return CONVOLUTION if re.search(r"conv(?!ert)|gemm|matmul|^dot$", named, re.IGNORECASE) else "all else"


def scratch(shape: str) -> int:
    """Bytes of a library's own memory, which it returns as the last array, of bytes."""
    arrays = ARRAY.findall(shape)
    if len(arrays) < 2 or arrays[-1][0] not in ("u8", "s8"):
        return 0
    return _size(*arrays[-1])


def _size(kind: str, dims: str) -> int:
    """Bytes of an array: "bf16" and "5,5"."""
    return _bytes(kind) * math.prod(map(int, filter(None, dims.split(","))))


def _bytes(kind: str) -> int:
    bits = re.search(r"\d+", kind)
    return 1 if kind == "pred" else max(1, int(bits[0]) // 8) if bits else 0
