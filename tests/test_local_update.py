"""The comparison of single steps of local training with NumPy, and of an averaging with the steps of the workers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_spec
from stand_ins import PartOfContext

from harness import workloads
from harness.datasets import Batches
from harness.gate import local_update
from harness.layers import normalized_kernels
from harness.reference import loops
from harness.reference.golden import Golden
from harness.spec import OptimizerSpec
from harness.spec.optimizers import update
from harness.worker import local_states, loss_curve

SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.01)
TOY = workloads.get("toy", "base")
BATCHES = Batches(TOY.load("train", None), seed=0, transform=TOY.transform)
SAMPLES = [BATCHES.batch(number, 8) for number in range(3)]
WORKERS = 2


def step(optimizer, workers, batch, *, made):
    """Each worker's parameters and moments after its own step."""
    found = []
    for number, (params, moments) in enumerate(workers):
        own, _ = loops.part_of_worker(batch, number, workers=WORKERS)
        state, gradients = dict(moments), loops.loss_and_gradients(TOY, params, own)[1]
        found.append((update(optimizer, params, gradients, state, step=made), state))
    return found


def after_two_steps(optimizer):
    workers = [(TOY.init_params(0), {})] * WORKERS
    for made, batch in enumerate(SAMPLES[:2]):
        workers = step(optimizer, workers, batch, made=made)
    return workers


def third_step(optimizer, workers):
    known: Any = {"groups": lambda batch: (batch,), "accumulation_steps": 1, "made": 2}
    return local_update.compute(TOY, optimizer, workers, SAMPLES[2], **known)


def stored(params):
    """As a program with float32 has it."""
    return {f"model/{name}": array.astype(np.float32) for name, array in params.items()}


def judged(rights, found, *, averages=False):
    checks = local_update.compare(rights, found, averages=averages, tolerances="fp32")
    return {check.quantity: check for check in checks}


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "adagrad"])
def test_each_worker_makes_its_step_of_the_local_loop(rule):
    optimizer = replace(SGD, name=rule)
    known: Any = {"optimizer": optimizer, "workers": WORKERS, "sync_every": 3}
    expected = loops.train_locally(TOY, TOY.init_params(0), SAMPLES, **known)
    before = after_two_steps(optimizer)
    rights, own = third_step(optimizer, before), step(optimizer, before, SAMPLES[2], made=2)
    mean = local_update.mean_of(rights).golden.params
    for name, array in expected.params.items():
        assert np.array_equal(mean[name], array)
        assert all(np.array_equal(rights[w].golden.params[name], own[w][0][name]) for w in range(WORKERS))


def test_workers_that_keep_their_own_weights_and_workers_that_average_are_told_apart():
    before = after_two_steps(SGD)
    rights = third_step(SGD, before)
    own = [stored(right.golden.params) for right in rights]
    mean = [stored(local_update.mean_of(rights).golden.params)] * WORKERS
    for found, averages in ((own, False), (mean, True)):
        assert all(check.passed for check in judged(rights, found, averages=averages).values())
        assert not judged(rights, found, averages=not averages)["further update"].passed


def test_one_worker_without_weight_decay_is_found_and_named():
    before = after_two_steps(SGD)
    rights, wrong = third_step(SGD, before), third_step(replace(SGD, weight_decay=0.0), before)
    found = [stored(rights[0].golden.params), stored(wrong[1].golden.params)]
    decay = judged(rights, found)["further weight decay"]
    assert decay.error == pytest.approx(1, abs=0.02)
    assert decay.worst.endswith("of worker 1")


def test_moments_of_another_worker_are_wrong():
    (first, moments), (second, others) = after_two_steps(SGD)
    rights, wrong = (third_step(SGD, [(first, a), (second, b)]) for a, b in ((moments, others), (others, moments)))
    assert not judged(rights, [stored(right.golden.params) for right in wrong])["further update"].passed


@pytest.mark.parametrize("averages", [False, True])
def test_without_gradients_the_decay_of_each_worker_is_seen(averages):
    deep = workloads.get("resnet50", "tiny")
    optimizer = replace(SGD, learning_rate=0.01)
    dice = np.random.default_rng(0)
    names = normalized_kernels(deep.layers)
    workers = []
    for seed in range(WORKERS):
        params = {name: array for name, array in deep.init_params(seed).items() if name in names}
        workers.append((params, {(name, "v"): 0.1 * dice.standard_normal(a.shape) for name, a in params.items()}))

    def after(factor):
        nothing = [{name: np.zeros_like(array) for name, array in params.items()} for params, _ in workers]
        rule = replace(optimizer, weight_decay=factor * optimizer.weight_decay)
        own = [update(rule, params, nothing[w], dict(moments), step=5) for w, (params, moments) in enumerate(workers)]
        return [stored(params) for params in ([loops.mean(own)] * WORKERS if averages else own)]

    known: Any = {"averages": averages, "made": 5, "precision": "fp32"}
    (right,) = local_update.decay(deep, optimizer, workers, after(1.0), **known)
    (wrong,) = local_update.decay(deep, optimizer, workers, after(0.0), **known)
    assert right.passed and not wrong.passed


