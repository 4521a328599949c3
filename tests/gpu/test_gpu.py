"""What only GPUs can show: every strategy of every framework on two of them and on four, TF32, the tuned track, and
clean endings.

`make test-gpu`. Where TensorFlow needs another interpreter: HARNESS_INTERPRETER=tf=PATH make test-gpu.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest
from conftest import QUICK, ROOT, command_of
from visits import visit

from harness.machine import devices, nvml
from harness.machine.gpu_errors import ErrorWatch
from harness.results import store
from harness.spec import TrialResult, registry

FRAMEWORKS = tuple(registry.FRAMEWORKS)


def tuned(framework: str) -> tuple[str, ...]:
    """The tuned track without PyTorch's searches for the fastest kernels, which take long and have their own test."""
    searches = ("max_autotune_pointwise", "coordinate_descent") if framework == "torch" else ()
    return ("--track", "tuned", *(part for name in searches for part in ("--setting", f"{name}=false")))


pytestmark = [
    pytest.mark.gpu,
    # where a driver does not answer they fail
    pytest.mark.skipif(len(devices.machine().gpus) < 2 and not devices.machine().gpu_problem, reason="needs two GPUs"),
    pytest.mark.timeout(480),
]


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch):
    """XLA at its full effort, unlike on CPU devices.

    Tests share GPUs. So JAX must not take most of their memory, and no run is refused because others use them.
    """
    monkeypatch.setenv("HARNESS_DEVICE_GUARD", "warn")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for name, value in QUICK.items():
        if os.environ.get(name) == value:
            monkeypatch.delenv(name)


