"""What simple programs reach on this process's devices: matrix products, memory, and the links between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.contract import World
from harness.gate import bounds
from harness.spec import LinkRate, Precision
from jax_impl.placement import AXIS
from jax_impl.runtime import COMPUTE_DTYPES, all_devices, devices


def matrix_rate(world: World, precision: Precision) -> float:
    """Floating-point operations per second of a large matrix product in this precision on one of the devices.

    The numbers are random, as in training: at the power limit, a product of equal ones is faster.
    """
    size = bounds.matrix_size(world.platform, precision)
    numbers = jax.random.normal(jax.random.key(0), (size, size), COMPUTE_DTYPES[precision])
    a = jax.device_put(numbers, devices(world)[0])
    # by cuBLAS alone: XLA would first compile and try a Triton kernel for each of many tiles, 9 s in fp32
    options = {"xla_gpu_enable_triton_gemm": False} if world.platform == "gpu" else None
    product = jax.jit(jnp.matmul, compiler_options=options)
    return bounds.matrix_products(*_launched(lambda: product(a, a)), world.platform, size=size)


def memory_rate(world: World) -> float:
    """Bytes per second that the memory of one of the devices reads and writes."""
    numbers = jax.device_put(np.ones(bounds.NUMBERS[world.platform], np.float32), devices(world)[0])
    double = jax.jit(lambda x: 2 * x)
    return bounds.memory(*_launched(lambda: double(numbers)), world.platform)


def link_rate(world: World, program: Any) -> LinkRate | None:
    """The bandwidth between the trial's devices, by an all-reduce; None if there is one device. A collective."""
    if world.devices == 1:
        return None
    mesh = Mesh(np.array(all_devices(world)), (AXIS,))
    parts, whole = PartitionSpec(AXIS), PartitionSpec()
    total = world.devices * bounds.LINK_NUMBERS[world.platform]
    numbers = jax.jit(lambda: jnp.ones(total, jnp.float32), out_shardings=NamedSharding(mesh, parts))()
    reduce = jax.jit(jax.shard_map(lambda own: jax.lax.psum(own, AXIS), mesh=mesh, in_specs=parts, out_specs=whole))
    rate = bounds.all_reduce(*_launched(lambda: reduce(numbers)), world.platform, devices=world.devices)
    return LinkRate(bytes_per_second=rate, measured_by="all-reduce")


def _launched(call: Callable[[], jax.Array]) -> tuple[Callable[[], object], Callable[[], object]]:
    """A function that makes the call without waiting for it, and one that waits for all calls so far."""
    last: list[jax.Array] = []

    def launch() -> jax.Array:
        last[:] = [call()]
        return last[0]

    return launch, lambda: jax.block_until_ready(last)
