"""What simple programs reach on this process's devices: matrix products, memory, and the links between devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from harness.contract import World
from harness.gate import bounds
from harness.spec import LinkRate, Precision
from torch_impl.runtime import DTYPES, device, sync


def matrix_rate(world: World, precision: Precision) -> float:
    """Floating-point operations per second of a large matrix product in this precision on one of the devices.

    The numbers are random, as in training: at the power limit, a product of equal ones is faster.
    """
    size = bounds.matrix_size(world.platform, precision)
    dtype = torch.bfloat16 if precision == "bf16" else DTYPES[precision]  # under autocast, each product would also cast
    random = torch.Generator(device(world)).manual_seed(0)
    a = torch.randn(size, size, device=device(world), dtype=dtype, generator=random)
    return bounds.matrix_products(lambda: functional.linear(a, a), lambda: sync(world), world.platform, size=size)


def memory_rate(world: World) -> float:
    """Bytes per second that the memory of one of the devices reads and writes."""
    numbers = torch.ones(bounds.NUMBERS[world.platform], device=device(world))
    doubled = torch.empty_like(numbers)
    return bounds.memory(lambda: torch.mul(numbers, 2, out=doubled), lambda: sync(world), world.platform)


def link_rate(world: World, program: Any) -> LinkRate | None:
    """The bandwidth between the trial's devices; None if there is one. A collective.

    Between processes it is that of an all-reduce; one process copies from its first device to its second.
    """
    if world.devices == 1:
        return None
    numbers = torch.ones(bounds.LINK_NUMBERS[world.platform], device=device(world))
    if world.processes > 1:
        rate = bounds.all_reduce(
            lambda: dist.all_reduce(numbers), lambda: sync(world), world.platform, devices=world.devices
        )
        return LinkRate(bytes_per_second=rate, measured_by="all-reduce")
    there = torch.empty_like(numbers, device=device(world, 1))
    rate = bounds.copy(lambda: there.copy_(numbers), lambda: sync(world), world.platform)
    return LinkRate(bytes_per_second=rate, measured_by="copy")
