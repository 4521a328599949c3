"""What crosses devices in a graph, and which devices compute in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
COMPUTING = ("Conv2D", "MatMul", "BatchMatMulV2", "Relu", "MaxPool", *CALLS)
"""Operations that show that a device computes a whole network. Calls are of functions that XLA compiles."""


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


def computing(graph: Any) -> set[str]:
    """The devices that compute a whole network."""
    return {name_of(operation.device) for operation in operations(graph) if operation.type in COMPUTING}


def computing_stage(graph: Any, name: str) -> set[str]:
    """The devices with operations both of the forward and of the backward pass of a stage, a Keras model of this name.

    A stage may be a flattening or a softmax alone. The loss, which is computed on the same device as the last stage,
    and the updates lie outside of its scope. A backward pass has a scope of its own around the stage's: that of the
    tape or, in a function whose gradient TensorFlow derives, that of its gradients.
    """
    of_stage = re.compile(rf"(gradient_tape/|gradients/)?{name}(_\d+)*/")
    forward, backward = set(), set()
    for operation, device in operations_within(graph):
        if match := of_stage.match(operation.name):
            (backward if match[1] else forward).add(device)
    return forward & backward


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
