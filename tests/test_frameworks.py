"""The real frameworks on CPU devices: the whole matrix, and each room against harness/reference/loops.py.

Nothing here imports a framework: as in the harness, each runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import TESTS, harness, make_session, python

from harness import workloads
from harness.machine.devices import machine
from harness.planning.matrix import PRESETS, make_plan
from harness.planning.run_request import Request
from harness.reference import loops
from harness.results import store
from harness.spec import TrialResult, optimizers, registry

pytestmark = pytest.mark.frameworks

sys.path.insert(0, str(TESTS / "rooms"))
import visit  # noqa: E402 -- the arrays that the rooms were given


@pytest.fixture(scope="module", params=["torch", "jax", "tf"])
def rooms(request, tmp_path_factory):
    """What one framework made of the arrays in rooms/visit.py."""
    out = tmp_path_factory.mktemp("rooms") / f"{request.param}.npz"
    subprocess.run(
        [python(request.param), TESTS / "rooms" / "visit.py", request.param, out],
        check=True,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"},
    )
    return dict(np.load(out))


@pytest.mark.parametrize("name", visit.OPTIMIZERS)
def test_optimizers_follow_one_definition(rooms, name):
    params, state = {"w": visit.START}, {}
    for step, gradient in enumerate(visit.GRADIENTS):
        params = optimizers.update(visit.OPTIMIZERS[name], params, {"w": gradient}, state, step=step)
    np.testing.assert_allclose(rooms[f"optimizer/{name}"], params["w"], rtol=1e-13, atol=1e-14)


def test_compiled_rates_change_when_they_should(rooms):
    """A compiler may turn count / 41 into count * (1 / 41), which is less than 1 at 41: a step late."""
    right = [[optimizers.rate(spec, step) for step in visit.edges(size)] for size, spec in visit.step_schedules()]
    np.testing.assert_array_equal(rooms["rates"], np.array(right))


@pytest.mark.parametrize("name", visit.LOSSES)
def test_losses_follow_one_definition(rooms, name):
    expected, _ = loops.loss_and_gradient(name, visit.OUTPUTS, visit.targets(name))
    assert float(rooms[f"loss/{name}"]) == pytest.approx(expected, rel=1e-14)


NO_GPU = """
import importlib, sys
from harness.contract import World
runtime = importlib.import_module(sys.argv[1] + "_impl.runtime")
runtime.start(World(rank=0, processes=1, devices=1, platform="gpu", cores=1, rendezvous=""), "fp32", {})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [("torch", "CUDA|NVIDIA"), ("jax", r"jax\[cuda13\]"), ("tf", r"tensorflow\[and-cuda\]")]
)
def test_a_framework_that_sees_no_gpu_says_what_is_missing(name, words):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python(name), "-c", NO_GPU, name], cwd=TESTS.parent, env=environment, capture_output=True, text=True
    )
    assert re.search(rf"DevicesMissing: .*\b1\b.*({words})", done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "tf"])
def test_a_rank_on_a_second_host_chooses_a_device_of_that_host(name):
    command = [python(name), TESTS / "rooms" / "second_host.py", registry.packages()[name]]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TESTS.parent)}, capture_output=True, text=True)
    assert done.stdout.strip().endswith("device 1"), done.stderr


@pytest.mark.parametrize(("name", "size"), visit.SIZED)
def test_weights_go_in_and_come_back_unchanged(rooms, name, size):
    params = workloads.get(name, size).init_params(7)
    back = {key.rpartition("/")[2]: array for key, array in rooms.items() if key.startswith(f"weights/{name}/{size}/")}
    assert back.keys() == params.keys()
    for key, array in params.items():
        np.testing.assert_array_equal(back[key], array)


def test_foreign_weights_are_refused(rooms):
    if "refusal" in rooms:
        assert all("Error" in text for text in rooms["refusal"]), rooms["refusal"]