APART = [{"w": np.array([1.0, 3.0], np.float32)}, {"w": np.array([3.0, 5.0], np.float32)}]


@pytest.mark.parametrize(("mean", "error"), [
    ([2.0, 4.0], 0.0), ([1.0, 3.0], 1.0), ([4.0, 8.0], 10**0.5), ([np.nan, 4.0], np.inf),
])  # fmt: skip
def test_an_averaging_is_off_by_how_far_the_workers_were_apart(mean, error):
    found = [{"w": np.array([2.0, 4.0], np.float32)}, {"w": np.array(mean, np.float32)}]
    check = local_update.averaging(APART, APART, found)
    assert check.error == pytest.approx(error, abs=1e-6)
    assert check.passed == (error == 0)


def test_workers_that_were_equal_must_stay_so():
    equal = [{"w": np.array([1.0, 3.0], np.float32)}] * WORKERS
    assert local_update.averaging(equal, equal, equal).passed
    assert not local_update.averaging(equal, equal, APART).passed


def test_a_program_that_averages_whatever_its_state_says_shows_nothing():
    mean = [{"w": np.array([2.0, 4.0], np.float32)}] * WORKERS
    assert not local_update.averaging(APART, mean, mean).passed


def test_a_worker_has_its_own_groups_of_samples_that_share_statistics():
    batch = {"x": np.arange(8.0), "y": np.arange(8.0)}
    own, groups = loops.part_of_worker(batch, 1, workers=2, accumulation_steps=2, groups=(2, 2, 2, 2))
    assert own["x"].tolist() == [2, 3, 6, 7]
    assert groups == (2, 2)


STATE = {
    "model/w": np.array([2.0]),
    "running/n.mean": np.array([0.5]),
    "optimizer/steps": np.array(7),
    "optimizer/rank0/model/w": np.array([1.0]),
    "optimizer/rank1/model/w": np.array([3.0]),
    "optimizer/rank0/optimizer/w/exp_avg": np.array([10.0]),
    "optimizer/rank1/optimizer/w/exp_avg": np.array([30.0]),
}


@pytest.fixture
def context(monkeypatch) -> Any:
    """A rank of a program with this state, whose package says what begins a worker's names."""
    module = SimpleNamespace(OF_WORKER="optimizer/rank{}/", moments=lambda state, _: state)
    monkeypatch.setattr(local_states, "optional_module", lambda *_: module)
    layers: Any = ()
    return PartOfContext(
        spec=make_spec(algorithm="local", devices=2, options={"every": 4}, roles={"averaging_interval": "every"}),
        order=SimpleNamespace(package="a_package"),
        job=SimpleNamespace(params={"w": np.zeros(1)}, workload=SimpleNamespace(layers=layers)),
        program=SimpleNamespace(state=lambda: STATE, export=lambda: [{"w": np.array([1.0])}]),
        draft=SimpleNamespace(rank=0),
    )


def test_a_state_has_what_each_worker_has(context):
    assert [own["w"].tolist() for own in local_states.weights(context, STATE)] == [[1.0], [3.0]]
    own = local_states.own_states(context, STATE)[1]
    assert own["optimizer/w/exp_avg"] == 30.0 and own["running/n.mean"] == 0.5
    assert [name for name in STATE if local_states.is_of_all(context, name)] == ["optimizer/steps"]


def test_all_workers_get_what_one_has(context):
    found = local_states.all_like(context, STATE, 1)
    assert {name for name in STATE if found[name] is not STATE[name]} == {
        "model/w", "optimizer/rank0/model/w", "optimizer/rank0/optimizer/w/exp_avg",
    }  # fmt: skip
    assert found["model/w"] == found["optimizer/rank0/model/w"] == 3.0


def test_the_initial_weights_take_the_place_of_each_workers_own(context):
    found = local_states.initial_with_optimizers(context)
    assert found["model/w"] == 0.0 and found["optimizer/rank1/optimizer/w/exp_avg"] == 30.0
    assert not any(name.startswith("optimizer/rank") and "/model/" in name for name in found)


@pytest.mark.parametrize(("losses", "found"), [([3.0, 2.0, 1.5, 1.0], 0.5), ([3.0, 2.0, 1.0], 0.0)])
def test_a_curve_that_ends_between_two_averagings_is_compared_by_the_mean(context, losses, found):
    """Four steps end with an averaging, and what the rank exports is half of the mean."""
    golden = Golden(initial={"w": np.zeros(1)}, losses=np.array(losses), after_first=(), params={"w": np.array([2.0])})
    checks = {check.quantity: check for check in loss_curve.compare(context, golden, losses)}
    assert checks["timed movement"].error == checks["timed parameters"].error == found
    context.draft.rank = 1
    others = {check.quantity for check in loss_curve.compare(context, golden, losses)}
    assert ("timed movement" in others) == (found > 0)
