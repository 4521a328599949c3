"""Situations that no published run shows, made by hand: results from which tests/test_approved.py renders reports.

They are few and rich, so that a reviewer reads whole reports. Numbers are tested where they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

from conftest import make_hardware, make_result, make_run, make_spec

from harness.results import merging
from harness.spec import (
    CUT_SHORT,
    OUT_OF_TIME,
    Bounds,
    Check,
    DeviceShare,
    Disturbance,
    Epoch,
    Execution,
    GpuTelemetry,
    HostLoad,
    LinkRate,
    OptimizerSpec,
    Parity,
    Quantity,
    Span,
    Status,
    Telemetry,
    TrainingSpec,
    TrialResult,
)

HOSTILE = "a|b <script>alert(1)</script> `x` *y* [z](http://e) # \n\n## h ~~q~~ $m$ \\ _u_ &amp;"
HOSTILE_TRACE = "```\n</pre># x\n````"
SCENES: dict[str, Callable[[], list[TrialResult]]] = {}

CPU = {"gpus": [], "cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux", "driver": ""}
H200 = {"token": "0", "name": "NVIDIA H200", "memory_bytes": 150754820096}
H200 |= {"power_limit_watts": 700.0, "max_clock_mhz": 1980}
VERSIONS = {"torch": {"torch": "2.11"}, "jax": {"jax": "0.11", "flax": "0.12"}, "tf": {"tensorflow": "2.21"}}
RUN = {"command": "python -m harness run", "started": "2026-01-01 10:00", "preset": "standard", "version": "0"}
RUN |= {"commit": "abc1234"}
(MATRIX_RATE,) = (quantity for quantity in get_args(Quantity) if "matrix" in quantity)


def scene(function: Callable[[], list[TrialResult]]) -> Callable[[], list[TrialResult]]:
    """Add a situation. Its folder in tests/approved is named after the function."""
    SCENES[function.__name__.replace("_", "-")] = function
    return function


def gpus(*uuids: str) -> dict[str, Any]:
    """A machine with GPUs that have these numbers."""
    listed = [H200 | {"token": str(index), "uuid": uuid} for index, uuid in enumerate(uuids)]
    return CPU | {"gpus": listed, "driver": "580.1", "cores": 32}


GPUS = gpus("GPU-a", "GPU-b")


def cell(framework: str, strategy: str, devices: int = 1, launch: int = 0, **known: Any) -> TrialResult:
    """One launch, on CPU devices unless the spec says otherwise."""
    own = known.pop("spec", {})
    on_gpu = own.get("platform") == "gpu"
    spec = make_spec(**{"framework": framework, "strategy": strategy, "devices": devices, "launch": launch} | own)
    base = {"run": RUN, "versions": VERSIONS.get(framework, {}), "machine": GPUS if on_gpu else CPU}
    base |= {"peak_kind": "device"} if on_gpu else {}
    return make_result(spec=spec, **(base | known))


def launches(framework: str, strategy: str, devices: int = 1, *, seconds: tuple[float, ...], **known: Any):
    """One launch for each block time."""
    for launch, each in enumerate(seconds):
        yield cell(framework, strategy, devices, launch, block_seconds=((each,),) * devices, **known)


def failed(framework: str, strategy: str, devices: int, status: Status, reason: str, **known: Any) -> TrialResult:
    """A launch that was not timed."""
    base = {"block_seconds": (), "losses": (), "parity": None, "peak_bytes": (), "first_step_seconds": None}
    return cell(framework, strategy, devices, status=status, reason=reason, **(base | known))


def parity(error: float, tolerance: float = 1e-9, **known: Any) -> Parity:
    """A gate result whose first update is off by `error`; losses and parameters are off by less."""
    errors = {"losses": error / 10, "first update": error, "parameters": error / 100}
    checks = tuple(
        Check(quantity=quantity, error=error, tolerance=tolerance, worst="fc.weight")  # pyright: ignore
        for quantity, error in errors.items()
    )
    return Parity(**({"steps": 5, "batch": 16, "groups": 1, "checks": checks} | known))


def timeline(*, ticks: int, together: bool = True, scale: float = 1e-3) -> tuple[Span, ...]:
    """Forward and backward of two stages with `ticks` micro-batches. The second stage works beside the first, or after
    it."""
    spans = []
    for phase, start in (("forward", 0.0), ("backward", 3.0 * ticks)):
        for stage in (0, 1):
            for number in range(ticks):
                begin = start + (number + stage if together else 2 * number + stage)
                known: Any = {"stage": stage, "micro_batch": number, "phase": phase}
                spans.append(Span(start=scale * begin, end=scale * (begin + 0.9 + 0.1 * stage), **known))
    return tuple(spans)


def placed(result: TrialResult, *, crossed: dict[str, float] | None = None, **held: Any) -> TrialResult:
    """The result with what each rank's device held: an equal share of 20 samples."""
    ranks = []
    for rank in result.ranks:
        share = {"device": "cpu", "batch": 1600, "samples": 20 // len(result.ranks)} | held
        assert rank.timing is not None
        ranks.append(replace(rank, timing=replace(rank.timing, devices=(DeviceShare(**share),), crossed=crossed)))
    return replace(result, ranks=tuple(ranks))


@scene
def all_that_can_fail() -> list[TrialResult]:
    """On CPU devices: every status, an unfinished run, a missing plug-in, and text that looks like markup."""
    run = RUN | {"planned": 20, "preset": "smoke", "variables": "HARNESS_SEED=3", "data": "bundled"}
    threads = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    known: Any = {"run": run, "machine": CPU | {"cpu": "a CPU | of <b>two</b> `cores`"}}
    wrong = parity(1.0)
    results = [
        placed(cell("torch", "single", environment=threads, **known), parameters=6368, optimizer_state=0, crossed={}),
        placed(
            cell("torch", "average_gradients", 2, block_seconds=((2.0, 2.5), (2.2, 2.4)), environment=threads, **known),
            parameters=6368,
            optimizer_state=0,
            crossed={"all_reduce": 6368.0},
        ),
        failed("torch", "data_parallel", 2, "skipped", "without GPUs it would silently be one device", **known),
        failed("torch", "ddp", 2, "hung", "rank 1 at 'parity step 1/5'", **known),
        failed("torch", "fsdp", 2, "killed", "rank 1: ended by SIGKILL", parity=parity(1e-14), **known),
        failed("torch", "local_sgd", 2, "diverged", "loss nan at step 2", spec={"algorithm": "local"}, **known),
        failed("torch", "pipeline", 2, "pending", OUT_OF_TIME, **known),
        failed("torch", "model_parallel", 2, "pending", CUT_SHORT, **known),
        cell("jax", "single", environment=threads | {"JAX_PLATFORMS": "cpu"}, **known),
        failed("jax", "single", 1, "timeout", "60 s", spec={"launch": 1}, **known),
        failed("jax", "pmap", 2, "parity_failed", "first update off by 1.0e+00 at fc.weight", parity=wrong, **known),
        failed("jax", "shard_map", 2, "oom", "1 TiB", **known),
        failed("tf", "single", 1, "crashed", HOSTILE, traceback=HOSTILE_TRACE, **known),
        failed("gone", "away", 2, "unavailable", "pip install gone", spec={"workload": "gone"}, **known),
    ]
    return results


@scene
def nothing_ran() -> list[TrialResult]:
    """Neither framework is installed."""
    return [failed(name, "single", 1, "unavailable", f"pip install {name}") for name in ("torch", "jax")]


@scene
def disturbed() -> list[TrialResult]:
    """On GPUs: launches beside other processes, one of them with a hostile name, and with lowered clocks."""
    on_gpus: Any = {"machine": GPUS, "spec": {"platform": "gpu"}}
    beside = Disturbance(kind="compute", device="GPU-b", pid=4711, name=HOSTILE, memory_bytes=3 * 2**30)
    display = Disturbance(kind="graphics", device="GPU-a", pid=900, name="Xorg", memory_bytes=2**27)
    seen = [(display,), (display, beside), (display, Disturbance(kind="throttled", device="GPU-b"))]
    alone = launches("torch", "single", seconds=(1.0, 1.0, 1.0), **on_gpus)
    beside_others = (with_disturbances(cell("torch", "ddp", 2, n, **on_gpus), *each) for n, each in enumerate(seen))
    return [with_telemetry(result) for result in (*alone, *beside_others)]


def with_telemetry(result: TrialResult) -> TrialResult:
    """The result with clocks and power of its GPUs, in eight blocks of 4 seconds: a third of the time at the power
    limit on one device, and all the time on two, where heat lowers the clocks as well."""
    spec, seconds = result.spec, tuple(float(second) for second in range(-1, 34))
    two, starts = spec.devices == 2, tuple(4.0 * block for block in range(8))
    gpu = GpuTelemetry(
        uuid="",
        sm_clock_mhz=tuple(1700 - 10 * spec.launch + at % 3 for at in range(35)),
        power_watts=tuple(690.0 + at % 2 for at in range(35)),
        power_limit_watts=(700.0,) * 35,
        temperature_celsius=tuple(60 + at // 7 for at in range(35)),
        busy_percent=tuple(96 + at % 3 for at in range(35)),
        clock_reasons=tuple(0x24 if two else 0x4 * (at % 3 == 0) for at in range(35)),
        energy_joules=tuple(690.0 * at for at in range(35)),
    )
    gpus = tuple(replace(gpu, uuid=each.uuid) for each in result.conditions.hardware.gpus[: spec.devices])
    host = tuple(HostLoad(load=1.5 + at, cpu_seconds=5000.0 * at, steal_seconds=7.5 * at) for at in (1, 2))
    steps = tuple(2.0 + 0.001 * (at % 50) for at in range(120))
    series: Any = {"step_seconds": steps, "call_seconds": (1.95 if two else 0.2,) * 120, "launch_seconds": 1.2e-5}
    links = LinkRate(bytes_per_second=3.57e11, measured_by="all-reduce") if two else None
    found = Bounds(matrix_flops_per_second=7.1e14, memory_bytes_per_second=4.3e12 + 1e10 * spec.launch, links=links)
    reached = Check(quantity=MATRIX_RATE, error=0.23 - 0.01 * spec.launch, tolerance=1.5, worst="")
    series |= {"bounds": found, "checks": (reached,)}
    ranks = tuple(
        replace(rank, timing=replace(rank.timing, block_starts=starts, block_seconds=(4.0,) * 8, **series))
        for rank in result.ranks
        if rank.timing is not None
    )
    return replace(result, ranks=ranks, telemetry=Telemetry(zero=0.0, seconds=seconds, gpus=gpus, host=host))


def with_disturbances(result: TrialResult, *disturbances: Disturbance) -> TrialResult:
    return replace(result, conditions=replace(result.conditions, disturbances=disturbances))


@scene
def orders_and_other_algorithms() -> list[TrialResult]:
    """On GPUs, in two sessions on two machines: ranges that overlap and ranges that do not, other algorithms and rates,
    larger tolerances; another workload in another precision with few launches; the user's own data."""
    later = RUN | {"session": "2026-01-02 09:00", "commit": "def5678", "command": "python -m harness run --seed 1"}
    first = RUN | {"data": "that of --data", "variables": "NCCL_ALGO=Ring"}
    later |= {"variables": "NCCL_ALGO=Ring"}
    gpu: dict[str, Any] = {"platform": "gpu", "workload": "mnist_cnn", "global_batch": 64}
    cuda = {"cuDNN": "9.19.0", "NCCL": "2.28.9"}
    known: Any = {"run": first, "spec": gpu, "peak_bytes": (2**28,)}
    seconds = (1.0, 1.1, 1.2, 1.3, 1.4)
    slower = tuple(2 * each for each in seconds)
    local, asynchronous = ({"algorithm": name, "global_batch": 64} for name in ("local", "asynchronous"))
    scaled = {"optimizer": OptimizerSpec(name="sgd", learning_rate=0.02, momentum=0.5, scaled_by=2)}
    loose = {"tolerances": "bf16_gradients", "variant": "compression=bf16", "options": {"compression": "bf16"}}
    few: dict[str, Any] = {"platform": "gpu", "workload": "classifier", "precision": "bf16", "global_batch": 20}
    results = [
        *launches("torch", "single", seconds=seconds, libraries={"cuDNN": "9.19.0"}, **known),
        *launches("torch", "ddp", 2, seconds=slower, libraries=cuda, **known),
        *launches("torch", "ddp", 2, seconds=seconds, parity=parity(3e-4, 1e-3, tolerances="bf16_gradients"),
                  **(known | {"spec": gpu | loose})),
        *launches("torch", "local_sgd", 2, seconds=(0.1,) * 5, parity=parity(3e-14), **(known | {"spec": gpu | local})),
        *launches("torch", "async_sgd", 2, seconds=(0.1,) * 5, **(known | {"spec": gpu | asynchronous})),
        *launches("jax", "single", seconds=(1.35, 1.4, 1.5, 1.6, 1.7), environment={"XLA_FLAGS": "--x"}, **known),
        *launches("jax", "pmap", 2, seconds=seconds, parity=parity(2e-12), **(known | {"spec": gpu | scaled})),
        *launches("tf", "single", seconds=(8.0, 8.1, 8.2, 8.3, 9.0), libraries={"cuDNN": "9.3.0"}, **known),
        *launches("torch", "single", seconds=(1.0, 1.1), spec=few, run=first),
        *launches("jax", "single", seconds=(8.0, 9.0), spec=few, run=first),
    ]  # fmt: skip
    elsewhere, run = make_hardware(gpus("GPU-c", "GPU-d")), make_run(later)
    return [
        replace(result, run=run, conditions=replace(result.conditions, hardware=elsewhere))
        if result.spec.launch == 4
        else result
        for result in results
    ]


OF_TORCH = {"threads": "8 intra-op, 8 inter-op", "graphs": "none", "autotuning": "cudnn.benchmark off"}
OF_JAX = {"layout": "NHWC, OHWI", "compiled": "one program: jit_step"}
OF_TF = {"layout": "NHWC, HWIO", "threads": "8 intra-op, TensorFlow chooses inter-op"}
EXECUTIONS = {
    ("torch", False): OF_TORCH | {"layout": "NCHW, OIHW", "compiled": "no: eager"},
    ("torch", True): OF_TORCH | {"compiled": "torch.compile: loss, network", "unread": "step: Error"},
    ("jax", False): OF_JAX,
    ("jax", True): OF_JAX,
    ("tf", False): OF_TF | {"compiled": "graph, by XLA: nothing", "graphs": "none"},
    ("tf", True): OF_TF | {"compiled": "graph, by XLA: loss_and_gradients"},
}
"""What the processes of each framework say of how they ran, in the defaults and the tuned track."""


def ran(result: TrialResult, **entries: str) -> TrialResult:
    """The result with what each rank found of how its program ran."""
    found = Execution(input="resident", **entries)
    return replace(result, ranks=tuple(replace(rank, execution=found) for rank in result.ranks))


@scene
def tracks_and_batch_norm() -> list[TrialResult]:
    """Both tracks in bf16 without golden references: cells that agree, one that disagrees, and one without peers.
    BatchNorm over devices and micro-batches, batches that grow, cold and warm caches, minimal loops."""
    results: list[TrialResult] = []
    cells = [
        ("torch", "single", 1, {}, (7.0, 6.5, 6.0)),
        ("torch", "ddp", 2, {"normalization": "per_device"}, (7.1, 6.4, 6.1)),
        ("torch", "pipeline", 2, {"normalization": "per_microbatch", "options": {"split_size": 2, "cut": "layer2"},
                                  "variant": "split_size=2"}, (7.0, 6.6, 6.2)),
        ("torch", "average_gradients", 2, {"normalization": "per_device", "accumulation_steps": 2,
                                           "variant": "accumulation_steps=2"}, (7.05, 6.5, 6.3)),
        ("jax", "single", 1, {}, (7.0, 6.501, 6.002)),
        ("jax", "pmap", 2, {"normalization": "per_device"}, (7.1, 6.4, 6.102)),
        ("jax", "jit_sharding", 2, {"normalization": "global"}, (7.0, 6.5, 6.0)),
        ("tf", "single", 1, {}, (7.0, 6.5, 6.9)),
        ("tf", "mirrored", 2, {"normalization": "per_device"}, (7.1, 6.401, 6.1)),
    ]  # fmt: skip
    settings = {"torch": "compile", "jax": "", "tf": "jit_compile"}
    for track in ("defaults", "tuned"):
        for number, (framework, strategy, devices, own, losses) in enumerate(cells):
            if track == "tuned" and strategy in ("average_gradients", "pipeline"):
                continue
            on = {settings[framework]: track == "tuned"} if settings[framework] else {}
            grows = strategy in ("ddp", "pmap", "mirrored")
            spec: Any = {"workload": "resnet50", "size": "tiny", "platform": "gpu", "precision": "bf16", "track": track}
            spec |= {"global_batch": 24, "batch_growth": "per_device"} if grows else {"global_batch": 12}
            spec |= {"settings": on} | own
            for launch in range(3):
                seconds = (0.1 + 0.01 * number) * (1 if track == "tuned" else 2.5) * (1 + 0.01 * launch)
                compiled = track == "tuned" or framework == "jax"
                known: Any = {"block_seconds": ((seconds, 1.1 * seconds),) * devices, "losses": losses}
                known |= {"compile_cache": "none" if not compiled else "warm" if launch else "cold"}
                known |= {"first_step_seconds": 1.0 if launch else 9.0, "peak_bytes": (2**30 - 2**28 * bool(launch),)}
                if devices == 1:
                    known["bare_block_seconds"] = ((0.99 * seconds, 1.09 * seconds),)
                row = cell(framework, strategy, devices, launch, spec=spec, golden_losses=(), **known)
                results.append(ran(row, **EXECUTIONS[framework, track == "tuned"]))
    return results


def epochs(*rows: tuple[float, float], samples: int = 800, wait: float = 0.0) -> tuple[Epoch, ...]:
    """The state before the first step, then one epoch for each (seconds, accuracy)."""
    return tuple(
        Epoch(
            number=number, steps=10 if number else 0, samples=samples * number, seconds=seconds,
            first_step_seconds=2.0 if number == 1 else 0.0, wait_seconds=wait * seconds, evaluation_seconds=0.5,
            report_seconds=0.01 * seconds, train_loss=1.0 / number if number else None,
            validation_loss=1.0 - accuracy / 2, validation_accuracy=accuracy,
            test_loss=1.0 - accuracy / 2 if number == len(rows) else None,
            test_accuracy=accuracy - 0.01 if number == len(rows) else None,
        )
        for number, (seconds, accuracy) in enumerate([(0.0, 0.1), *rows])
    )  # fmt: skip


def without_validation(*found: Epoch) -> tuple[Epoch, ...]:
    """The same as records had it before there were validation samples: the test set was evaluated after each epoch."""
    return tuple(
        replace(
            each, validation_loss=None, validation_accuracy=None, test_loss=each.validation_loss,
            test_accuracy=each.validation_accuracy,
        )
        for each in found
    )  # fmt: skip


def training(framework: str, strategy: str, devices: int = 1, seed: int = 0, **known: Any) -> TrialResult:
    """One training of the classifier with this seed."""
    how = TrainingSpec(**({"epochs": 3, "target_accuracy": 0.9, "validation_share": 0.1} | known.pop("training", {})))
    spec = {"workload": "classifier", "seed": seed, "training": how} | known.pop("spec", {})
    base: Any = {"block_seconds": (), "first_step_seconds": 2.0, "spec": spec, "launch": seed}
    base["run"] = RUN | {"command": "python -m harness train --seeds 3"}
    return cell(framework, strategy, devices, **(base | known))


CHECKS: Any = {
    "checks": (
        Check(quantity="samples", error=0.0, tolerance=0.0, worst=""),
        Check(quantity="updates", error=0.0, tolerance=0.0, worst=""),
        Check(quantity="step losses", error=1e-7, tolerance=1e-4, worst="step 30, in epoch 1"),
        Check(quantity="evaluated losses", error=2e-7, tolerance=1e-4, worst="batch 0"),
        Check(quantity="evaluated accuracies", error=0.0, tolerance=0.02, worst="batch 0"),
        Check(quantity="resumed training", error=0.0, tolerance=0.05, worst="weights, replica 0"),
    )
}
"""What a training says about its checks."""
NO_STEPS: Any = {
    "checks": tuple(check for check in CHECKS["checks"] if check.quantity not in ("step losses", "resumed training")),
    "unchecked": {"step losses": "a reason", "resumed training": "another"},
}
"""The same of an asynchronous one."""

GOOD = epochs((4.0, 0.8), (1.5, 0.92), (1.5, 0.95))
SLOW = epochs((4.0, 0.5), (1.5, 0.6), (1.5, 0.7))


@scene
def trainings() -> list[TrialResult]:
    """Seeds that reach the target, that do not, and that fail; a resumed training; loaders beside resident batches."""
    loader = {"input": "loader", "workers": 2}
    resumed = (*GOOD[:3], replace(GOOD[3], first_step_seconds=7.0, seconds=9.0, number=3))
    missing: Any = {"epochs": (), "losses": (), "parity": None, "first_step_seconds": None}
    return [
        *(training("torch", "single", seed=seed, epochs=GOOD, **CHECKS) for seed in range(3)),
        training("torch", "single", epochs=epochs((5.0, 0.8), (3.0, 0.92), (3.0, 0.95), wait=0.5), training=loader),
        training("torch", "ddp", 2, 0, epochs=GOOD, **CHECKS),
        training("torch", "ddp", 2, 1, epochs=SLOW),
        training("torch", "ddp", 2, 2, epochs=GOOD[:1], status="diverged", reason="loss nan at step 3"),
        training("torch", "data_parallel", 2, status="skipped", reason="only on GPUs", **missing),
        *(training("jax", "pmap", 2, seed, epochs=resumed) for seed in range(3)),
        training("tf", "single", status="killed", reason="rank 0: ended by SIGKILL", **missing),
        training("tf", "parameter_server", 2, epochs=SLOW, spec={"algorithm": "asynchronous"}, **NO_STEPS),
    ]  # fmt: skip


@scene
def a_run_and_a_training() -> list[TrialResult]:
    """Several folders, merged: launches of two runs on GPUs, and old trainings, which had no validation samples."""
    spec: Any = {"platform": "gpu", "workload": "classifier"}
    pad = {"last_batch": "pad", "validation_share": 0.0}
    runs = [list(launches("torch", "single", seconds=(1.0, 1.2), spec=spec))]
    runs.append(list(launches("torch", "single", seconds=(1.1, 1.4), spec=spec)))
    known: Any = {"spec": {"platform": "gpu"}, "training": pad, "machine": GPUS}
    known["epochs"] = without_validation(*GOOD)
    runs.append([training("torch", "single", **known), training("torch", "ddp", 2, **known)])
    return merging.merge(runs)


@scene
def a_training_in_which_nothing_trained() -> list[TrialResult]:
    """Nothing was tried, so nothing is said about the target; last batches would have been dropped."""
    missing: Any = {"losses": (), "parity": None, "first_step_seconds": None}
    drop = {"last_batch": "drop"}
    return [training("torch", "data_parallel", 2, status="skipped", reason="only on GPUs", training=drop, **missing)]


@scene
def sweeps_and_timelines() -> list[TrialResult]:
    """On CPU devices: split sizes with a tie, and schedules, which are choices."""
    spec: Any = {"workload": "resnet50", "size": "tiny", "global_batch": 12}
    results = [cell("torch", "single", block_seconds=((2.0, 2.0),), spec=spec)]
    for split, seconds in {12: (1.0, 1.2), 6: (0.7, 0.9), 3: (0.85, 0.95), 1: (2.0, 2.0)}.items():
        own = {"options": {"split_size": split, "cut": "layer2"}, "variant": f"split_size={split}"}
        known: Any = {"spec": spec | own | {"normalization": "per_microbatch"}, "spans": timeline(ticks=12 // split)}
        results.append(cell("torch", "pipeline", 2, block_seconds=(tuple(2 * s for s in seconds),), **known))
    for schedule, seconds in {"gpipe": (1.0, 1.4), "1f1b": (0.6, 0.8)}.items():
        options = {"schedule": schedule, "micro_batches": 4, "cut": "parameters"}
        own = {"options": options, "variant": f"schedule={schedule}", "normalization": "per_microbatch"}
        known = {"spec": spec | own, "block_seconds": (tuple(2 * s for s in seconds),)}
        results.append(cell("torch", "pipeline_schedules", 2, **known))
    return results


@scene
def what_fits() -> list[TrialResult]:
    """On GPUs: batches of three cells. One runs out of memory when it is timed, one is proved and fits, one never
    fits; another cell fails beside them."""
    known: Any = {"run": RUN | {"command": "python -m harness sweep global_batch --values 64:"}, "machine": GPUS}
    results = []
    for power, batch in enumerate((64, 128, 256, 512)):
        spec: Any = {"platform": "gpu", "global_batch": batch, "variant": f"global_batch={batch}", "blocks": 3}
        for framework, strategy, memory, full in (
            ("torch", "ddp", 3, 256),
            ("torch", "fsdp", 1, 9999),
            ("jax", "pmap", 2, 64),
        ):
            for launch in range(2):
                own = spec | {"launch": launch}
                reason = f"full at {full}"
                if batch > full:
                    results.append(failed(framework, strategy, 2, "skipped", reason, spec=own, **known))
                elif batch == full:
                    results.append(failed(framework, strategy, 2, "oom", "CUDA out of memory", spec=own, **known))
                else:
                    seconds = (1.0 + 0.6 * power + 0.01 * launch, 1.01 + 0.6 * power, 1.02 + 0.6 * power)
                    peak = (memory * 2 ** (27 + power) + 2**26,) * 2
                    timed: Any = {"block_seconds": (seconds, seconds), "peak_bytes": peak}
                    results.append(cell(framework, strategy, 2, spec=own, **timed, **known))
    crashed = {"platform": "gpu", "global_batch": 64, "variant": "global_batch=64"}
    return [*results, failed("jax", "fsdp", 2, "crashed", "rank 0: planted", spec=crashed, **known)]


@scene
def from_which_batch_on() -> list[TrialResult]:
    """On GPUs: batches of one GPU and of a pipeline, which is faster from a certain batch on."""
    known: Any = {"run": RUN | {"command": "python -m harness sweep global_batch --values 64:512"}, "machine": GPUS}
    results = []
    for batch, single, piped in ((64, 1.0, 1.5), (128, 1.8, 1.9), (256, 3.5, 2.7), (512, 7.0, 4.6)):
        for strategy, devices, seconds in (("single", 1, single), ("pipeline", 2, piped)):
            for launch in range(2):
                spec = {"platform": "gpu", "global_batch": batch, "variant": f"global_batch={batch}", "launch": launch}
                timed = {"block_seconds": ((seconds + 0.01 * launch, seconds + 0.01, seconds + 0.02),) * devices}
                timed["peak_bytes"] = (2**28 * batch // 64,) * devices
                results.append(cell("torch", strategy, devices, spec=spec | {"blocks": 3}, **timed, **known))
    return results


def tutorial(platform: str, protocol: str, *, single: float | None, model: float, pipelines: dict[int, float]):
    """The tutorial's cells with one protocol, from their seconds per step."""
    size = "tutorial" if platform == "gpu" else "tiny"
    spec: Any = {"workload": "resnet50", "size": size, "global_batch": 12, "platform": platform, "protocol": protocol}
    known: Any = {"run": RUN | {"command": "python -m harness reproduce tutorial", "recipe": "tutorial"}}

    def made(strategy: str, devices: int, seconds: float, **own: Any) -> Iterator[TrialResult]:
        blocks = tuple(2 * seconds + 0.1 * extra for extra in (0.0, 1.0, 2.0))
        ticks = 12 // own.get("options", {}).get("split_size", 12)
        traced = protocol == "resident" and devices > 1
        known["spans"] = timeline(ticks=ticks, scale=seconds / (10 * ticks)) if traced else ()
        for launch in range(2):
            yield cell("torch", strategy, devices, launch, spec=spec | own, block_seconds=(blocks,) * devices, **known)

    if single is not None:
        yield from made("single", 1, single)
    yield from made("model_parallel", 2, model)
    for split, seconds in pipelines.items():
        options = {"split_size": split, "cut": "layer2"}
        yield from made("pipeline", 2, seconds, options=options, variant=f"split_size={split}")


@scene
def the_tutorial_on_gpus() -> list[TrialResult]:
    """Claims that hold and that are undecided, a protocol without its base, overlapping stages, a failed toy
    network."""
    resident = {"single": 1.0, "model": 1.02, "pipelines": {1: 1.5, 2: 0.6, 3: 0.7}}
    from_host = {"single": None, "model": 1.4, "pipelines": {1: 1.5, 2: 0.9, 3: 1.0}}
    known: Any = {"run": RUN | {"recipe": "tutorial"}, "spec": {"platform": "gpu"}}
    return [
        *tutorial("gpu", "resident", **resident),
        *tutorial("gpu", "from_host", **from_host),
        failed("torch", "model_parallel", 2, "crashed", "rank 0: RuntimeError: planted", **known),
    ]


@scene
def the_tutorial_on_cpus() -> list[TrialResult]:
    """On CPU devices, where none of the tutorial's claims is judged."""
    times = {"single": 1.0, "model": 1.4, "pipelines": {1: 1.5, 2: 0.9, 3: 1.0}}
    toy = cell("torch", "model_parallel", 2, run=RUN | {"recipe": "tutorial"}, losses=(1.25, 1.0, 1.125))
    return [*tutorial("cpu", "resident", **times), *tutorial("cpu", "from_host", **times), toy]