def test_flops_agree_with_torchs_counter():
    code = """
import torch, torch_impl.models
from torch.utils.flop_counter import FlopCounterMode
from harness import workloads
workload = workloads.get("mnist_cnn", "base")
with FlopCounterMode(display=False) as counter:
    torch_impl.models.build(workload)(torch.zeros(2, 1, 28, 28))
assert 3 * counter.get_total_flops() == 2 * workload.flops_per_unit()
assert torch.cuda.is_available() or torch.nn.DataParallel(torch.nn.Linear(1, 1)).device_ids == []  # why it is skipped
"""
    subprocess.run([python("torch"), "-c", code], check=True, cwd=TESTS.parent)


def run(tmp_path, *arguments, code=0):
    done = harness("run", "--platform", "cpu", "--out", str(tmp_path / "run"), *arguments, fakes=False, timeout=580)
    assert done.returncode == code, done.stderr
    return store.read(tmp_path / "run")


def test_run_proves_and_times_on_two_ranks(tmp_path):
    """Every cell of every manifest goes through `train` in test_training_frameworks.py."""
    results = run(tmp_path, "--strategy", "ddp", "--workload", "mnist_cnn", "--size", "tiny")
    assert len(results) == 1
    for result in results:
        assert result.status == "ok", f"{result.spec.cell}: {result.reason}"
        assert len(result.losses) == PRESETS["smoke"]["curve_steps"]
        assert all(seconds > 0 for rank in result.block_seconds for seconds in rank)
        # float32 against float64: the curves are those of the same training
        np.testing.assert_allclose(result.losses, result.golden_losses, rtol=1e-4)


def prove(tmp_path, forked, **known) -> dict[str, TrialResult]:
    """The parity phases alone of what the request names, by "framework strategy"."""
    names = known.get("frameworks", registry.FRAMEWORKS)
    request = Request(platform="cpu", interpreters={name: forked(name) for name in names}, **known)
    plan = make_plan(request, machine())
    intent = store.Intent(plan=plan, command="", started="")
    this = make_session(intent, tmp_path, machine())
    try:
        for spec in plan.runnable():
            this.references.prepare(spec)
            this.proving.prove_alone(spec)
    finally:
        this.scratch.remove()
    proofs = this.proofs.by_computation
    assert proofs
    for name, proof in proofs.items():
        assert proof.status == "ok", f"{name}: {proof.reason} {proof.traceback}"
    return {f"{proof.spec.framework} {proof.spec.strategy}": proof for proof in proofs.values()}


@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_every_strategy_on_a_network_with_batch_norm_and_tuned(tmp_path, forked, framework):
    """As tuned as CPU devices allow, but for torch.compile, which would take half a minute for each."""
    settings = {"compile": "false"} if framework == "torch" else {"batch_norm_relu": "true"}
    known = {"tracks": ("tuned",), "settings": settings}
    found = prove(tmp_path, forked, frameworks=(framework,), workloads=("resnet50",), size="tiny", **known)
    expected = {s.name for s in registry.framework(framework).strategies if not s.needs_gpu}
    assert {name.split()[1] for name in found} == expected


UNUSED = {"workloads": ("toy",), "size": "unused", "devices": (2,), "global_batch": 20}


@pytest.mark.slow
@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_every_strategy_on_a_network_with_parameters_that_no_output_depends_on(tmp_path, forked, framework):
    """With momentum, for which PyTorch keeps no state of these parameters."""
    options = {"find_unused_parameters": ("true",)} if framework == "torch" else {}
    optimizer = "sgd:momentum=0.9,learning_rate=0.01"
    found = prove(tmp_path, forked, frameworks=(framework,), options=options, optimizer=optimizer, **UNUSED)
    expected = {s.name for s in registry.framework(framework).strategies if not s.needs_gpu}
    assert {name.split()[1] for name in found} == expected


