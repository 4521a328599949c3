"""What one rank of a program measures: blocks without a profiler, some traced steps, and a pipeline's stages alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
from stage_times import stage_milliseconds

from harness.worker.calls import make_steps
from harness.worker.rank_agreement import Agreement

FIRST_STEPS = 8
PILOT_STEPS = 8
BLOCKS = 3
ALONE = 5  # calls that find the devices idle: how long the host takes for a step's calls if it waits for nothing


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    """One rank: build, compile, wait for its turn, then blocks without a profiler and some traced steps."""
    built = common.Built(order, rank)
    program, batches = built.program, built.batches(0)
    held = [program.place(batches.batch(step, order["batch"], dtype=built.dtype)) for step in range(order["resident"])]
    calls = order["steps_per_call"]
    agree = Agreement(folder, rank, built.barrier)
    taken, issued = 0, 0.0

    def run(count: int) -> float:
        """Seconds of so many steps, to the end. `issued`: until the host had called them all."""
        nonlocal taken, issued
        program.sync()
        began = time.perf_counter()
        for _ in range(count // calls):
            make_steps(program, [held[(taken + step) % len(held)] for step in range(calls)])
            taken += calls
        issued = time.perf_counter() - began
        program.sync()
        return time.perf_counter() - began

    pilot_steps = max(PILOT_STEPS, calls)
    first = first_steps(run, calls)
    run(pilot_steps)
    common.write_json(folder / f"ready{rank}.json", round(first, 2))
    while not (folder / "go").exists():
        time.sleep(0.02)
    built.barrier()
    pilot = agree.on("pilot", run(pilot_steps) / pilot_steps)

    def steps_in(seconds: float) -> int:
        return calls * max(2, round(seconds / pilot / calls))

    run(steps_in(order["warmup"]))
    count = steps_in(order["block"])
    answer: dict[str, Any] = {"first_steps_seconds": round(first, 2), "steps_per_block": count}
    blocks_from = time.monotonic()
    blocks = [(run(count), issued) for _ in range(BLOCKS)]
    answer["blocks_between"] = [round(blocks_from, 3), round(time.monotonic(), 3)]
    answer["blocks_ms"] = [round(1000 * seconds / count, 3) for seconds, _ in blocks]
    answer["host_ms"] = [round(1000 * seconds / count, 3) for _, seconds in blocks]
    alone = [(run(calls), issued) for _ in range(ALONE)]
    answer["call_ms"] = [round(1000 * seconds / calls, 3) for _, seconds in alone]
    answer["cut_after"] = getattr(program, "cut_after", "")
    common.write_json(folder / f"answer{rank}.json", answer | built.facts())
    if order["trace"]:
        TRACERS[order["framework"]](folder / f"trace{rank}", lambda: run(order["traced_steps"]))
        answer["traced_steps"] = order["traced_steps"]
    if order["stages"]:
        answer["stage_ms"] = stage_milliseconds(program, order["options"]["micro_batches"], held[0])
    common.write_json(folder / f"answer{rank}.json", answer | built.facts())
    built.barrier()


def first_steps(run: Callable[[int], float], calls: int) -> float:
    """Seconds of the first steps, with a sync after each call. Their log shows what a program that is ended reached."""
    seconds = 0.0
    for made in range(0, max(FIRST_STEPS, calls), calls):
        took = run(calls)
        seconds += took
        print(f"steps from {made} on: {took:.2f} s", flush=True)
    return seconds


def trace_torch(folder: Path, run: Callable[[], Any]) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[kind]) as recorded:  # without the host's operators: they would slow it down
        run()
    folder.mkdir()
    recorded.export_chrome_trace(str(folder / "chrome.json"))


def trace_jax(folder: Path, run: Callable[[], Any]) -> None:
    import jax

    with jax.profiler.trace(str(folder)):
        run()


def trace_tf(folder: Path, run: Callable[[], Any]) -> None:
    import tensorflow as tf

    tf.profiler.experimental.start(str(folder))
    run()
    tf.profiler.experimental.stop()


TRACERS = {"torch": trace_torch, "jax": trace_jax, "tf": trace_tf}
