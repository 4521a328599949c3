"""The comparison of one call of the timed program with NumPy, on numbers by hand and on a small network."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness import workloads
from harness.datasets import Batches
from harness.gate import further_direction, further_update
from harness.reference import loops
from harness.spec import OptimizerSpec
from harness.spec.optimizers import update

SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.01)
TOY = workloads.get("toy", "base")
BATCHES = Batches(TOY.load("train", None), seed=0, transform=TOY.transform)
SAMPLES = [BATCHES.batch(number, 8) for number in range(3)]


def right_after(optimizer, steps, *, made=0, moments=None, rounding=None):
    return compute(optimizer, TOY.init_params(0), moments or {}, SAMPLES[:steps], made=made, rounding=rounding)


def compute(optimizer, params, moments, batches, *, made, rounding=None):
    known = {"groups": lambda batch: (batch,), "made": made, "rounding": rounding}
    return further_update.compute(TOY, optimizer, params, moments, batches, **known)


def after_two_steps(optimizer):
    """The parameters, and what the optimizer remembers."""
    params, state = TOY.init_params(0), {}
    for step, batch in enumerate(SAMPLES[:2]):
        gradients = loops.loss_and_gradients(TOY, params, batch)[1]
        params = update(optimizer, params, gradients, state, step=step)
    return params, state


def with_running(right, all_devices):
    running = {f"all/{name}": array for name, array in all_devices.items()}
    return replace(right, golden=replace(right.golden, running=running))


def found_by(right, change=lambda name, array: array, dtype=np.float32):
    return {f"model/{name}": change(name, array).astype(dtype) for name, array in right.golden.params.items()}


def judged(right, found, **known):
    given = {"precision": "fp32", "tolerances": "fp32", "statistics_of": None} | known
    return {check.quantity: check for check in further_update.compare(right, found, **given)}


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "adagrad"])
def test_from_the_weights_and_moments_of_two_steps_it_makes_the_third(rule):
    optimizer = replace(SGD, name=rule, schedule="step", step_size=2, gamma=0.5)
    expected = loops.train(TOY, TOY.init_params(0), SAMPLES, optimizer=optimizer)
    right = compute(optimizer, *after_two_steps(optimizer), SAMPLES[2:], made=2)
    assert right.golden.losses == expected.losses[2:]
    for name, array in expected.params.items():
        assert np.array_equal(right.golden.params[name], array)
        assert np.array_equal(right.golden.after_first[0][name], array)


def test_moments_and_counts_matter():
    """As they do in the last of three steps."""
    adam = replace(SGD, name="adam", schedule="step", step_size=2, gamma=0.5)
    _, state = after_two_steps(adam)
    right = right_after(adam, 1, made=2, moments=state)
    for other in (right_after(adam, 1, made=2), right_after(adam, 1, made=1, moments=state)):
        assert not judged(right, found_by(other))["further update"].passed


def test_rounding_of_float32_passes_and_a_thousandth_of_a_gradient_does_not():
    right = right_after(SGD, 3)
    assert all(check.passed for check in judged(right, found_by(right)).values())

    def off(name, array):
        return array + 3e-3 * (array - right.without[name])

    assert not judged(right, found_by(right, off))["further update"].passed
    assert judged(right, found_by(right, off), tolerances="bf16")["further update"].passed
    lost = found_by(right, lambda name, array: np.full_like(array, np.nan))
    assert not any(check.passed for check in judged(right, lost).values())


def test_with_batch_norm_a_call_of_several_steps_in_float32_is_not_judged():
    one, several = right_after(SGD, 1), right_after(SGD, 3)
    for right, precision, expected in [(one, "fp32", True), (several, "fp32", False), (several, "fp64", True)]:
        found = judged(with_running(right, {"bn.mean": np.zeros(1)}), found_by(right), tolerances=precision)
        assert ("further update" in found) == expected


def direction(found, rounded=None, *, without=None):
    """The check of one tensor that moves from zeros to ones."""
    right = {"w": np.ones(16)}
    known = {"without": {"w": np.zeros(16)} if without is None else without}
    return further_direction.compare(right, {"w": right["w"] if rounded is None else rounded}, {"w": found}, **known)


def test_a_movement_of_another_size_has_the_right_direction_and_one_in_another_order_has_not():
    right = right_after(SGD, 1, rounding="bf16")
    assert right.rounded is not None
    longer = found_by(right, lambda name, array: right.without[name] + 1.5 * (array - right.without[name]))
    assert judged(right, longer)["further direction"].error == pytest.approx(0, abs=1e-6)
    shuffled = found_by(right, lambda name, array: right.without[name] + np.flip(array - right.without[name]))
    assert not judged(right, shuffled)["further direction"].passed


@pytest.mark.parametrize(("found", "error"), [
    (np.zeros(16), 1.0), (-np.ones(16), 2.0), (np.full(16, np.nan), math.inf),
])  # fmt: skip
def test_a_tensor_that_stands_still_or_is_lost_has_no_right_direction(found, error):
    check = direction(found)
    assert check is not None and check.error == pytest.approx(error) and not check.passed


def test_a_direction_that_rounding_changes_is_not_judged():
    turned = np.repeat([1.0, -1.0], 8)
    assert direction(turned, rounded=turned) is None
    assert direction(turned, without={"w": np.full(16, 1 - 1e-7)}) is None  # float32 cannot store so short a movement
    few = {"w": np.ones(15)}
    assert further_direction.compare(few, few, few, without={"w": np.zeros(15)}) is None


@pytest.mark.parametrize(("precision", "deep", "steps"), [("fp32", True, 1), ("bf16", False, 1), ("bf16", True, 2)])
def test_where_numbers_can_be_compared_or_steps_amplify_rounding_directions_are_not_judged(precision, deep, steps):
    assert not further_direction.judges(precision, deep=deep, steps=steps)
    assert further_direction.judges("bf16", deep=True, steps=1)


def test_a_dropped_decay_is_off_by_itself():
    right = right_after(SGD, 1)
    without = right_after(replace(SGD, weight_decay=0.0), 1)
    assert judged(right, found_by(without))["further weight decay"].error == pytest.approx(1, abs=0.02)
    assert judged(right, found_by(right))["further weight decay"].error < 0.02


@pytest.mark.parametrize("optimizer", [
    replace(SGD, weight_decay=0.0),
    replace(SGD, weight_decay=1e-9),  # float32 cannot show it
    replace(SGD, name="adam"),  # it is a part of a gradient that Adam scales
])  # fmt: skip
def test_a_decay_that_cannot_be_seen_is_not_judged(optimizer):
    right = right_after(optimizer, 1)
    assert "further weight decay" not in judged(right, found_by(right))


@pytest.mark.parametrize("biased", [False, True])
def test_either_variance_passes_but_not_statistics_that_stand_still(biased):
    running = {"bn.mean": np.array([0.2]), "bn.var": np.array([1.3]), "bn.biased_var": np.array([1.2])}
    right = with_running(right_after(SGD, 1), running)
    model = found_by(right)
    moved = {"running/bn.mean": np.array([0.2]), "running/bn.var": np.array([1.2 if biased else 1.3])}
    assert judged(right, model | moved, statistics_of="all")["further statistics"].passed
    still = {"running/bn.mean": np.zeros(1), "running/bn.var": np.ones(1)}
    assert not judged(right, model | still, statistics_of="all")["further statistics"].passed
