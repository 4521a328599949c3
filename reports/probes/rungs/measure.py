"""What a worker measures, whatever its framework: first calls, warm-up, and blocks of calls with the GPU idle at both
ends of each."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

from harness.contract import Arrays, World
from harness.datasets import Batches
from harness.spec import registry
from harness.workloads import Workload

RESIDENT = 4  # batches, as in the suite's timed phase
FIRST_LOSSES = 8  # at least so many updates come before the warm-up: PGLE compiles again within them


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a loop is made of: the workload as the suite has it, with the framework started."""

    order: dict[str, Any]
    world: World
    runtime: Any  # the framework's own module of the suite
    workload: Workload
    params: Arrays  # initial weights, canonical
    batches: list[Arrays]  # RESIDENT of them, on the host

    @property
    def options(self) -> dict[str, Any]:
        return self.order["rung"]

    @property
    def precision(self) -> str:
        return self.order["precision"]

    @property
    def on_gpu(self) -> bool:
        return self.world.platform == "gpu"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop on resident batches."""

    updates: int  # that one call makes
    call: Callable[[], Any]  # makes them, on the batches in turn; their losses, on the device
    losses: Callable[[Any], list[float]]  # of what `call` returned
    sync: Callable[[], None]
    facts: Callable[[], dict[str, Any]] = field(default=dict)  # what it says of itself when all is done


def start(order: dict[str, Any]) -> Start:
    """Start the framework as a worker of the suite does, and make weights and batches on the host."""
    world = World(rank=0, **order["world"])
    runtime = importlib.import_module(f"{registry.framework(order['framework']).package}.runtime")
    runtime.start(world, order["precision"], order["settings"])
    workload = common.workload_of(order)
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    return Start(
        order=order,
        world=world,
        runtime=runtime,
        workload=workload,
        params=workload.init_params(0),
        batches=[batches.batch(step, order["batch"], dtype=np.float32) for step in range(RESIDENT)],
    )


def suite_loop(order: dict[str, Any]) -> tuple[Loop, common.Built]:
    """The suite's own program behind its contract."""
    built = common.Built(order, 0)
    program, batches = built.program, built.batches(0)
    placed = [program.place(batches.batch(step, order["batch"], dtype=built.dtype)) for step in range(RESIDENT)]
    turn = Turn()
    loop = Loop(
        updates=1,
        call=lambda: program.step(placed[turn.next()]),
        losses=lambda given: [program.loss(given)],
        sync=program.sync,
    )
    return loop, built


class Turn:
    """Which of the resident batches is next."""

    def __init__(self) -> None:
        self.taken = 0

    def next(self) -> int:
        self.taken += 1
        return (self.taken - 1) % RESIDENT


def measure(loop: Loop, order: dict[str, Any]) -> dict[str, Any]:
    """First calls one by one, with their losses; then warm-up and window."""
    losses: list[float] = []
    first_calls: list[float] = []
    while len(losses) < FIRST_LOSSES:
        began = time.perf_counter()
        given = loop.call()
        loop.sync()
        first_calls.append(time.perf_counter() - began)
        losses += loop.losses(given)

    def timed(calls: int) -> tuple[float, float]:
        """Seconds of so many calls with an idle device at both ends, and how many of them the host took to call."""
        began = time.perf_counter()
        for _ in range(calls):
            loop.call()
        called = time.perf_counter()
        loop.sync()
        return time.perf_counter() - began, called - began

    calls = 1
    ends = time.perf_counter() + order["warmup_seconds"]
    while True:
        seconds, _ = timed(calls)
        # bounded: a first call may be much faster or slower than the rest
        calls = max(1, min(4 * calls, round(calls * order["block_seconds"] / seconds)))
        if time.perf_counter() > ends:
            break
    meter = Meter(order)
    before = meter.read()
    blocks = [timed(calls) for _ in range(max(3, round(order["window_seconds"] / order["block_seconds"])))]
    after = meter.read()
    updates = calls * loop.updates
    milliseconds = [1000 * seconds / updates for seconds, _ in blocks]
    return {
        "losses": losses,
        "first_call_seconds": round(first_calls[0], 3),
        "next_calls_seconds": [round(seconds, 4) for seconds in first_calls[1:]],
        "updates_a_call": loop.updates,
        "updates_a_block": updates,
        "block_seconds": [round(seconds, 5) for seconds, _ in blocks],
        "host_seconds": [round(host, 5) for _, host in blocks],
        "step_ms": [round(value, 4) for value in milliseconds],
        "mean_ms": round(float(np.mean(milliseconds)), 4),
        "images_per_second": round(1000 * order["batch"] / float(np.mean(milliseconds)), 1),
        "gpu_before": before,
        "gpu_after": after,
    }


class Meter:
    """NVML's readings of the GPU that this process uses; none on the CPU, or where pynvml is not installed."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.why, self.handle = "", None
        if order["platform"] == "cpu":
            self.why = "on the CPU"
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            token = os.environ["CUDA_VISIBLE_DEVICES"]
            by_number = pynvml.nvmlDeviceGetHandleByIndex
            self.handle = by_number(int(token)) if token.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(token)
        except Exception as error:  # a probe goes on without
            self.why = f"{type(error).__name__}: {error}"[:200]

    def read(self) -> dict[str, Any]:
        """Clocks in MHz, watts (NVML's mean of the last second), joules since the driver was loaded, degrees Celsius,
        and the bits of what holds the clocks down."""
        if self.handle is None:
            return {"none": self.why}
        import pynvml

        reads: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_MEM),
            "watts": lambda: pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1000,
            "joules": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1000,
            "celsius": lambda: pynvml.nvmlDeviceGetTemperature(self.handle, pynvml.NVML_TEMPERATURE_GPU),
            "reasons": lambda: hex(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)),
        }
        found: dict[str, Any] = {}
        for name, read in reads.items():
            try:
                found[name] = read()
            except Exception as error:  # not every GPU and driver has all of them
                found[name] = f"{type(error).__name__}: {error}"[:100]
        return found


def versions(order: dict[str, Any], runtime: Any, world: World) -> dict[str, str]:
    """Of the packages and of what they were built for."""
    known = registry.framework(order["framework"]).distributions
    extra = ("nvidia-cudnn-cu13", "triton") if order["framework"] == "torch" else ("nvidia-cudnn-cu13",)
    found = {name: common.version(name) for name in (*known, *extra)}
    return found | {"python": sys.version.split()[0]} | runtime.versions(world)


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    """Build the rung's loop, measure it, and leave what was found in FOLDER/answer0.json."""
    began = time.perf_counter()
    if order["rung"].get("suite"):
        loop, built = suite_loop(order)
        runtime, world = built.runtime, built.world
    else:
        given = start(order)
        loop = importlib.import_module(f"{order['framework']}_loops").make(given)
        runtime, world = given.runtime, given.world
    answer: dict[str, Any] = {"build_seconds": round(time.perf_counter() - began, 2)}
    answer |= measure(loop, order)
    answer |= {"facts": loop.facts(), "peak_bytes": runtime.peak_bytes(world)}
    answer["versions"] = versions(order, runtime, world)
    common.write_json(folder / f"answer{rank}.json", answer)
