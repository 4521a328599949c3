"""How many bytes a strategy moves between devices in a step: formulas, with their sources.

A collective's payload is what each device hands to it (or gets from it, whole); tests hold payloads against what
PyTorch's profiler counts and against the collectives in XLA's compiled programs. What a device then sends depends on
how the collective is made; `sent` takes the bandwidth-optimal ring (Patarasuk & Yuan 2009, J. Parallel Distrib.
Comput. 69): an all-reduce of P bytes over n devices sends 2 (n - 1) / n P from each, an all-gather or a reduce-scatter
half of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.layers import chain_shape
from harness.spec import StrategySpec, Traffic, partition
from harness.workloads import Workload

FLOAT_BYTES = 4

FORMULAS: dict[Traffic, tuple[str, str]] = {
    "none": ("0", ""),
    "all_reduce": ("2 (n - 1) / n P", "ring all-reduce of the gradients: Patarasuk & Yuan 2009"),
    "replicate": ("(n - 1) P out of device 0", "parameters copied out; as much comes back as gradients"),
    "shard": (
        "3 (n - 1) / n P",
        "parameters gathered for forward and again for backward, gradients reduce-scattered: Rajbhandari et al. 2020, "
        "arXiv:1910.02054, section 7; without the second gathering (reshard_after_forward=false) 2 (n - 1) / n P",
    ),
    "average": ("2 (n - 1) / n P / K", "ring all-reduce of the parameters every K = sync_every steps"),
    "activations": (
        "A, or 2 A between two cuts",
        "activations to the next stage, their gradients to the one before; the ends have one neighbour only",
    ),
    "every_tick": (
        "(m + n - 1) / m A, twice that between two cuts",
        "as activations, but in each tick of a pipeline of m micro-batches, the bubble's too, padded to the widest cut",
    ),
    "push_pull": ("P up, P down", "each worker: gradients to the server, parameters back"),
}
"""By the kind of traffic: bytes that one device sends in a step, and whence. P: bytes of the parameters; A: bytes of a
whole batch's activations at the widest cut; n: devices."""


def payloads(
    traffic: Traffic,
    *,
    parameter_bytes: float,
    activation_bytes: float = 0.0,
    devices: int = 2,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Bytes that go into each collective in one step, by its name; for "send", what the busiest device sends."""
    options = options or {}
    parameters = float(parameter_bytes)
    if traffic == "all_reduce":
        return {"all_reduce": parameters}
    if traffic == "average":
        return {"all_reduce": parameters / options.get("sync_every", 1)}
    if traffic == "shard":
        gathers = 2 if options.get("reshard_after_forward", True) else 1
        return {"all_gather": gathers * parameters, "reduce_scatter": parameters}
    if traffic == "replicate":
        return {"broadcast": parameters, "reduce": parameters}
    if traffic == "push_pull":
        return {"push": parameters, "pull": parameters}
    if traffic in ("activations", "every_tick"):
        count = options.get("micro_batches", 1)
        ticks = (count + devices - 1) / count if traffic == "every_tick" else 1
        return {"send": activation_bytes * ticks * (1 if devices == 2 else 2)}
    return {}


def sent(payload: Mapping[str, float], *, devices: int) -> float:
    """Bytes that the busiest device sends in one step."""
    n = devices
    share = {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "broadcast": n - 1,  # device 0 sends a copy to each
        "reduce": 0,  # it only receives
        "push": 1,
        "pull": 0,
        "send": 1,
    }
    return sum(share[name] * size for name, size in payload.items())


def parameter_bytes(workload: Workload, size: int = FLOAT_BYTES) -> int:
    """Bytes of all parameters, `size` a number."""
    return size * sum(_count(parameter.shape) for parameter in workload.parameters())


def activation_bytes(workload: Workload, *, devices: int, size: int = FLOAT_BYTES) -> int:
    """Bytes of a whole batch's activations at the widest cut, with the network cut by parameters into equal stages.

    For networks whose blocks are their layers, one to one: ValueError for others.
    """
    if len(workload.layers) != len(workload.blocks):
        raise ValueError(
            f"{workload.name}: its {len(workload.layers)} layers are not its {len(workload.blocks)} blocks"
        )
    costs = [sum(_count(p.shape) for p in layer.parameters()) for layer in workload.layers]
    cuts = partition.balance(costs, devices)
    widths = [_count(chain_shape(workload.layers[:cut], workload.input_shape)) for cut in cuts]
    return size * workload.global_batch * max(widths, default=0)


def bytes_sent(strategy: StrategySpec, workload: Workload, *, devices: int) -> float:
    """Bytes that the busiest device sends in one step of `workload` in float32, with the strategy's default options."""
    if strategy.traffic == "none":
        return 0.0
    cut = strategy.traffic in ("activations", "every_tick")
    activations = activation_bytes(workload, devices=devices) if cut else 0
    payload = payloads(
        strategy.traffic,
        parameter_bytes=parameter_bytes(workload),
        activation_bytes=activations,
        devices=devices,
        options=strategy.options,
    )
    return sent(payload, devices=devices)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
