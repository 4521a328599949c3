"""The gate passes rounding noise and nothing else."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np
import pytest

from harness import workloads
from harness.gate import parity
from harness.reference import loops
from harness.reference.golden import Golden

INITIAL = {"a": np.array([1.0, -2.0]), "b": np.array([[3.0]])}
GOLDEN = Golden(
    initial=INITIAL,
    losses=np.array([2.0, 1.0]),
    after_first=({"a": INITIAL["a"] - 0.0005, "b": INITIAL["b"] - 0.001},),
    params={"a": INITIAL["a"] - 0.001, "b": INITIAL["b"] - 0.002},
)


def compare(**changed):
    right = {"losses": GOLDEN.losses, "after_first": GOLDEN.after_first, "replicas": [GOLDEN.params]}
    return parity.compare(GOLDEN, batch=4, **(right | changed))


FIRST = GOLDEN.after_first[0]


def moved_too_far(name, share, to=FIRST):
    """Parameters of which one tensor moved this share of its movement too far."""
    return {**to, name: to[name] + share * (to[name] - INITIAL[name])}


def errors(found):
    return {check.quantity: check.error for check in found.checks}


def test_equal_passes_with_no_error():
    found = compare()
    assert found.passed
    assert set(errors(found).values()) == {0.0}


def test_noise_passes_and_more_does_not():
    assert compare(losses=GOLDEN.losses * (1 + 1e-14)).passed
    assert not compare(losses=GOLDEN.losses * (1 + 1e-10)).passed
    found = compare(after_first=[moved_too_far("b", 1e-9)])
    assert not found.passed
    assert next(check for check in found.checks if check.quantity == "first update").worst == "b (replica 0)"


def test_parameters_are_judged_by_their_movement():
    # one part in 10^10 of the weight, but one in 10^6 of what the training changed
    off = {**GOLDEN.params, "a": GOLDEN.params["a"] * (1 + 1e-9)}
    found = compare(replicas=[off])
    assert errors(found)["parameters"] == pytest.approx(2e-6, rel=0.01)
    assert not found.passed


def test_what_the_reference_cannot_hold_itself_is_not_asked_of_others():
    """A deep network amplifies rounding: then a hundred times the reference's own noise passes, and no more."""
    noisy = dataclasses.replace(GOLDEN, noise={"losses": 1e-16, "first update": 1e-8, "parameters": 1e-7})
    right = {"losses": GOLDEN.losses, "replicas": [GOLDEN.params], "batch": 4}
    for error, passes in ((0.9e-6, True), (1.1e-6, False)):
        assert parity.compare(noisy, after_first=[moved_too_far("b", error)], **right).passed == passes
    limits = {check.quantity: check.tolerance for check in parity.compare(noisy, after_first=[], **right).checks}
    assert limits["losses"] == 1e-11
    assert limits["parameters"] == parity.MOST_ALLOWED  # not 1e-5: chaos is no excuse
    chaotic = dataclasses.replace(GOLDEN, noise=dict.fromkeys(parity.EXACT, 0.3))
    stale = {**GOLDEN.params, "b": INITIAL["b"]}
    assert not parity.compare(chaotic, losses=GOLDEN.losses, after_first=[], replicas=[stale], batch=4).passed


def test_the_references_own_noise_is_rounding_in_a_shallow_network():
    workload = workloads.get("classifier", "base")
    batch = {name: array[:8] for name, array in workload.load("train", None).items()}
    train = partial(loops.train, workload, batches=[batch] * 5, optimizer=workload.optimizer)
    made = parity.make_reference(train, workload.init_params(0))
    assert made.noise.keys() == parity.EXACT.keys()
    assert all(0 <= noise < 1e-13 for noise in made.noise.values())


def test_every_replica_counts():
    stale = {**GOLDEN.params, "b": INITIAL["b"]}
    found = compare(replicas=[GOLDEN.params, stale])
    assert not found.passed
    assert found.checks[-1].worst == "b (replica 1)"
    assert not compare(after_first=[FIRST, stale]).passed


