"""Do the bytes that crossed in a step obey the strategy's formula, and do the stages of a pipeline overlap?

The formulas are those of harness/gate/traffic.py, as ranges, which include what a framework is free to do differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.gate.placement import Cell, Range, stages_of
from harness.gate.traffic import payloads
from harness.layers import batch_norms, chain_shape, unused_parameters
from harness.spec import Check, DeviceShare, Role, Span
from harness.spec.checks import finding

BFLOAT16_BYTES = 2  # of one number
SMALL = 64
"""Bytes that may cross besides: the loss, which JAX's steps average over the devices, and the like."""


def check(crossed: Mapping[str, float] | None, found: Sequence[DeviceShare], cell: Cell) -> list[Check]:
    """The check of the bytes that crossed in one step; none if they were not counted, or have no formula."""
    right = expected(found, cell)
    if crossed is None or right is None:
        return []
    return [finding("bytes that crossed", _off(crossed, right, cell))]


def _off(crossed: Mapping[str, float], right: Mapping[str, Range], cell: Cell) -> str:
    """The first kind of collective whose bytes are not in its range, or ""."""
    extra = SMALL + statistics_bytes(cell)
    found = dict(crossed)
    if cell.strategy.traffic == "shard":  # XLA may make an all-reduce of it, of which each device keeps its part
        found["reduce_scatter"] = found.get("reduce_scatter", 0) + found.pop("all_reduce", 0)
    for kind in {**right, **found}:
        least, most = right.get(kind, (0, 0))
        size = found.get(kind, 0)
        if not least - equal_gradients(cell) <= size <= most + extra:
            wanted = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            return f"{kind} of {size:g} bytes in a step instead of {wanted}"
    return ""


def expected(found: Sequence[DeviceShare], cell: Cell) -> dict[str, Range] | None:
    """The right bytes of each kind of collective in one step; None where no formula is known.

    Parameters and activations are sent in float32, also in bf16, and in fp64 in float64. But a compiler may send a
    product before it converts it, and fsdp may round parameters before it gathers them. So in bf16 half of the bytes
    are right, too. An option may ask for bfloat16.
    """
    traffic = cell.strategy.traffic
    if traffic in ("replicate", "push_pull"):
        return None  # copies inside a process, or through a server: not counted
    if traffic in ("activations", "every_tick"):
        return _activations(found, cell)
    if traffic == "shard":
        return _shards(cell)
    if traffic == "all_reduce":
        return {"all_reduce": _gradients(cell)}
    roles: dict[Role, Any] = {
        role: cell.spec.options[name] for role, name in cell.spec.roles.items() if name in cell.spec.options
    }
    whole = payloads(traffic, parameter_bytes=cell.parameter_bytes, devices=cell.spec.devices, options=roles)
    return {kind: _in_precision(size, cell) for kind, size in whole.items()}


def _in_precision(size: float, cell: Cell) -> Range:
    """The range of a payload of `size` bytes in the format of the parameters."""
    if cell.spec.tolerances == "bf16_gradients":
        rounded = size * BFLOAT16_BYTES / cell.item
        return rounded, rounded
    return (size / 2, size) if cell.spec.precision == "bf16" else (size, size)


def _gradients(cell: Cell) -> Range:
    """The range of the bytes of all gradients.

    Those of parameters that no output depends on need not cross: PyTorch has none, and XLA knows that they are zero.
    """
    every = cell.parameter_bytes
    return _in_precision(every - cell.unused_bytes, cell)[0], _in_precision(every, cell)[1]


