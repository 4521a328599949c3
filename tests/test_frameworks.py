"""The real frameworks on CPU devices: the whole matrix, and each room against the definitions in harness/golden.py.

Nothing here imports a framework: as in the harness, each runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import TESTS, harness

from harness import golden, optimizers, registry, store, workloads
from harness.plan import PRESETS

pytestmark = pytest.mark.frameworks

sys.path.insert(0, str(TESTS / "rooms"))
import visit  # noqa: E402 -- the arrays that the rooms were given


@pytest.fixture(scope="module", params=["torch", "jax", "tf"])
def rooms(request, tmp_path_factory):
    """What one framework made of the arrays in rooms/visit.py."""
    out = tmp_path_factory.mktemp("rooms") / f"{request.param}.npz"
    subprocess.run(
        [sys.executable, TESTS / "rooms" / "visit.py", request.param, out],
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


@pytest.mark.parametrize("name", visit.LOSSES)
def test_losses_follow_one_definition(rooms, name):
    expected, _ = golden.loss_and_gradient(name, visit.OUTPUTS, visit.targets(name))
    assert float(rooms[f"loss/{name}"]) == pytest.approx(expected, rel=1e-14)


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
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TESTS.parent)


def run(tmp_path, *arguments, code=0):
    done = harness("run", "--platform", "cpu", "--out", str(tmp_path / "run"), *arguments, fakes=False, timeout=280)
    assert done.returncode == code, done.stderr
    return store.read(tmp_path / "run")


def test_the_whole_matrix_at_tiny_size(tmp_path):
    """Every cell of every manifest on every workload: proved, timed, or skipped for the reason that it gives."""
    results = run(tmp_path, "--workload", "mnist_cnn", "--size", "tiny")
    expected = {(name, s.name) for name in registry.FRAMEWORKS for s in registry.framework(name).strategies}
    assert {(result.spec.framework, result.spec.strategy) for result in results} == expected
    for result in results:
        needs_gpu = registry.framework(result.spec.framework).strategy(result.spec.strategy).needs_gpu
        assert result.status == ("skipped" if needs_gpu else "ok"), f"{result.spec.cell}: {result.reason}"
        if result.status == "ok":
            assert len(result.losses) == PRESETS["smoke"]["curve_steps"]
            # float32 against float64: the curves are those of the same training
            np.testing.assert_allclose(result.losses, result.golden_losses, rtol=1e-4)
            assert all(seconds > 0 for rank in result.block_seconds for seconds in rank)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["frameworks"].keys() == {
        "torch",
        "jax",
        "tf",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--workload", "classifier", "--global-batch", "32"),
        ("--workload", "toy", "--global-batch", "32"),
        ("--workload", "resnet50", "--size", "tiny"),
    ],
)
def test_the_other_workloads_in_every_cell(tmp_path, arguments):
    results = run(tmp_path, *arguments)
    assert {result.status for result in results} == {"ok", "skipped"}, [result.reason for result in results]


def test_four_devices_and_the_second_size(tmp_path):
    results = run(
        tmp_path, "--workload", "toy", "--size", "wide", "--devices", "2,4", "--strategy", "ddp,pmap,mirrored",
        "--optimizer", "adam",
    )  # fmt: skip
    assert {(result.spec.framework, result.spec.devices) for result in results} == {
        (name, count) for name in ("torch", "jax", "tf") for count in (2, 4)
    }
    assert {result.status for result in results} == {"ok"}


def test_bfloat16_is_really_used_and_still_learns(tmp_path):
    results = run(tmp_path, "--size", "tiny", "--strategy", "single", "--precision", "bf16")
    for result in results:
        assert result.status == "ok", result.reason
        off = np.abs(np.array(result.losses) / np.array(result.golden_losses) - 1).max()
        assert 1e-5 < off < 2e-2, f"{result.spec.framework}: bfloat16 has 8 bits, float32 would be off by 1e-7: {off}"
