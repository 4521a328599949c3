"""A record that has all that a record can have, and changes to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conftest import make_result, make_spec
from scenes import MATRIX_RATE, RUN, epochs, gpus, training

from harness.planning import launch_order
from harness.reporting import document, summary
from harness.reporting.model import Section, Table, walk
from harness.spec import (
    Bounds,
    Check,
    GpuErrors,
    GpuTelemetry,
    HostLoad,
    LinkRate,
    NumberFormats,
    RankResult,
    Telemetry,
    Timing,
    TrialResult,
    TrialSpec,
    TuningEffort,
)

ROUNDS, BLOCKS, STEPS = 5, 10, 20
HERE = gpus("GPU-a", "GPU-b") | {"boot": "first"}
THERE = gpus("GPU-c", "GPU-d") | {"boot": "second"}
FACTS = {"planned": 20, "device_guard": "refuse", "telemetry": "on", "session": "2026-01-01 10:00"}
LOSSES = (2.0, 1.5, 1.0)
TUNING = TuningEffort(
    budget_seconds=400.0, spent_seconds=390.5, device="NVIDIA H200", workload="a network", date="2026-01-01",
    versions={"torch": "1"}, probe="reports/probe.json", tried=("eager", "compiled"),
)  # fmt: skip
Results = list[TrialResult]


def specs() -> list[TrialSpec]:
    """Two frameworks on one and two devices."""
    known: Any = {"platform": "gpu", "precision": "bf16", "blocks": BLOCKS, "warmup_seconds": 5.0, "curve_steps": 3}
    names = [("torch", "single", 1), ("torch", "ddp", 2), ("jax", "single", 1), ("jax", "pmap", 2)]
    return [make_spec(framework=name, strategy=strategy, devices=n, **known) for name, strategy, n in names]


def bounds(spec: TrialSpec) -> Bounds:
    """Of an H200, as rank 0 measured it."""
    links = LinkRate(bytes_per_second=3.5e11, measured_by="all-reduce") if spec.devices > 1 else None
    return Bounds(matrix_flops_per_second=7e14, memory_bytes_per_second=4.3e12, links=links)


def timings(spec: TrialSpec, start: float, factor: float, noise: random.Random) -> list[Timing]:
    """What the ranks of a launch measured: 20 steps of about 50 ms in each block."""
    blocks = [factor * (1 + noise.gauss(0, 0.001)) for _ in range(BLOCKS)]
    starts = tuple(start + 1.2 * factor * number for number in range(BLOCKS))
    found = []
    for rank in range(2 if spec.strategy == "ddp" else 1):
        checks = (Check(quantity="work after sync", error=0.001, tolerance=0.05, worst="anywhere"),)
        if rank == 0:
            checks += (Check(quantity=MATRIX_RATE, error=0.4, tolerance=1.2, worst="1e15 FLOP/s"),)
        steps = tuple(factor / STEPS + 0.001 + 0.0001 * (number % 7) for number in range(40))
        found.append(
            Timing(
                losses=LOSSES,
                checks=checks,
                first_step_seconds=3.0,
                steps_per_block=STEPS,
                block_seconds=tuple(each * (1 - 0.01 * rank) for each in blocks),
                block_starts=tuple(each + 0.001 * rank for each in starts),
                step_seconds=steps,
                call_seconds=tuple(each / 10 for each in steps),
                launch_seconds=1e-5,
                bounds=bounds(spec) if rank == 0 else None,
                formats=NumberFormats(products={"bfloat16": "conv1"}),
                crossed={},
            )
        )
    return found


def sampled(found: list[Timing]) -> Telemetry:
    """Readings of one GPU, a second apart, around the blocks of a launch."""
    zero = found[0].block_starts[0]
    seconds = tuple(float(second) for second in range(-1, 40))
    column: Any = (1,) * len(seconds)
    names = ("sm_clock_mhz", "power_watts", "temperature_celsius", "busy_percent", "clock_reasons")
    names += ("power_violation_ms", "thermal_violation_ms")
    columns: Any = dict.fromkeys(names, column)
    gpu = GpuTelemetry(uuid="GPU-a", **columns)
    load = (HostLoad(load=1.5, cpu_seconds=1.0, steal_seconds=0.0),)
    errors = (GpuErrors(uuid="GPU-a", corrected=1, uncorrected=0, xids=()),)
    return Telemetry(zero=zero, seconds=seconds, gpus=(gpu,), errors=errors, host=load)


def launch(spec: TrialSpec, place: int, noise: random.Random) -> TrialResult:
    """One launch of the good run, the one at this place in its order."""
    factor = (2.0 if spec.framework == "jax" else 1.0) * (1 + noise.gauss(0, 0.002))
    found = timings(spec, start=100.0 * place, factor=factor, noise=noise)
    row = make_result(
        spec=spec, losses=LOSSES, run=RUN | FACTS, machine=HERE, data="d", code="c", interpreter="CPython 3.12",
        versions={spec.framework: "1"}, libraries={"cuDNN": "9"}, lock="all", environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    cache: Any = "cold" if spec.launch < 3 else "warm"
    row = replace(row, described=replace(row.described, tuning=TUNING))
    ranks = tuple(RankResult(build_seconds=1.0, compile_cache=cache, timing=each) for each in found)
    return replace(row, ranks=ranks, telemetry=sampled(found), wall_seconds=60.0)


def trained(**known: Any) -> Results:
    """Five trainings of one cell, as a run of their own."""
    run = RUN | FACTS | {"started": "2026-01-02", "planned": 5}
    accurate: Any = {"epochs": epochs((1.0, 0.5), (1.0, 0.95)), "run": run} | known
    return [training("torch", "single", seed=seed, **accurate) for seed in range(5)]


def good() -> Results:
    """A record that has all that a record can have: a run and trainings."""
    noise, cells = random.Random(1), specs()
    order = enumerate(launch_order.order(cells, ROUNDS))
    timed = [launch(replace(cells[index], launch=number), place, noise) for place, (number, index) in order]
    return timed + trained()


def is_timed(result: TrialResult) -> bool:
    return result.spec.training is None


def each(change: Callable[[TrialResult], TrialResult], of: Callable[[TrialResult], bool] = is_timed):
    """Changes some rows of the good record."""
    return lambda results: [change(row) if is_timed(row) and of(row) else row for row in results]


def only(of: Callable[[TrialResult], bool]):
    """Keeps some timed rows of the good record."""
    return lambda results: [row for row in results if not is_timed(row) or of(row)]


def timing(**changed: Any):
    """Changes what every rank measured."""

    def change(row: TrialResult) -> TrialResult:
        timed = [(each, each.timing) for each in row.ranks if each.timing is not None]
        return replace(row, ranks=tuple(replace(each, timing=replace(found, **changed)) for each, found in timed))

    return change


def rank(**changed: Any):
    return lambda row: replace(row, ranks=tuple(replace(r, **changed) for r in row.ranks))


def conditions(**changed: Any):
    return lambda row: replace(row, conditions=replace(row.conditions, **changed))


def spec(**changed: Any):
    return lambda row: replace(row, spec=replace(row.spec, **changed))


def facts(**changed: Any):
    return lambda row: replace(row, run=replace(row.run, **changed))


def of(framework: str = "jax", strategy: str = "", **launches: Any):
    """Picks rows of a framework; `launches`: start and stop of their numbers."""
    numbers = range(launches.get("start", 0), launches.get("stop", ROUNDS))
    return lambda row: (
        row.spec.framework == framework and strategy in ("", row.spec.strategy) and row.spec.launch in numbers
    )


def tables(results: Results) -> dict[str, Table]:
    report = document.build(summary.summarize(results), results)
    sections = [node for node in walk(report) if isinstance(node, Section)]
    return {section.title: node for section in sections for node in section.body if isinstance(node, Table)}