def _shards(cell: Cell) -> dict[str, Range]:
    """What crosses where each device has a part of every parameter.

    PyTorch, with a process for each device, gathers in parts that it pads to equal length: twice in every accumulation
    step, or once for all if the option says that parameters stay. Where one program drives all devices, XLA gathers a
    tensor that can be cut evenly at least once. It may gather it again for backward if the option says so.
    """
    left_out = unused_parameters(cell.workload.layers)
    count, option = cell.spec.devices, cell.spec.option("reshard_after_forward")
    padded, divisible = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}  # by whether a parameter is unused
    for parameter in cell.workload.parameters():
        size, rows, unused = cell.bytes_of(parameter), parameter.shape[-1], parameter in left_out
        padded[unused] += size * -(-rows // count) * count / rows
        divisible[unused] += size if any(length % count == 0 for length in parameter.shape) else 0
    gathers = 1 if option is False else 2
    if cell.strategy.processes == "one":
        gathered = _in_precision(divisible[False], cell)[0], gathers * sum(divisible.values())
        return {"all_gather": gathered, "reduce_scatter": _gradients(cell)}
    parts = 1 if option is False else cell.spec.accumulation_steps
    every = sum(padded.values()) * gathers * parts
    gathered = every, every
    if cell.spec.precision == "bf16" and cell.spec.option("gathers_rounded"):
        gathered = every / 2, every / 2 + _normalization_bytes(cell) * parts
    return {"all_gather": gathered, "reduce_scatter": (padded[False], sum(padded.values()))}


def _normalization_bytes(cell: Cell) -> float:
    """At most the bytes of BatchNorm's parameters, padded to be cut into equal parts."""
    return sum(2 * cell.item * (norm.channels + cell.spec.devices) for norm in batch_norms(cell.workload.layers))


def _activations(found: Sequence[DeviceShare], cell: Cell) -> dict[str, Range] | None:
    """What stages send: activations at each cut, and their gradients. None for blocks that are not single layers."""
    if len(cell.workload.layers) != len(cell.workload.blocks):
        return None
    if cell.spec.devices == 1:
        return {}
    at_cuts = list(activations(cell))
    if cell.strategy.traffic == "every_tick":
        count = cell.spec.option("micro_batches") or 1
        ticks = count + cell.spec.devices - 1
        return {"send": _in_precision(2 * ticks * max(at_cuts) / count, cell)}
    if cell.processes == 1:
        return {"send": _in_precision(2 * sum(at_cuts), cell)}
    own = set(stages_of(cell, 0, found[0]))
    total = sum(
        size * ((stage in own) + (stage + 1 in own)) * ({stage, stage + 1} - own != set())
        for stage, size in enumerate(at_cuts)
    )
    return {"send": _in_precision(total, cell)}


def activations(cell: Cell) -> Iterator[int]:
    """Bytes of a whole batch's activations behind each stage but the last."""
    points = [0, *(sum(len(stage) for stage in cell.stages[: index + 1]) for index in range(len(cell.stages)))]
    for _, point in pairwise(points[:-1]):
        shape = chain_shape(cell.workload.layers[:point], cell.workload.input_shape)
        yield cell.item * cell.spec.global_batch * math.prod(shape)


def statistics_bytes(cell: Cell) -> float:
    """At most these bytes of BatchNorm's statistics and their gradients may cross, as sums or gathered."""
    if not cell.workload.normalizes:
        return 0
    channels = sum(p.shape[0] for p in cell.workload.parameters() if len(p.shape) == 1 and p.name.endswith("weight"))
    return (16 + 4 * cell.spec.devices) * cell.item * (channels + 16) * cell.spec.accumulation_steps


def equal_gradients(cell: Cell) -> float:
    """At most these bytes may be missing, because a compiler sends equal gradients once.

    The last BatchNorm of a residual block and the one of its shortcut are added, so their biases have one gradient.
    """
    if not cell.workload.normalizes:
        return 0
    return sum(cell.bytes_of(p) for p in cell.workload.parameters() if len(p.shape) == 1 and p.name.endswith("bias"))


def has_order(cell: Cell) -> bool:
    """Whether stages that work at the same time are asked for, and launched one by one.

    In one program on all devices, what crosses tells the number of ticks, and only a copy of it can be traced.
    """
    launched = cell.strategy.parallelism == "pipeline" and cell.strategy.traffic != "every_tick"
    return launched and cell.spec.devices > 1 and _micro_batches(cell) > 1


def check_order(spans: Sequence[Span], found: Sequence[DeviceShare], cell: Cell) -> list[Check]:
    """Whether the stages of a pipeline work at the same time, on as many micro-batches as the options say, where that
    can be seen: in the order in which work on the first stage of this process begins, or in the spans of a traced step.
    """
    if not has_order(cell):
        return []
    if orders := [share.order for share in found if share.order]:
        return [finding("order of stages", _off_schedule(orders[0], cell))]
    if not spans:
        return []
    count, right = len({span.micro_batch for span in spans}), _micro_batches(cell)
    if count != right:
        return [finding("order of stages", f"{count} micro-batches in a step instead of {right}")]
    if cell.spec.platform == "cpu" and cell.spec.devices == 2:
        return []
    return [finding("order of stages", _late(spans, cell))]


def _off_schedule(order: str, cell: Cell) -> str:
    """What is wrong with the order in which a process began work on its first block or stage, or "".

    The first stage must begin its second micro-batch before the backward of its first. GPipe's stages take all
    micro-batches forward first; stage k of p stages under 1F1B takes at most p - k of them (Narayanan et al. 2021,
    arXiv:2104.04473).
    """
    count, right, schedule = order.count("F"), _micro_batches(cell), cell.spec.option("schedule")
    if count != right:
        return f"{order}: {count} micro-batches in a step instead of {right}"
    before = order.partition("B")[0].count("F")
    if cell.rank == 0 and before < 2:
        return f"{order}: each micro-batch returns before the next begins"
    if schedule == "gpipe" and before < right:
        return f"{order}: GPipe takes all micro-batches forward first"
    if schedule == "1f1b" and before > cell.spec.devices - cell.rank:
        return f"{order}: 1F1B takes {cell.spec.devices - cell.rank} forward before the first returns"
    return ""


def _late(spans: Sequence[Span], cell: Cell) -> str:
    """Why the first stage waits too long, in a process that drives all stages, or "".

    It must begin its second micro-batch before the last stage has ended its first. On CPU devices one process does one
    thing after another. There the last stage must not even have begun its first. This is only checked from three stages
    on: with two, work is begun in the same order with and without overlap.
    """
    forward = {(span.stage, span.micro_batch): span for span in spans if span.phase == "forward"}
    through = forward[cell.spec.devices - 1, 0]
    late = forward[0, 1].start >= (through.end if cell.spec.platform == "gpu" else through.start)
    return "stage 0 waits for its micro-batch to pass through all stages before it begins the next" if late else ""


def _micro_batches(cell: Cell) -> int:
    """How many micro-batches a step has."""
    size = cell.spec.option("micro_batch_size")
    return -(-cell.spec.global_batch // size) if size else cell.spec.option("micro_batches") or 1
