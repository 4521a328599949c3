"""What crosses devices in a graph, and which devices compute in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
COMPUTING = ("Conv2D", "MatMul", "BatchMatMulV2", "Relu", "MaxPool", "FusedBatchNormV3", "Rsqrt", *CALLS)
"""Operations that show that a device computes part of the network. BatchNorm's inverse deviation is an Rsqrt, and calls
are of functions that XLA compiles."""
PASSING = ("Identity", "IdentityN")
"""Operations that hand on what they take."""


def reduced(graph: Any) -> int:
    """The bytes that one device puts into the all-reduces of a graph; the most of all devices."""
    found: Counter[str] = Counter()
    for operation, device in operations_within(graph):
        if operation.type.startswith("CollectiveReduce") or operation.type == "NcclAllReduce":
            found[device] += size_of(operation.inputs[0])
    return max(found.values(), default=0)


def sent(graph: Any) -> int:
    """The bytes of activations and gradients that one device makes and another uses. Each counts once per device."""
    crossing: dict[tuple[str, str], int] = {}
    for operation in operations(graph):
        for tensor in operation.inputs:
            source, target = name_of(tensor.op.device), name_of(operation.device)
            if source and target and source != target and tensor.dtype.is_floating and tensor.shape.rank:
                crossing[tensor.name, target] = size_of(tensor)
    return sum(crossing.values())


def computing(graph: Any, without_parameters: Collection[str] = ()) -> set[str]:
    """The devices that compute.

    `without_parameters`: devices whose stages have no parameters, such as one of a flattening and a softmax. There any
    operation that takes floating-point numbers is the network's: nothing is updated there.
    """
    placed = [(operation, name_of(operation.device)) for operation in operations(graph)]
    return {
        device
        for operation, device in placed
        if operation.type in COMPUTING or (device in without_parameters and _takes_numbers(operation))
    }


def _takes_numbers(operation: Any) -> bool:
    return operation.type not in PASSING and any(tensor.dtype.is_floating for tensor in operation.inputs)


def operations(graph: Any) -> Iterator[Any]:
    """The operations of a graph, without those of the functions that it calls."""
    yield from graph.get_operations()


def operations_within(graph: Any, device: str = "") -> Iterator[tuple[Any, str]]:
    """The operations of a graph and of the functions that it calls, each with its device.

    What XLA compiles runs on the device of the call, whatever its operations say. `device`: of a call of this graph.
    """
    for operation in operations(graph):
        own = device or name_of(operation.device)
        yield operation, own
        if operation.type in CALLS:
            yield from operations_within(graph._get_function(operation.get_attr("f").name).graph, own)


def name_of(device: str) -> str:
    """The last part of a device's name, "CPU:0": the whole name may or may not begin with a job."""
    return device.rpartition("device:")[2]


def size_of(tensor: tf.Tensor) -> int:
    """Bytes; 0 if the shape is not known when the graph is made."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size
