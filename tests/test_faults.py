"""The gate catches every planted fault, and passes the same cells without it.

`pytest tests/test_faults.py -s` prints each cell's noise and how large each fault shows; docs/parity.md lists both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_machine, make_spec

from harness import parity, registry, workloads
from harness.data import Batches
from harness.launch import Order, launch
from harness.plan import normalization_groups
from harness.specs import TrialResult
from harness.verdicts import judge

pytestmark = pytest.mark.frameworks
FAULTS_FOLDER = Path(__file__).parent / "faults"

CELLS = {  # name of a cell: framework, strategy, devices, workload, size
    "torch single": ("torch", "single", 1, "mnist_cnn", "tiny"),
    "torch single classifier": ("torch", "single", 1, "classifier", "base"),
    "torch ddp": ("torch", "ddp", 2, "mnist_cnn", "tiny"),
    "torch model_parallel": ("torch", "model_parallel", 2, "resnet50", "tiny"),
    "torch pipeline": ("torch", "pipeline", 2, "resnet50", "tiny"),
    "jax single": ("jax", "single", 1, "mnist_cnn", "tiny"),
    "jax single classifier": ("jax", "single", 1, "classifier", "base"),
    "jax pmap": ("jax", "pmap", 2, "mnist_cnn", "tiny"),
    "tf single": ("tf", "single", 1, "mnist_cnn", "tiny"),
    "tf single classifier": ("tf", "single", 1, "classifier", "base"),
    "tf mirrored": ("tf", "mirrored", 2, "mnist_cnn", "tiny"),
}

OPTIONS = {"model_parallel": {"cut": "layer2"}, "pipeline": {"cut": "layer2", "split_size": 5}}

FAULTS = {
    "gradients_summed_over_ranks": "torch ddp",
    "stale_weights_on_rank_1": "torch ddp",
    "different_shuffle_on_rank_1": "torch ddp",
    "half_of_the_batch_dropped": "torch single",
    "last_sample_dropped": "torch single",
    "loss_divided_twice": "torch single",
    "square_kernel_transposed": "torch single",
    "rows_behind_flatten_not_permuted": "torch single",
    "bias_not_updated": "torch single",
    "momentum_with_the_rate_inside": "torch single",
    "momentum_damped": "torch single",
    "gradients_accumulated": "torch single",
    "wrong_padding": "torch single",
    "average_pool_for_max_pool": "torch single",
    "softmax_applied_twice": "torch single classifier",
    "bias_added_in_float32": "torch single",
    "layer_left_in_float32": "torch single",
    "only_the_first_stage_updated": "torch model_parallel",
    "batch_norm_over_micro_batches": "torch model_parallel",
    "last_micro_batch_dropped": "torch pipeline",
    "micro_batches_weighted_alike": "torch pipeline",
    "psum_for_pmean": "jax pmap",
    "no_pmean": "jax pmap",
    "adam_without_bias_correction": "jax single classifier",
    "labels_shifted": "jax single",
    "adam_epsilon_misplaced": "tf single classifier",
    "rate_through_float32": "tf single",
    "replicas_summed": "tf mirrored",
    "keras_optimizer": "tf mirrored",
}


def prove(tmp_path, monkeypatch, cell: str, fault: str) -> TrialResult:
    """The parity phase of a cell under the faulty worker."""
    framework, strategy, devices, name, size = CELLS[cell]
    monkeypatch.setenv("PYTHONPATH", str(FAULTS_FOLDER))
    workload = workloads.get(name, size)
    spec = make_spec(
        framework=framework, strategy=strategy, devices=devices, workload=name, size=size,
        optimizer=workload.optimizer, options={"fault": fault, **OPTIONS.get(strategy, {})}, timeout_seconds=120.0,
        global_batch=12, parity_batch=12,
    )  # fmt: skip
    how = registry.framework(framework).strategy(strategy)
    groups = normalization_groups(how, batch=12, devices=devices, **spec.options)
    arrays = workload.load("train", None)
    np.savez(tmp_path / "inputs.npz", **arrays)  # pyright: ignore[reportArgumentType]
    batches = Batches(arrays, seed=spec.seed, transform=workload.transform)
    samples = [batches.batch(step, spec.parity_batch) for step in range(spec.parity_steps)]
    params = workload.init_params(spec.seed)
    reference = parity.make_reference(workload, params, samples, optimizer=spec.optimizer, groups=groups)
    reference.save(tmp_path / "golden.npz")
    order = Order(
        spec=spec, phase="parity", interpreter=sys.executable, folder=tmp_path / "trial",
        inputs=tmp_path / "inputs.npz", golden=tmp_path / "golden.npz", devices_in_plan=2,
    )  # fmt: skip
    outcome = launch(order, make_machine(), worker="faulty_worker")
    ended = TrialResult(spec=spec, status=outcome.status, reason=outcome.reason, traceback=outcome.traceback)
    return judge(ended, outcome)


def test_the_documentation_lists_every_fault():
    text = (Path(__file__).parent.parent / "docs" / "parity.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(FAULTS)


@pytest.mark.parametrize("cell", CELLS)
def test_without_a_fault_the_gate_passes(tmp_path, monkeypatch, cell):
    result = prove(tmp_path, monkeypatch, cell, "none")
    assert result.status == "ok", result.traceback or result.reason
    assert result.parity is not None
    print("NOISE", cell, {check.quantity: f"{check.error:.1e}" for check in result.parity.checks})


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_catches(tmp_path, monkeypatch, fault):
    result = prove(tmp_path, monkeypatch, FAULTS[fault], fault)
    assert result.status == "parity_failed", result.traceback or result.reason
    assert result.parity is not None
    failed = {check.quantity: check.error for check in result.parity.checks if not check.passed}
    print("FAULT", fault, {quantity: f"{error:.1e}" for quantity, error in failed.items()})
