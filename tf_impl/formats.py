"""The number formats of a running program, read from the graph of a call and from the variables that it holds.

The call is traced into a graph around it. The tf.functions that it calls have their graphs already, so they are not
traced again: the graph around them contains those that ran, and those that XLA compiles too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from harness.gate.number_formats import SAMPLED, held_in, narrower, note
from harness.spec import NumberFormats
from tf_impl.coordinator import Coordinator, Worker
from tf_impl.graphs import Body, bodies
from tf_impl.program import Program
from tf_impl.several_steps import SeveralSteps

MAKES_STEPS = False  # whether `read` trains the program
PRODUCTS = ("Conv2D", "Conv3D", "DepthwiseConv2d", "MatMul", "BatchMatMul", "Einsum", "SparseMatMul")
"""How the operations begin that compute products, or their gradients."""
REDUCTIONS = ("CollectiveReduce", "NcclAllReduce", "NcclReduce", "CollectiveAllToAll")
SUMS = ("Add", "AddN", "AddV2")
TRANSFERS = ("CollectiveGather", "CollectiveBcast", "NcclBroadcast", "CollectivePermute")
UPDATES = ("Assign", "ResourceApply", "CollectiveReduce", "NcclAllReduce", "NcclReduce")
"""How the operations begin that a gradient or a part of the state goes into."""
ELEMENTWISE = (
    "Add", "AddN", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Neg", "Sqrt", "Rsqrt", "Square", "Pow", "Cast",
    "CollectiveReduceV2", "CollectiveReduceV3", "NcclAllReduce",
)  # fmt: skip
"""Operations whose result is made from gradients and state only, where it goes into an update."""
MOVES = (
    "Identity", "IdentityN", "Reshape", "ConcatV2", "Split", "SplitV", "Pack", "Unpack", "Slice", "StridedSlice",
    "Transpose", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape", "Snapshot",
)  # fmt: skip
"""Operations that hand numbers on as they are."""
DROP_DIGITS = (
    "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel", "Bitcast",
    "QuantizeAndDequantize", "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4",
)  # fmt: skip
"""Operations after which a float32 has fewer digits without a cast."""


def read(program: Program | Worker, calls: Sequence[Sequence[Any]]) -> NumberFormats:
    """The formats of the first of these calls, each with the batches of its steps. Nothing is computed."""
    if isinstance(program, Worker):
        return NumberFormats(unread="this rank serves rank 0, which has the graph and the variables")
    found = NumberFormats()
    graph = traced(program, calls[0])
    definition = graph.as_graph_def()
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        note_nodes(nodes, found)
        note_transfers(nodes, found)
    for name, place in rounded(bodies(definition)):
        note(found.rounded, name, place)
    for kind, places in (("model", found.parameters), ("optimizer", found.optimizer_state)):
        for name, variable in program.changing()[kind].items():
            if variable.dtype.is_floating:
                note(places, held(variable), name)
    return found


def traced(program: Program, batches: Sequence[Any]) -> tf.Graph:
    """The graph of one call. The program is left as it was."""
    if isinstance(program, Coordinator):  # the workers run this graph
        train_step: Any = program.train_step
        first_share = batches[0][0]
        return train_step.get_concrete_function(first_share[0]).graph
    before = program.last_loss

    def call() -> Any:
        if len(batches) == 1:
            return program.step(batches[0])
        assert isinstance(program, SeveralSteps)
        return program.steps(batches)

    try:
        return tf.function(call).get_concrete_function().graph
    finally:
        program.last_loss = before


def note_nodes(nodes: Any, found: NumberFormats) -> None:
    """Note the formats of all operations of a graph or function."""
    for node in nodes:
        for name in formats(node):
            note(found.anywhere, name, node.op)
            if node.op.startswith(PRODUCTS):
                note(found.products, name, node.op)
            elif node.op.startswith(REDUCTIONS):
                note(found.reductions, name, node.op)
            elif node.op.startswith(TRANSFERS):
                note(found.transfers, name, node.op)


def note_transfers(nodes: Any, found: NumberFormats) -> None:
    """Note the formats of what goes from one device to another between operations, for sums those of the sum."""
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        for source in _sources(node, by_name):
            if node.device and source.device and node.device != source.device:
                for name in formats(source):
                    places = found.reductions if node.op in SUMS else found.transfers
                    note(places, name, f"{source.op} to {node.op}")


def rounded(found: Sequence[Body]) -> Iterator[tuple[str, str]]:
    """The formats that gradients or state are rounded to on their way into an update, with the place.

    A layer's gradient comes in a narrow format where the layer computes in it, and is cast once. What was cast to a
    narrow format before, or was computed in it from other gradients, has lost digits that the update should have had.
    """
    waiting = [(body, node) for body in found for node in body.operations.values() if node.op.startswith(UPDATES)]
    seen = set()
    while waiting:
        body, node = waiting.pop()
        for of, source in body.sources(node):
            if (id(of), source.name) in seen:
                continue
            seen.add((id(of), source.name))
            if source.op in DROP_DIGITS:
                yield "fewer digits", source.op
            if source.op in ELEMENTWISE or source.op in MOVES:
                waiting.append((of, source))
            if source.op == "Cast" and _widens(source):
                for _, before in of.sources(source, past=MOVES):
                    if before.op in ELEMENTWISE:
                        yield tf.as_dtype(source.attr["SrcT"].type).name, f"{before.op} before a cast"


def formats(node: Any) -> Iterator[str]:
    """The floating-point formats among the types of an operation; of a cast, that of its result."""
    for value in [node.attr["DstT"]] if node.op == "Cast" else node.attr.values():
        for number in (value.type, *value.list.type):
            if name := _floating(number):
                yield name


@cache
def _floating(number: int) -> str:
    """The name of a floating-point format by TensorFlow's number of the type, or ""."""
    kind = tf.as_dtype(number) if number else tf.int32
    return kind.name if kind.is_floating else ""


def held(variable: tf.Variable) -> str:
    """The format of a variable, or the narrower one that holds all its values."""
    name = variable.dtype.name
    if name not in ("float32", "float64"):
        return name
    flat = np.asarray(variable.numpy()).reshape(-1)
    return held_in(flat[:: max(1, flat.size // SAMPLED)])


def _sources(node: Any, by_name: Mapping[str, Any]) -> list[Any]:
    """The operations of the same graph whose results a node takes."""
    names = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
    return [by_name[name] for name in names if name in by_name]


def _widens(cast: Any) -> bool:
    """Whether it casts from a floating-point format to a wider one."""
    source, target = (tf.as_dtype(cast.attr[name].type) for name in ("SrcT", "DstT"))
    return source.is_floating and target.is_floating and narrower(source.name, target.name)
