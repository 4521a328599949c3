"""`train` on the real frameworks, on CPU devices: every strategy through epochs, evaluation and checkpoints.

All weights meet in the golden reference, in NumPy: each strategy evaluates weights that came from there, and what each
has trained is evaluated there. So a checkpoint of any of them opens in any other.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import TESTS, harness, interpreters
from test_training import assert_same_states, states

from harness import checkpoints, workloads
from harness.datasets import Batches, evaluation_batches, held_out
from harness.reference import evaluation, loops
from harness.results import store
from harness.spec import TrialResult, registry

pytestmark = pytest.mark.frameworks

BATCH = 28  # of the classifier's 720 samples: an epoch's last batch has 20


def train(out, *arguments) -> list[TrialResult]:
    done = harness("train", "--platform", "cpu", "--out", str(out), *arguments, fakes=False, timeout=580)
    assert done.returncode == 0, done.stderr
    return store.read(out)


def evaluated(params, *, validation: bool = False) -> tuple[float, float]:
    """Loss and accuracy on the classifier's test set, or its validation samples, by golden."""
    workload = workloads.get("classifier", "base")
    arrays = workload.load("test", None)
    if validation:
        _, arrays = held_out(workload.load("train", None), share=workload.validation_share)
    test = Batches(arrays, seed=0, transform=workload.transform)
    sums = np.zeros(2)
    for count, batch in evaluation_batches(test, BATCH, dtype=np.float64):
        sums += count * np.array(evaluation.evaluate(workload, params, batch))
    loss, accuracy = sums / len(test)
    return loss, accuracy


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A checkpoint as no framework wrote it: the golden reference after some steps."""
    workload = workloads.get("classifier", "base")
    batches = Batches(workload.load("train", None), seed=5, transform=workload.transform)
    trained = loops.train(
        workload, workload.init_params(7), [batches.batch(step, 16) for step in range(150)],
        optimizer=workload.optimizer,
    ).params  # fmt: skip
    path = tmp_path_factory.mktemp("hub") / "golden.safetensors"
    checkpoints.save(path, {f"model/{name}": array.astype(np.float32) for name, array in trained.items()}, {})
    return path, evaluated({name: array.astype(np.float32) for name, array in trained.items()}, validation=True)


@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_every_strategy_trains_evaluates_and_saves(tmp_path, forked, framework, hub):
    path, (loss, accuracy) = hub
    results = train(
        tmp_path / "run", "--framework", framework, "--workload", "classifier", "--global-batch", str(BATCH),
        "--epochs", "1", "--save-every", "1", "--init-from", str(path),
        *interpreters(forked, framework),
    )  # fmt: skip
    strategies = registry.framework(framework).strategies
    assert {result.spec.strategy for result in results} == {strategy.name for strategy in strategies}
    ends = set()
    for result in results:
        name = result.spec.strategy
        needs_gpu = registry.framework(framework).strategy(name).needs_gpu
        assert result.status == ("skipped" if needs_gpu else "ok"), f"{result.spec.cell}: {result.reason}"
        if needs_gpu:
            continue
        # weights from elsewhere: the same test accuracy
        first, last = result.epochs
        assert first.validation_accuracy == pytest.approx(accuracy, abs=1e-6), name
        assert first.validation_loss == pytest.approx(loss, rel=1e-5), name
        assert last.samples == 720
        # and back
        saved, _ = checkpoints.newest(tmp_path / "run", result.spec.cell, 0)
        assert saved is not None
        state, _ = checkpoints.read(saved)
        params = {key.removeprefix("model/"): a for key, a in state.items() if key.startswith("model/")}
        found_loss, found_accuracy = evaluated(params)
        assert last.test_accuracy == pytest.approx(found_accuracy, abs=1e-6), name
        assert last.test_loss == pytest.approx(found_loss, rel=1e-5), name
        if result.spec.algorithm == "synchronous":
            assert last.test_accuracy is not None and last.test_loss is not None
            ends.add((round(last.test_accuracy, 6), round(last.test_loss, 4)))
            np.testing.assert_allclose(result.losses, result.golden_losses, rtol=1e-5)
    assert len(ends) == 1, ends  # the same training, the uneven last batch included


@pytest.mark.slow
def test_running_statistics_open_in_every_framework(tmp_path, forked):
    known = ["--workload", "resnet50", "--size", "tiny", *interpreters(forked, *registry.FRAMEWORKS)]
    (trained,) = train(
        tmp_path / "torch", *known, "--framework", "torch", "--strategy", "ddp", "--epochs", "1", "--save-every", "1"
    )
    others = train(
        tmp_path / "others", *known, "--framework", "jax,tf", "--strategy", "single", "--epochs", "0",
        "--init-from", str(tmp_path / "torch"),
    )  # fmt: skip
    assert len(others) == 2
    for other in others:
        assert other.epochs[0].test_accuracy == pytest.approx(trained.epochs[-1].test_accuracy, abs=1e-6)
        assert other.epochs[0].test_loss == pytest.approx(trained.epochs[-1].test_loss, rel=1e-4)


@pytest.mark.slow
def test_killed_at_a_random_step_and_resumed_it_is_the_same_training(tmp_path, forked):
    arguments = [
        "--framework", "all", "--strategy", "ddp,shard_map,mirrored", "--workload", "classifier", "--global-batch",
        str(BATCH), "--epochs", "6", "--save-every", "2",
        "--optimizer", "adamw:learning_rate=0.01,schedule=cosine,warmup_steps=10,total_steps=400",
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, *arguments, *interpreters(forked, *registry.FRAMEWORKS))
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "train", "--platform", "cpu", "--out", str(killed), *arguments],
        cwd=TESTS.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not list(killed.rglob("*.safetensors")):
        time.sleep(0.02)
    time.sleep(random.uniform(0, 2))
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = harness("train", "--resume", str(killed), fakes=False, timeout=580)
    assert done.returncode == 0, done.stderr
    assert [result.status for result in store.read(killed)] == ["ok"] * 3
    assert_same_states(states(whole), states(killed))


@pytest.mark.slow
def test_native_input_pipelines_train_the_same(tmp_path):
    """Two epochs through each framework's loader: the first losses are golden's, the end is everybody's."""
    results = train(
        tmp_path / "run", "--strategy", "ddp,pmap,mirrored", "--workload", "classifier", "--global-batch", str(BATCH),
        "--epochs", "2", "--input", "loader", "--num-workers", "2",
    )  # fmt: skip
    assert [result.status for result in results] == ["ok"] * 3, [result.reason for result in results]
    assert len({round(result.epochs[-1].test_loss or 0.0, 4) for result in results}) == 1
    for result in results:
        np.testing.assert_allclose(result.losses, result.golden_losses, rtol=1e-5)
        assert all(0 < epoch.wait_seconds < epoch.seconds for epoch in result.epochs[1:])