def test_ddp_that_is_not_told_fails_as_its_plan_says(tmp_path, forked):
    request = Request(
        frameworks=("torch",), strategies=("ddp",), platform="cpu", options={"static_graph": ("true",)},
        interpreters={"torch": forked("torch")}, **UNUSED,
    )  # fmt: skip
    plan = make_plan(request, machine())
    this = make_session(store.Intent(plan=plan, command="", started=""), tmp_path, machine())
    (planned,) = plan.runnable()
    spec = replace(planned, options=planned.options | {"static_graph": False})
    try:
        this.references.prepare(spec)
        this.proving.prove_alone(spec)
    finally:
        this.scratch.remove()
    (proof,) = this.proofs.by_computation.values()
    assert proof.status == "crashed"
    assert "find_unused_parameters=True" in proof.reason


@pytest.mark.slow
@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_accumulation_under_the_other_batch_norm(tmp_path, forked, framework):
    """Each data-parallel strategy in two accumulation steps, with the BatchNorm that is not its default if it can."""
    strategies = [s for s in registry.framework(framework).strategies if s.accumulates and s.parallelism == "data"]
    for strategy in strategies:
        if strategy.needs_gpu:
            continue
        others = [name for name, needs_gpu in strategy.other_normalizations.items() if not needs_gpu]
        known = {"batch_norm": others[0]} if others else {}
        (proof,) = prove(
            tmp_path / strategy.name, forked, frameworks=(framework,), strategies=(strategy.name,),
            workloads=("resnet50",), size="tiny", accumulation_steps=2, **known,
        ).values()  # fmt: skip
        assert proof.parity is not None
        assert proof.parity.groups == (2 if proof.spec.normalization == "global" else 4)


@pytest.mark.slow
def test_several_steps_in_a_call(tmp_path, forked):
    """Every strategy that can: its calls of three steps train as the reference does."""
    found = prove(
        tmp_path, forked, frameworks=("jax", "tf"), size="tiny", steps_per_call=3,
        optimizer="sgd:momentum=0.9,schedule=cosine,warmup_steps=2,total_steps=50",
    )  # fmt: skip
    able = {
        f"{name} {strategy.name}"
        for name in ("jax", "tf")
        for strategy in registry.framework(name).strategies
        if not strategy.one_step_per_call
    }
    assert found.keys() == able
    assert {proof.parity.steps for proof in found.values() if proof.parity} == {7}


@pytest.mark.slow
def test_another_loss_and_no_images_and_compiled(tmp_path, forked):
    """The classifier's cross-entropy goes through every strategy in test_training_frameworks.py."""
    strategies = ("ddp", "pmap", "mirrored")  # torch.compile takes its time
    prove(tmp_path, forked, workloads=("toy",), strategies=strategies, global_batch=32, tracks=("tuned",))


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.FRAMEWORKS)
def test_the_bare_loop_makes_the_same_updates(name):
    """It runs on GPUs alone, between timed blocks: here for its arithmetic."""
    variables = os.environ | {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    command = [python(name), TESTS / "rooms" / "bare.py", registry.packages()[name]]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.stdout.strip().endswith("equal"), done.stderr


@pytest.mark.slow
def test_four_devices(tmp_path, forked):
    strategies = ("fsdp", "pipeline_schedules", "multi_process", "pipeline", "mirrored", "multi_worker_mirrored")
    optimizer = "adamw:schedule=cosine,warmup_steps=3,total_steps=50"
    prove(tmp_path, forked, size="tiny", devices=(4,), strategies=strategies, optimizer=optimizer)


def test_run_in_every_framework_and_in_bfloat16_that_is_really_used(tmp_path):
    results = run(tmp_path, "--size", "tiny", "--strategy", "single", "--precision", "bf16")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["frameworks"].keys() == set(registry.FRAMEWORKS)
    for result in results:
        assert result.status == "ok", result.reason
        off = np.abs(np.array(result.losses) / np.array(result.golden_losses) - 1).max()
        assert 1e-5 < off < 2e-2, f"{result.spec.framework}: bfloat16 has 8 bits, float32 would be off by 1e-7: {off}"
