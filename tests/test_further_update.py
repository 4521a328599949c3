"""The comparison of one call of the timed program with NumPy, on numbers by hand and on a small network."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness import workloads
from harness.datasets import Batches
from harness.gate import further_direction, further_update, winograd
from harness.gate.distances import beyond_rounding
from harness.layers import running_statistics
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


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_what_is_not_finite_is_infinitely_far_on_either_side(wrong):
    finite, other = {"w": np.zeros(1, np.float32)}, {"w": np.array([wrong], np.float32)}
    for found, right, moved in ((other, finite, 1.0), (finite, other, 1.0), (finite, other, wrong)):
        assert beyond_rounding(found, right, moved={"w": moved}, roundings=1) == {"w": math.inf}
    errors = {"a": 1e-6, "w": wrong, "z": 1e-6}
    assert winograd.worst("further update", errors, 1e-4, {}).worst == "w"


def test_where_winograd_may_compute_a_kernel_only_that_kernel_may_be_off():
    kernel = "conv1.weight"
    network = workloads.get("mnist_cnn", "tiny")
    samples = Batches(network.load("train", None), seed=0, transform=network.transform)
    batches = [samples.batch(number, 8) for number in range(2)]

    def right(by_winograd, steps=1):
        known = {"groups": lambda batch: (batch,), "made": 0, "by_winograd": by_winograd}
        return further_update.compute(network, SGD, network.init_params(0), {}, batches[:steps], **known)

    def passes(found_of, name, share, **known):
        def off(own, array):
            return array + share * (array - found_of.without[own]) * (own == name)

        return judged(found_of, found_by(found_of, off), **known)["further update"].passed

    assert passes(right(True), kernel, 2e-3) and not passes(right(False), kernel, 2e-3)
    assert not passes(right(True), kernel, 3e-2)
    assert not passes(right(True), "conv1.bias", 2e-3) and not passes(right(True), "fc1.weight", 2e-3)
    both = right(True, steps=2)  # the second step begins at other weights
    assert passes(both, kernel, 2e-3) and passes(both, "fc1.weight", 3e-4) and not passes(both, "fc1.weight", 1e-3)
    moments = {key: array + 2e-3 * array for key, array in right(True).moments.items()}
    for name, expected in ((kernel, True), ("fc1.weight", False)):
        known = {key: array if key[0] == name else right(True).moments[key] for key, array in moments.items()}
        assert judged(right(True), found_by(right(True)), moments=known)["further update"].passed == expected


def test_with_batch_norm_a_call_of_several_steps_in_float32_is_not_judged():
    one, several = right_after(SGD, 1), right_after(SGD, 3)
    for right, precision, expected in [(one, "fp32", True), (several, "fp32", False), (several, "fp64", True)]:
        found = judged(with_running(right, {"bn.mean": np.zeros(1)}), found_by(right), tolerances=precision)
        assert ("further update" in found) == expected


def direction(found, rounded=None, *, without=None):
    """The checks of one tensor that moves from zeros to ones."""
    right = {"w": np.ones(16)}
    known = {"without": {"w": np.zeros(16)} if without is None else without}
    known["rounded"] = {"w": right["w"] if rounded is None else rounded}
    return {check.quantity: check for check in further_direction.compare(right, {"w": found}, **known)}


@pytest.mark.parametrize("steps", [1, 3])
def test_a_movement_of_another_size_has_the_right_direction_and_one_in_another_order_has_not(steps):
    right = right_after(SGD, steps, rounding="bf16")
    assert right.rounded is not None
    longer = found_by(right, lambda name, array: right.without[name] + 1.6 * (array - right.without[name]))
    assert judged(right, longer)["further direction"].error == pytest.approx(0, abs=1e-6)
    size = judged(right, longer)["further step size"]
    assert size.error == pytest.approx(0.6, abs=1e-4) and not size.passed
    shuffled = found_by(right, lambda name, array: right.without[name] + np.flip(array - right.without[name]))
    assert not judged(right, shuffled)["further direction"].passed


@pytest.mark.parametrize(("found", "error"), [
    (np.zeros(16), 1.0), (-np.ones(16), 2.0), (np.full(16, np.nan), math.inf),
])  # fmt: skip
def test_a_tensor_that_stands_still_or_is_lost_has_no_right_direction(found, error):
    check = direction(found)["further direction"]
    assert check.error == pytest.approx(error) and not check.passed
    assert not direction(found)["further step size"].passed


def test_a_direction_that_rounding_changes_is_not_judged():
    turned = np.repeat([1.0, -1.0], 8)
    assert direction(turned, rounded=turned) == {}
    assert direction(turned, without={"w": np.full(16, 1 - 1e-7)}) == {}  # float32 cannot store so short a movement
    few = {"w": np.ones(15)}
    assert further_direction.compare(few, few, without={"w": np.zeros(15)}, rounded=few) == []


def test_a_tensor_that_hardly_moves_is_not_judged():
    right = {"w": np.ones(16), "still": np.full(16, 1e-3)}
    found = right | {"still": np.zeros(16)}
    checks = further_direction.compare(right, found, without={name: np.zeros(16) for name in right}, rounded=None)
    assert [check.error for check in checks] == [0.0]


@pytest.mark.parametrize(("precision", "deep"), [("fp32", True), ("bf16", False)])
def test_where_numbers_can_be_compared_directions_are_not_judged(precision, deep):
    assert not further_direction.judges(precision, deep=deep)
    assert further_direction.judges("bf16", deep=True)


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


@pytest.mark.parametrize("biased", [False, True])
def test_statistics_of_parts_add_up_to_something_between_those_of_the_parts(biased):
    parts = [
        {"bn.mean": np.array([mean]), "bn.var": np.array([var]), "bn.biased_var": np.array([0.9 * var])}
        for mean, var in ((0.2, 1.5), (0.4, 2.0))
    ]
    ends = {f"{end}/{name}": a for end, arrays in running_statistics.hull(parts).items() for name, a in arrays.items()}
    right = right_after(SGD, 1)
    right = replace(right, golden=replace(right.golden, running=ends))

    def check(mean, var):
        running = {"running/bn.mean": np.array([0.1 * mean]), "running/bn.var": np.array([0.9 + 0.1 * var])}
        return judged(right, found_by(right) | running, statistics_of="all", updates=2)["further statistics"]

    assert check(0.25, 1.8 * (0.9 if biased else 1.0)).passed
    assert not check(0.15, 1.8).passed and not check(0.25, 0.9).passed  # divided by the number of parts
    assert not check(math.nan, 1.8).passed


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_at_a_rate_of_0_the_moments_show_the_gradients(rule):
    optimizer = replace(SGD, name=rule, schedule="cosine", total_steps=2, weight_decay=0.0)
    right = compute(optimizer, *after_two_steps(optimizer), SAMPLES[2:], made=2)
    assert judged(right, found_by(right), moments=right.moments)["further update"].passed
    check = judged(right, found_by(right), moments=right.moments_without)["further update"]
    assert not check.passed and "moment" in check.worst
