"""How many bytes a strategy moves between devices in a step: formulas, with their sources.

The payload of a collective is what each device contributes to it, or what each device has after it. Tests compare
payloads with the counts of PyTorch's profiler and with the collectives in XLA's compiled programs. What a device sends
depends on how the collective is implemented; `sent` assumes the bandwidth-optimal ring (Patarasuk & Yuan 2009,
J. Parallel Distrib. Comput. 69). In an all-reduce of P bytes over n devices each device sends 2 (n - 1) / n P, in an
all-gather or a reduce-scatter half of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.layers import chain_shape
from harness.spec import Role, StrategySpec, Traffic
from harness.workloads import Workload

FLOAT_BYTES = 4

FORMULAS: dict[Traffic, tuple[str, str]] = {
    "none": ("0", ""),
    "all_reduce": ("2 (n - 1) / n P", "ring all-reduce of the gradients: Patarasuk & Yuan 2009"),
    "replicate": (
        "(n - 1) P out of device 0",
        "parameters sent to the other devices; gradients of the same size come back",
    ),
    "shard": (
        "3 (n - 1) / n P",
        "parameters gathered for forward and again for backward, gradients reduce-scattered: Rajbhandari et al. 2020, "
        "arXiv:1910.02054, section 7; without the second gather (reshard_after_forward=false) 2 (n - 1) / n P",
    ),
    "average": ("2 (n - 1) / n P / K", "ring all-reduce of the parameters every K = sync_every steps"),
    "activations": (
        "A, or 2 A between two cuts",
        "activations to the next stage, their gradients to the previous one; the first and last have one neighbor",
    ),
    "every_tick": (
        "(m + n - 1) / m A, twice that between two cuts",
        "as activations, but in every tick of a pipeline of m micro-batches, bubble included, padded to the widest cut",
    ),
    "push_pull": (
        "P / K up, P / K down",
        "each worker: gradients to the server, parameters back, every K = push_every steps (K = 1 without that option)",
    ),
}
"""By kind of traffic: the bytes that one device sends in a step, and the source. P: bytes of all parameters; A: bytes
of a whole batch's activations at the widest cut; n: devices."""


def payloads(
    traffic: Traffic,
    *,
    parameter_bytes: float,
    activation_bytes: float = 0.0,
    devices: int = 2,
    options: Mapping[Role, Any] | None = None,
) -> dict[str, float]:
    """Bytes of each collective in one step, by its name; for "send", the bytes that the busiest device sends.

    `options`: the values of the strategy's options, by role.
    """
    options = options or {}
    parameters = float(parameter_bytes)
    if traffic == "all_reduce":
        return {"all_reduce": parameters}
    if traffic == "average":
        return {"all_reduce": parameters / options.get("averaging_interval", 1)}
    if traffic == "shard":
        gathers = 2 if options.get("reshard_after_forward", True) else 1
        return {"all_gather": gathers * parameters, "reduce_scatter": parameters}
    if traffic == "replicate":
        return {"broadcast": parameters, "reduce": parameters}
    if traffic == "push_pull":
        pushed = parameters / options.get("push_interval", 1)
        return {"push": pushed, "pull": pushed}
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
    """Bytes of all parameters, with `size` bytes per number."""
    return size * sum(_count(parameter.shape) for parameter in workload.parameters())


def activation_bytes(workload: Workload, *, devices: int, size: int = FLOAT_BYTES) -> int:
    """Bytes of a whole batch's activations at the widest cut, where the network is cut if nobody chooses.

    Raises ValueError for a network that is cut before a block whose first layer is not known.
    """
    cuts = workload.cut_points(workload.usual_cut(devices), devices)
    layers = [workload.layers[: _first_layer(workload, block)] for block in cuts]
    widths = [_count(chain_shape(before, workload.input_shape)) for before in layers]
    return size * workload.global_batch * max(widths, default=0)


def _first_layer(workload: Workload, block: int) -> int:
    """The index of a block's first layer: the block's own if each block is a layer, else the first with parameters."""
    if len(workload.layers) == len(workload.blocks):
        return block
    prefix = f"{workload.blocks[block]}."
    for index, layer in enumerate(workload.layers):
        if any(parameter.name.startswith(prefix) for parameter in layer.parameters()):
            return index
    raise ValueError(f"{workload.name}: block {workload.blocks[block]} has no parameters, so its layer is not known")


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
        options={role: strategy.defaults[name] for role, name in strategy.roles(strategy.defaults).items()},
    )
    return sent(payload, devices=devices)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
