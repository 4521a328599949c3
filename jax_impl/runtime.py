"""Starting and stopping JAX in a worker, waiting for the other ranks, and what JAX reports about itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from harness.contract import DevicesMissing, World
from harness.gate import launch_rate, precision_probe
from harness.spec import Precision
from jax_impl import processes

DTYPES = {"fp64": jnp.float64, "fp32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.float32}
"""The formats that parameters and inputs are stored in."""

COMPUTE_DTYPES = {**DTYPES, "bf16": jnp.bfloat16}
"""The formats that layers compute in: bf16 computes in bfloat16 with float32 parameters."""

PRODUCT_PRECISIONS = {"fp64": "highest", "fp32": "highest", "tf32": "tensorfloat32", "bf16": None}
"""How float32 products are computed. JAX's default, None, lets GPUs use TF32; in bf16 there are no such products: the
operands of all layers are bfloat16."""

FOR_GPUS = "; for GPUs: pip install 'jax[cuda13]', with a driver that knows CUDA 13"


def start(world: World, precision: Precision, settings: Mapping[str, bool]) -> None:
    """Set device count and number formats, and join the other processes, if there are several.

    All of this is process-wide, and must come before the first computation. Raises DevicesMissing if JAX does not see
    the devices of `world`.
    """
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))  # as it is now
    jax.config.update("jax_enable_x64", precision == "fp64")
    jax.config.update("jax_default_matmul_precision", PRODUCT_PRECISIONS[precision])
    if world.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", world.local_devices)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # between processes
    processes.join(world)
    try:
        found = [device.platform for device in jax.devices()]
    except RuntimeError as error:  # a jaxlib without CUDA
        raise DevicesMissing(f"{error}{FOR_GPUS}") from error
    if len(found) < world.devices or found[0] != world.platform:
        hint = FOR_GPUS if "gpu" not in found else ""
        raise DevicesMissing(f"JAX sees devices {found}, needs {world.devices} of platform {world.platform}{hint}")


def devices(world: World) -> list[Any]:
    """The devices that this process drives."""
    return jax.local_devices()[: world.local_devices]


def all_devices(world: World) -> list[Any]:
    """The devices of all processes, in the order of the ranks."""
    return jax.devices()[: world.devices]


def barrier(world: World) -> None:
    """Wait for all ranks."""
    processes.barrier(world)


def stop(world: World) -> None:
    """Part from the other ranks. A collective, after which nothing may be computed."""
    processes.leave(world)


def peak_bytes(world: World) -> int | None:
    """The most memory that arrays have taken so far on one of this process's GPUs, in bytes; None on the CPU."""
    if world.platform == "cpu":
        return None
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices(world)]
    return max((peak for peak in peaks if peak is not None), default=None)  # some allocators keep no count


def probe(world: World, precision: Precision, settings: Mapping[str, bool]) -> dict[str, float]:
    """The errors of products as they are computed here: see harness/gate/precision_probe.py."""
    a, b, x, k = (
        jax.device_put(array.astype(DTYPES[precision]), devices(world)[0])
        for array in precision_probe.operands().values()
    )
    kinds: Any = {"use_bias": False, "dtype": COMPUTE_DTYPES[precision], "param_dtype": DTYPES[precision]}
    product = nn.Dense(b.shape[1], **kinds).apply({"params": {"kernel": b}}, a)
    found = nn.Conv(k.shape[3], k.shape[:2], padding="VALID", **kinds).apply({"params": {"kernel": k}}, x)
    return precision_probe.errors(*(np.asarray(each, a.dtype) for each in (product, found)))


def launch_seconds(world: World) -> float:
    """Seconds that the host takes to launch a compiled addition to a single number on one of the devices."""
    number = jax.device_put(np.zeros(1, np.float32), devices(world)[0])
    add = jax.jit(lambda x: x + 1)
    last: list[jax.Array] = []

    def launch() -> None:
        last[:] = [add(number)]

    return launch_rate.seconds_of(launch, lambda: jax.block_until_ready(last))


def versions(world: World) -> dict[str, str]:
    """Versions other than those of the packages."""
    return {"PJRT": jax.devices()[0].client.platform_version} if world.platform == "gpu" else {}
