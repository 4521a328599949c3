"""PyTorch in a worker: starting it, its devices and process group, and what it reports about itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.nn import functional

from harness.contract import DevicesMissing, World
from harness.gate import launch_rate, precision_probe
from harness.spec import Precision
from torch_impl import tuning

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}
"""The types of parameters and inputs. bf16 computes in bfloat16 by autocast, over float32 parameters."""


def start(world: World, precision: Precision, settings: Mapping[str, bool]) -> None:
    """Set threads, devices, TF32 and cuDNN's autotuner, and join the process group if there are several processes.

    Raises DevicesMissing if PyTorch sees too few GPUs.
    """
    # One device's share of the cores, even if this process drives several CPU devices: its stages take turns.
    torch.set_num_threads(max(1, world.cores // world.local_devices))
    # Each by itself, because torch's defaults differ: convolutions may use TF32, matrix products may not.
    float32 = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = float32
    torch.backends.cudnn.conv.fp32_precision = float32  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.rnn.fp32_precision = float32  # pyright: ignore[reportAttributeAccessIssue]
    # Products of bfloat16 are summed in float32, as XLA sums them; by default cuBLAS may add partial sums in bfloat16.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = settings.get("cudnn_benchmark", False)
    if world.platform == "gpu":
        if torch.cuda.device_count() < world.host_devices:
            seen = f"PyTorch sees {torch.cuda.device_count()} GPUs, needs {world.host_devices}"
            raise DevicesMissing(f"{seen}{_why_no_gpu()}")
        torch.cuda.set_device(device(world))
    if world.processes > 1:
        dist.init_process_group(
            "nccl" if world.platform == "gpu" else "gloo",
            init_method=world.rendezvous,
            rank=world.rank,
            world_size=world.processes,
            device_id=device(world) if world.platform == "gpu" else None,
        )


def device(world: World, index: int = 0) -> torch.device:
    """The `index`-th device that this process drives."""
    return torch.device("cuda", world.first_device + index) if world.platform == "gpu" else torch.device("cpu")


def sync(world: World) -> None:
    """Wait until this process's devices are idle. CPUs always are: there every call returns when it is done."""
    if world.platform == "gpu":
        for index in range(world.local_devices):
            torch.cuda.synchronize(device(world, index))


def barrier(world: World) -> None:
    """Wait for all ranks."""
    if world.processes > 1:
        dist.barrier(device_ids=[torch.cuda.current_device()] if world.platform == "gpu" else None)


def mean_over_ranks(value: torch.Tensor, world: World) -> torch.Tensor:
    """The mean of the ranks' values in float64, the same on every rank. A collective."""
    total = value.to(torch.float64, copy=True)
    if world.processes > 1:
        dist.all_reduce(total)
    return total / world.processes


def peak_bytes(world: World) -> int | None:
    """Peak memory of tensors so far, in bytes, on the fullest of this process's GPUs; None on the CPU."""
    if world.platform == "cpu":
        return None
    return max(torch.cuda.max_memory_allocated(device(world, index)) for index in range(world.local_devices))


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return "; it is a build without CUDA: install torch's CUDA build"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, or an old one: torch's message says which
        return f"; {str(error).splitlines()[0]}"
    return ""


def probe(world: World, precision: Precision, settings: Mapping[str, bool]) -> dict[str, float]:
    """The errors of an eager matrix product and convolution in this precision: see harness/gate/precision_probe.py.

    Compiled code calls the same libraries for both under the same switches, and compiling them would take seconds of
    every launch.
    """
    a, b, x, k = (
        torch.from_numpy(array).to(device(world), DTYPES[precision]) for array in precision_probe.operands().values()
    )
    with torch.autocast(a.device.type, torch.bfloat16, enabled=precision == "bf16"):
        product = functional.linear(a, b.T)
        found = functional.conv2d(x.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)
    return precision_probe.errors(product.to(a.dtype).cpu().numpy(), found.to(a.dtype).cpu().numpy())


def launch_seconds(world: World) -> float:
    """Seconds that the host takes to launch an addition to a single number on one of the devices."""
    number = torch.zeros(1, device=device(world))
    return launch_rate.seconds_of(lambda: number.add_(1), lambda: sync(world))


def idle_setting(settings: Mapping[str, bool]) -> str:
    """A sentence about a setting that is on and did nothing, or ""."""
    nothing = settings.get("compile") and tuning.compiled_nothing()
    return "compile is on, and torch.compile compiled nothing" if nothing else ""


def versions(world: World) -> dict[str, str]:
    """Versions in addition to those of the packages."""
    if world.platform == "cpu":
        return {}
    return {"built for CUDA": str(torch.version.cuda)}
