"""The matrix, its skips and its order."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from conftest import make_machine

from harness import plan, registry
from harness.devices import Gpu, visible
from harness.errors import MachineUnfit, UsageError
from harness.plan import Request, make_plan, parse_optimizer
from harness.specs import OptimizerSpec


@pytest.fixture(autouse=True)
def all_installed(monkeypatch):
    """Plans are the same whether or not the frameworks are here."""
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter: "")


def cells(made):
    return {(t.spec.framework, t.spec.strategy, t.spec.devices): t for t in made.trials}


def test_default_on_a_machine_without_gpus(machine):
    made = make_plan(Request(), machine)
    assert (made.platform, made.preset) == ("cpu", "smoke")
    assert {key: trial.status for key, trial in cells(made).items()} == {
        ("torch", "single", 1): "planned",
        ("torch", "data_parallel", 2): "skipped",
        ("torch", "ddp", 2): "planned",
        ("jax", "single", 1): "planned",
        ("jax", "pmap", 2): "planned",
        ("tf", "single", 1): "planned",
        ("tf", "mirrored", 2): "planned",
    }
    assert "silently" in cells(made)["torch", "data_parallel", 2].reason
    assert {trial.spec.workload for trial in made.trials} == {"mnist_cnn"}


def test_default_with_gpus_takes_all_of_them():
    made = make_plan(Request(), make_machine(gpus=4))
    assert (made.platform, made.preset) == ("gpu", "standard")
    assert cells(made)["torch", "data_parallel", 4].status == "planned"
    assert {trial.spec.devices for trial in made.trials} == {1, 4}


def test_cpu_can_be_insisted_on():
    assert make_plan(Request(platform="cpu"), make_machine(gpus=4)).platform == "cpu"


def test_launches_are_interleaved_in_a_seeded_order(machine):
    def order(seed):
        return [trial.cell for trial in make_plan(Request(preset="standard", seed=seed), machine).runnable()]

    assert order(0) == order(0)
    assert order(0) != order(1)
    rounds = [order(0)[start : start + 6] for start in range(0, 30, 6)]
    assert all(Counter(each) == Counter(rounds[0]) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_every_trial_of_a_plan_is_unique(machine):
    made = make_plan(Request(workloads=("all",), preset="paper", devices=(2, 4), global_batch=64), machine)
    keys = [(trial.spec.cell, trial.spec.launch) for trial in made.trials]
    assert len(keys) == len(set(keys))


def test_too_few_devices_is_a_reason(machine):
    made = make_plan(Request(devices=(1,)), machine)
    assert cells(made)["jax", "pmap", 1].status == "skipped"
    assert "at least 2" in cells(made)["jax", "pmap", 1].reason


def test_parity_batch_is_small_and_divisible(machine):
    for devices in (2, 3, 5, 16):
        made = make_plan(Request(devices=(devices,), global_batch=devices * 4), machine)
        for trial in made.trials:
            assert trial.spec.parity_batch % trial.spec.devices == 0
            assert 16 <= trial.spec.parity_batch < 16 + devices


def test_a_missing_framework_is_unavailable_with_a_hint(machine, monkeypatch):
    monkeypatch.setattr(registry, "missing", lambda spec, _: "pip install jax" if spec.name == "jax" else "")
    made = cells(make_plan(Request(), machine))
    assert made["jax", "single", 1].status == "unavailable"
    assert made["jax", "single", 1].reason == "pip install jax"
    assert made["tf", "single", 1].status == "planned"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(frameworks=("troch",)), "did you mean torch"),
        (Request(workloads=("resnet",)), "allowed are classifier, mnist_cnn, toy, all"),
        (Request(strategies=("ddp",), frameworks=("jax",)), "allowed are single, pmap, all for jax"),
        (Request(size="huge"), "allowed are base, tiny"),
        (Request(devices=(0,)), "--devices 0: allowed are 1 to 64"),
        (Request(devices=(-1,)), "--devices -1"),
        (Request(devices=(65,)), "--devices 65"),
        (Request(global_batch=0), "--global-batch 0"),
        (Request(global_batch=65), "not divisible by 2"),
        (Request(precision="fp16"), "allowed are fp64, fp32, tf32, bf16"),
        (Request(preset="fast"), "allowed are smoke, standard, paper"),
        (Request(platform="tpu"), "allowed are auto, cpu, gpu"),  # pyright: ignore
        (Request(platform="gpu"), "no GPU is visible"),
        (Request(seed=-1), "--seed -1"),
        (Request(timeout_seconds=0), "--timeout 0"),
        (Request(timeout_seconds=float("nan")), "--timeout nan"),
        (Request(interpreters={"cafe": "/bin/true"}), "--interpreter 'cafe'"),
        (Request(optimizer="sdg"), "did you mean sgd"),
        (Request(optimizer="sgd:beta1=0.5"), "allowed are learning_rate, momentum"),
        (Request(optimizer="sgd:momentum=much"), "must be a number"),
        (Request(optimizer="sgd:momentum=1"), "less than 1"),
        (Request(optimizer="sgd:learning_rate=nan"), "at least 0"),
    ],
)
def test_bad_requests_name_value_and_choice(machine, request_, message):
    with pytest.raises(UsageError) as error:
        make_plan(request_, machine)
    assert message in str(error.value)


def test_more_gpus_than_there_are():
    with pytest.raises(UsageError, match="1 to 2"):
        make_plan(Request(devices=(3,)), make_machine(gpus=2))


def test_a_broken_driver_makes_the_machine_unfit(machine):
    broken = type(machine)(**{**machine.__dict__, "gpu_problem": "Driver/library version mismatch"})
    with pytest.raises(MachineUnfit, match="mismatch"):
        make_plan(Request(), broken)
    assert make_plan(Request(platform="cpu"), broken).platform == "cpu"


def test_tf32_on_cpu_is_skipped(machine):
    assert {t.status for t in make_plan(Request(precision="tf32"), machine).trials} == {"skipped"}


def test_optimizer_text():
    default = OptimizerSpec(name="sgd", learning_rate=0.01, momentum=0.5)
    assert parse_optimizer(None, default) == default
    assert parse_optimizer("sgd:momentum=0.9", default).learning_rate == 0.01
    assert parse_optimizer("sgd:momentum=0.9", default).momentum == 0.9
    adam = parse_optimizer("adam:learning_rate=0.1", default)
    assert (adam.name, adam.learning_rate, adam.beta2, adam.momentum) == ("adam", 0.1, 0.999, 0.0)


def test_presets_only_grow():
    sizes = [plan.PRESETS[name] for name in ("smoke", "standard", "paper")]
    assert [preset["launches"] for preset in sizes] == [1, 5, 10]
    assert all(a[key] <= b[key] for a, b in itertools.pairwise(sizes) for key in a)


def test_cuda_visible_devices_as_cuda_reads_it():
    gpus = [
        (f"GPU-{name}", Gpu(token=str(i), name="H200", memory_bytes=1)) for i, name in enumerate(("aa", "bb", "ab"))
    ]

    def tokens(setting):
        return [gpu.token for gpu in visible(gpus, setting)]

    assert tokens(None) == ["0", "1", "2"]
    assert tokens("") == []
    assert tokens("2,0") == ["2", "0"]
    assert tokens("GPU-bb") == ["1"]
    assert tokens("0,7,1") == ["0"]  # stops at the first that does not exist
    assert tokens("-1") == []
    assert tokens("GPU-a") == []  # ambiguous