def test_each_worker_that_trains_on_its_own_is_held_to_its_own_first_update():
    other = moved_too_far("a", 0.5)
    local = dataclasses.replace(GOLDEN, after_first=(FIRST, other))
    known = {"losses": GOLDEN.losses, "replicas": [GOLDEN.params], "batch": 4}
    assert parity.compare(local, after_first=[other], first_replica=1, **known).passed
    assert parity.compare(local, after_first=[FIRST, other], **known).passed
    assert not parity.compare(local, after_first=[other], **known).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_infinitely_wrong(value):
    found = compare(after_first=[{**FIRST, "b": np.array([[value]])}])
    assert errors(found)["first update"] == math.inf
    assert not compare(losses=[value, 1.0]).passed


def test_missing_extra_or_misshapen_tensors_fail():
    assert not compare(after_first=[{"a": FIRST["a"]}]).passed
    assert not compare(after_first=[{**FIRST, "c": np.zeros(1)}]).passed
    assert not compare(after_first=[{**FIRST, "b": FIRST["b"][0]}]).passed
    assert not compare(losses=[2.0]).passed


def test_an_update_that_is_noise_is_judged_against_the_others():
    initial = {"a": np.zeros(2), "b": np.zeros((1, 1))}
    first = {"a": np.array([1.0, 1.0]), "b": np.array([[1e-17]])}
    golden = Golden(initial=initial, losses=GOLDEN.losses, after_first=(first,), params=first)
    right = {"losses": golden.losses, "replicas": [first], "batch": 4}
    noise = parity.compare(golden, after_first=[{"a": first["a"], "b": np.array([[-2e-17]])}], **right)
    assert noise.passed
    wrong = parity.compare(golden, after_first=[{"a": first["a"], "b": np.array([[1e-12]])}], **right)
    assert not wrong.passed


def test_merge_takes_the_worst_rank_and_wants_every_quantity():
    good, bad = compare(), compare(losses=[2.5, 1.0])
    assert parity.merge([good, good]).passed
    merged = parity.merge([good, bad])
    assert not merged.passed
    assert errors(merged)["losses"] == 0.25
    silent = parity.merge([compare(after_first=[]), compare(after_first=[])])
    assert not silent.passed
    assert "no rank" in next(check.worst for check in silent.checks if check.quantity == "first update")


def test_at_a_rate_at_which_rounding_moves_the_weights_as_far_noise_passes():
    initial = {"a": np.array([0.1, 0.3])}
    still = {"a": initial["a"] + 1e-13}
    golden = Golden(
        initial=initial,
        losses=GOLDEN.losses,
        after_first=(still,),
        params=still,
        noise=dict.fromkeys(parity.EXACT, 1.0),
    )
    rounded = {"a": initial["a"] + 1e-13 * (1 + 5e-4)}
    known = {"losses": GOLDEN.losses, "batch": 4}
    assert parity.compare(golden, after_first=[rounded], replicas=[rounded], **known).passed
    wrong = {"a": initial["a"] + 1e-8}
    assert not parity.compare(golden, after_first=[wrong], replicas=[still], **known).passed


RUNNING = {"mean": np.array([0.5, -0.25]), "var": np.array([1.5, 0.75])}
OF_RUNNING = dataclasses.replace(
    GOLDEN,
    running={f"all/bn.{name}": array for name, array in RUNNING.items()} | {"all/bn.biased_var": RUNNING["var"] - 0.1},
)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        ({"bn.mean": RUNNING["mean"], "bn.var": RUNNING["var"]}, True),
        ({"bn.mean": RUNNING["mean"], "bn.var": RUNNING["var"] - 0.1}, True),  # biased, as Flax and Keras have it
        ({"bn.mean": RUNNING["mean"] * (1 + 1e-6), "bn.var": RUNNING["var"]}, False),
        ({"bn.mean": RUNNING["mean"], "bn.var": RUNNING["var"] - 0.05}, False),
        ({"bn.mean": np.zeros(2), "bn.var": np.ones(2)}, False),  # never updated
        ({"bn.mean": RUNNING["mean"]}, False),
        ({}, False),
    ],
)
def test_running_statistics_follow_one_of_two_definitions(found, passes):
    right = {"losses": GOLDEN.losses, "after_first": GOLDEN.after_first, "replicas": [GOLDEN.params], "batch": 4}
    result = parity.compare(OF_RUNNING, running=found, **right)
    assert parity.merge([result, parity.compare(OF_RUNNING, **right)]).passed is passes