def harness(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def run(
    folder: Path,
    *arguments: str,
    command: str = "run",
    workload: str = "mnist_cnn",
    size: str = "tiny",
    gpus: int = 2,
) -> list[TrialResult]:
    common = ("--workload", workload, "--size", size, "--devices", str(gpus), "--out", str(folder))
    done = subprocess.run(harness(command, *common, *arguments), cwd=ROOT)
    assert done.returncode in (0, 1)  # a failed cell is a row, and is found there
    results = store.read(folder)
    for result in results:
        print(result.traceback)  # pytest shows it if the test fails
    return results


def test_a_gpu_of_a_data_centre_says_what_is_sampled():
    """The fake NVML of the other tests answers as these GPUs do."""
    for gpu in devices.machine().gpus:
        first = vars(nvml.sample(gpu.uuid))
        time.sleep(1.0)
        later = vars(nvml.sample(gpu.uuid))
        missing = {name for name, value in later.items() if value is None}
        assert missing <= {"power_violation_ns", "thermal_violation_ns"}
        watts = (later["energy_millijoules"] - first["energy_millijoules"]) / 1000  # in about a second
        assert 1 < watts < 2 * gpu.power_limit_watts
        assert 1 < later["power_watts"] < 2 * gpu.power_limit_watts
        assert later["power_limit_watts"] == gpu.power_limit_watts
        assert 0 < later["sm_clock_mhz"] <= gpu.max_clock_mhz
        assert 0 < later["temperature_celsius"] < 120
        assert 0 <= later["busy_percent"] <= 100


def test_a_gpu_of_a_data_centre_counts_errors_of_its_memory():
    gpus = [gpu.uuid for gpu in devices.machine().gpus]
    for found in ErrorWatch(gpus).end():
        assert found.uncorrected == 0
        assert (found.xids == ()) != bool(found.xids_unknown)  # what a container does not hear of has a reason


TUNED = (
    "single", "data_parallel", "ddp", "average_gradients", "shard_map", "multi_process", "jit_sharding", "mirrored"
)  # fmt: skip


def known(framework: str, names: Collection[str]) -> list[str]:
    """Which of these strategies a framework has."""
    return [strategy.name for strategy in registry.framework(framework).strategies if strategy.name in names]


def check(results: list[TrialResult], names: Collection[str]) -> None:
    """None of these strategies is skipped where there are GPUs (nor because a framework is not installed), all are
    proved and timed, and memory is that of the devices."""
    assert sorted(result.spec.strategy for result in results) == sorted(names)
    for result in results:
        assert result.status == "ok", f"{result.spec.cell}: {result.reason}"
        assert result.peak_kind == "device"
        assert result.bounds is not None and result.bounds.memory_bytes_per_second is not None
        assert 1e11 < result.bounds.memory_bytes_per_second < 1e14  # far from what a host's memory or a cache reaches
        alone = result.spec.devices == 1 or result.spec.strategy == "parameter_server"
        assert (result.bounds.links is None) == alone, result.spec.cell


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tuned_in_tf32(tmp_path, framework):
    """Proved in float64 in their tuned forms (compiled, NHWC, replayed as CUDA graphs), then timed in TF32 where that
    is asked for."""
    names = known(framework, TUNED)
    arguments = ("--strategy", ",".join(names), *tuned(framework), "--precision", "tf32", "--framework", framework)
    counts = ("--optimizer", "adam") if framework == "torch" else ()  # updates, those of the bare loop among them
    results = run(tmp_path / "tuned", *arguments, *counts, "--preset", "smoke")
    check(results, names)
    for result in results:
        assert min(result.precision_errors.values()) > 1e-5, "TF32"
        bare = result.spec.strategy != "average_gradients"
        assert bool(result.bare_block_seconds[0]) == bare, result.spec.cell
    if framework == "torch":
        states = {result.spec.strategy: result.compile_cache for result in results}
        assert (states["single"], states["data_parallel"]) == ("cold", "none")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_first_layers_of_resnet_and_a_search_while_compiling(tmp_path, framework):
    """What the tuned track does to ResNet alone, and PyTorch's search for the fastest kernels."""
    arguments = ("--strategy", "single", "--track", "tuned", "--precision", "tf32", "--preset", "smoke")
    (row,) = run(tmp_path / "resnet", *arguments, "--framework", framework, workload="resnet50")
    assert row.status == "ok", row.reason
    assert all(row.spec.settings[name] for name in ("space_to_depth", "gathered_pooling", "batch_norm_relu"))
    assert row.spec.settings.get("coordinate_descent", False) == (framework == "torch")


def test_fsdp_in_compiled_stacks(tmp_path):
    arguments = ("--framework", "torch", "--strategy", "fsdp", *tuned("torch"), "--precision", "bf16")
    (row,) = run(tmp_path / "fsdp", *arguments, "--preset", "smoke", workload="resnet50")
    assert row.status == "ok", row.reason
    assert row.spec.settings["compile"] and row.spec.options["unit"] == "stack"


def test_tuned_trainings_are_the_same(tmp_path):
    """Two shapes of batch, each a CUDA graph of its own (an epoch's last is short), in two accumulation steps; the
    first shape's graph is replayed again when the second's has been captured, and evaluations come between."""
    names = ("single", "average_gradients", "ddp")
    arguments = ("--framework", "torch", "--strategy", ",".join(names), *tuned("torch"), "--precision", "fp32")
    arguments += ("--epochs", "2", "--accumulation-steps", "2", "--seeds", "1")
    results = {result.spec.strategy: result for result in run(tmp_path / "trained", *arguments, command="train")}
    assert results.keys() == set(names)
    for name, result in results.items():
        assert result.status == "ok", f"{name}: {result.reason}"
        assert result.spec.settings["cuda_graphs"], name
        found, right = ([epoch.test_loss for epoch in each.epochs] for each in (result, results["single"]))
        assert len(found) == 3 and found == pytest.approx(right, rel=1e-4), name


@pytest.mark.parametrize(("framework", "name"), [("jax", "shard_map"), ("tf", "mirrored")])
def test_a_training_of_resnet_passes_its_checks(tmp_path, framework, name):
    """Sums in any order: no two of these runs are equal."""
    arguments = ("--framework", framework, "--strategy", name, "--precision", "bf16", "--epochs", "2", "--seeds", "1")
    (row,) = run(tmp_path / "trained", *arguments, *tuned(framework), command="train", workload="resnet50")
    assert row.status == "ok", row.reason
    assert row.ranks[0].training is not None
    found = {check.quantity: check for check in row.ranks[0].training.checks}
    assert {"replayed block", "resumed training", "work after sync"} <= found.keys()
    print(name, *found.values())


def test_a_graph_of_several_steps_is_those_steps():
    """PyTorch's losses, weights, optimizer state and BatchNorm's statistics, also with a scheduled rate.

    A call that takes its first batch twice, or a rate that stands still, would be seen.
    """
    rows = visit("torch", "torch_steps.py", "gpu", gpus=True)
    assert len(rows) == 6
    for row in rows:  # in fp32, rounding changes signs before a ReLU, in other places each time: 0.033 was measured
        assert row["error"] < (1e-8 if row["precision"] == "fp64" else 1e-1) < 2e-1 < row["planted"], row


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_several_steps_in_a_call(tmp_path, framework):
    """Proved in float64 and timed, tuned: CUDA graphs of three steps, scans, and tf.functions of three steps."""
    names = known(framework, [name for name in TUNED if name != "data_parallel"])  # its steps are not captured
    arguments = ("--strategy", ",".join(names), *tuned(framework), "--precision", "tf32", "--preset", "smoke")
    results = run(tmp_path / "several", *arguments, "--framework", framework, "--steps-per-call", "3")
    check(results, names)
    for result in results:
        assert result.steps_per_block % 3 == 0
        assert not any(result.bare_block_seconds), "a bare loop would time another program"


def test_trainings_with_several_steps_in_a_call_are_the_same(tmp_path):
    """What is left of an epoch, and its short last batch, are replays of other graphs than the calls of two steps."""
    names = ("single", "average_gradients", "ddp")
    arguments = ("--framework", "torch", "--strategy", ",".join(names), *tuned("torch"), "--precision", "fp32")
    arguments += ("--setting", "compile=false", "--epochs", "2", "--seeds", "1")  # it is about graphs
    found = {}
    for count in ("1", "2"):
        rows = run(tmp_path / count, *arguments, "--steps-per-call", count, command="train")
        assert {row.spec.strategy for row in rows} == set(names)
        for row in rows:
            assert row.status == "ok", f"{row.spec.cell}: {row.reason}"
            found[row.spec.strategy, count] = [epoch.test_loss for epoch in row.epochs]
    for name in names:
        assert found[name, "2"] == pytest.approx(found[name, "1"], rel=1e-4), name


@pytest.mark.parametrize("count", ["1", "3"])
@pytest.mark.parametrize(
    ("framework", "names"), [("torch", ("pipeline",)), ("tf", ("multi_worker_mirrored", "mirrored"))]
)
def test_one_program_over_all_gpus(tmp_path, framework, names, count):
    """A pipeline's step over both GPUs as one CUDA graph, and each replica's step as one program of XLA; with several
    steps in a call, too."""
    arguments = ("--framework", framework, "--strategy", ",".join(names), *tuned(framework), "--preset", "smoke")
    results = run(tmp_path / count, *arguments, "--precision", "tf32", "--steps-per-call", count)
    check(results, names)
    for result in results:
        captured = framework == "torch"
        assert result.spec.settings["cuda_graphs" if captured else "xla_step"], result.spec.cell
        found = result.ranks[0].execution
        assert found is not None
        assert count in found.graphs if captured else "replica_step" in found.compiled, found


@pytest.mark.parametrize(
    ("framework", "names", "settings"),
    [
        ("jax", ("pmap", "jit_explicit", "fsdp", "pipeline", "pipeline_spmd"), {}),
        ("tf", ("parameter_server", "model_parallel"), {"fused_batch_norm": True, "xla": False}),
        ("tf", ("model_parallel",), {"xla": True}),
    ],
)
def test_other_strategies_with_batch_norm_tuned(tmp_path, framework, names, settings):
    """JAX's pipelines have timelines, and TensorFlow's own kernel of BatchNorm is for graphs without XLA."""
    arguments = ("--framework", framework, "--strategy", ",".join(names), *tuned(framework), "--preset", "smoke")
    arguments += tuple(f"--setting={name}={str(on).lower()}" for name, on in settings.items())
    results = run(tmp_path / "others", *arguments, "--precision", "tf32", workload="resnet50")
    check(results, names)
    for result in results:
        staged = result.spec.strategy in ("pipeline", "pipeline_spmd")
        assert len({span.stage for span in result.spans}) == (2 if staged else 0), result.spec.cell
        assert settings.items() <= result.spec.settings.items()


def test_a_pipeline_that_waits_for_each_micro_batch_is_told_from_one_with_a_slow_host():
    assert visit("torch", "torch_order.py", "gpu", "2", gpus=True) == [{"right": True, "wrong": False}]


def test_a_step_that_is_a_graph_is_traced_as_a_graph():
    """The events of the graph have the times of its last replay, on both GPUs."""
    (row,) = visit("torch", "torch_traced.py", "gpu", gpus=True)
    assert row["in_order"] and row["marked_again"] and row["apart"] < 1e-8, row


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
def test_each_schedule_as_a_graph_of_each_rank(tmp_path, schedule):
    arguments = ("--option", f"schedule={schedule}", "--framework", "torch", "--strategy", "pipeline_schedules")
    arguments += () if schedule == "1f1b" else ("--setting", "compile=false")  # compiled once; this is about graphs
    (result,) = run(tmp_path / schedule, *arguments, *tuned("torch"), "--precision", "tf32", "--preset", "smoke")
    assert result.status == "ok", result.reason
    assert all(rank.execution is not None and "1" in rank.execution.graphs for rank in result.ranks)
    assert len({span.stage for span in result.spans}) == (2 if schedule in ("gpipe", "1f1b") else 0)


@pytest.mark.parametrize(("strategy", "optimizer"), [("pipeline", "sgd"), ("pipeline_schedules", "adamw")])
def test_a_stage_without_parameters_is_part_of_the_graph(tmp_path, strategy, optimizer):
    """Cut after the last linear layer, the second stage is the log-softmax alone."""
    arguments = ("--option", "cut=fc2", "--framework", "torch", "--strategy", strategy, "--setting", "compile=false")
    arguments += ("--optimizer", optimizer)
    (result,) = run(tmp_path / strategy, *arguments, *tuned("torch"), "--precision", "tf32", "--preset", "smoke")
    assert result.status == "ok", result.reason
    assert all(rank.execution is not None and "1" in rank.execution.graphs for rank in result.ranks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_others_by_defaults_in_fp32(tmp_path, framework):
    """As `run --framework all` has them: in this size, cuDNN computes gradients by Winograd's algorithm."""
    names = ["single", *(each.name for each in registry.framework(framework).strategies if each.name not in TUNED)]
    arguments = ("--strategy", ",".join(names), "--framework", framework, "--preset", "smoke")
    results = run(tmp_path / "others", *arguments, size="base")
    check(results, names)
    for result in results:
        assert max(result.precision_errors.values()) < 1e-6, "float32, and not TF32"


@pytest.mark.skipif(len(devices.machine().gpus) < 4, reason="needs four GPUs")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_on_four_gpus(tmp_path, framework):
    """With four stages, the last one of this network is its log-softmax alone."""
    names = [strategy.name for strategy in registry.framework(framework).strategies]
    check(run(tmp_path / "four", "--framework", framework, "--preset", "smoke", gpus=4), names)


def test_batch_norm_in_bf16(tmp_path):
    names = ("ddp", "fsdp", "pmap", "mirrored")
    arguments = ("--strategy", ",".join(names), "--precision", "bf16", "--preset", "smoke")
    results = run(tmp_path / "normalized", *arguments, workload="resnet50")
    check(results, [*names, "fsdp"])  # PyTorch's and JAX's
    for result in results:
        assert min(result.precision_errors.values()) > 1e-3, "bfloat16"


def test_a_killed_harness_leaves_nothing_on_the_gpus(tmp_path):
    command = harness("run", "--strategy", "ddp", "--preset", "standard", "--out", str(tmp_path / "killed"))
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL) as process:
        ranks: list[psutil.Process] = []
        limit = time.monotonic() + 120
        while len(ranks) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            family = psutil.Process(process.pid).children(recursive=True)
            ranks = [child for child in family if "harness.worker.main" in " ".join(command_of(child))]
        assert len(ranks) >= 2
        time.sleep(8)  # let them take memory on the GPUs
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert gone and not alive
