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
from harness.reference.loops import Golden

INITIAL = {"a": np.array([1.0, -2.0]), "b": np.array([[3.0]])}
GOLDEN = Golden(
    initial=INITIAL,
    losses=np.array([2.0, 1.0]),
    gradients={"a": np.array([1.0, -0.5]), "b": np.array([[2.0]])},
    params={"a": INITIAL["a"] - 0.001, "b": INITIAL["b"] - 0.002},
)


def compare(**changed):
    right = {"losses": GOLDEN.losses, "gradients": GOLDEN.gradients, "replicas": [GOLDEN.params]}
    return parity.compare(GOLDEN, batch=4, **(right | changed))


def errors(found):
    return {check.quantity: check.error for check in found.checks}


def test_equal_passes_with_no_error():
    found = compare()
    assert found.passed
    assert set(errors(found).values()) == {0.0}


def test_noise_passes_and_more_does_not():
    assert compare(losses=GOLDEN.losses * (1 + 1e-14)).passed
    assert not compare(losses=GOLDEN.losses * (1 + 1e-10)).passed
    off = {**GOLDEN.gradients, "b": GOLDEN.gradients["b"] * (1 + 1e-9)}
    found = compare(gradients=off)
    assert not found.passed
    assert next(check for check in found.checks if check.quantity == "gradients").worst == "b"


def test_parameters_are_judged_by_their_movement():
    # one part in 10^10 of the weight, but one in 10^6 of what the training changed
    off = {**GOLDEN.params, "a": GOLDEN.params["a"] * (1 + 1e-9)}
    found = compare(replicas=[off])
    assert errors(found)["parameters"] == pytest.approx(2e-6, rel=0.01)
    assert not found.passed


def test_what_the_reference_cannot_hold_itself_is_not_asked_of_others():
    """A deep network amplifies rounding: then a hundred times the reference's own noise passes, and no more."""
    noisy = dataclasses.replace(GOLDEN, noise={"losses": 1e-16, "gradients": 1e-8, "parameters": 1e-7})
    right = {"losses": GOLDEN.losses, "replicas": [GOLDEN.params], "batch": 4}
    for error, passes in ((0.9e-6, True), (1.1e-6, False)):
        off = {**GOLDEN.gradients, "b": GOLDEN.gradients["b"] * (1 + error)}
        assert parity.compare(noisy, gradients=off, **right).passed == passes
    limits = {check.quantity: check.tolerance for check in parity.compare(noisy, gradients=None, **right).checks}
    assert limits["losses"] == 1e-11
    assert limits["parameters"] == parity.MOST_ALLOWED  # not 1e-5: chaos is no excuse
    chaotic = dataclasses.replace(GOLDEN, noise=dict.fromkeys(parity.EXACT, 0.3))
    stale = {**GOLDEN.params, "b": INITIAL["b"]}
    assert not parity.compare(chaotic, losses=GOLDEN.losses, gradients=None, replicas=[stale], batch=4).passed


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_infinitely_wrong(value):
    found = compare(gradients={**GOLDEN.gradients, "b": np.array([[value]])})
    assert errors(found)["gradients"] == math.inf
    assert not compare(losses=[value, 1.0]).passed


def test_missing_extra_or_misshapen_tensors_fail():
    assert not compare(gradients={"a": GOLDEN.gradients["a"]}).passed
    assert not compare(gradients={**GOLDEN.gradients, "c": np.zeros(1)}).passed
    assert not compare(gradients={**GOLDEN.gradients, "b": np.array([2.0])}).passed
    assert not compare(losses=[2.0]).passed


def test_a_gradient_that_is_noise_is_judged_against_the_others():
    loops = Golden(
        initial=INITIAL,
        losses=GOLDEN.losses,
        gradients={"a": np.array([1.0, 1.0]), "b": np.array([[1e-17]])},
        params=GOLDEN.params,
    )
    right = {"losses": loops.losses, "replicas": [loops.params], "batch": 4}
    noise = parity.compare(loops, gradients={"a": np.array([1.0, 1.0]), "b": np.array([[-2e-17]])}, **right)
    assert noise.passed
    wrong = parity.compare(loops, gradients={"a": np.array([1.0, 1.0]), "b": np.array([[1e-12]])}, **right)
    assert not wrong.passed


def test_merge_takes_the_worst_rank_and_wants_every_quantity():
    good, bad = compare(), compare(losses=[2.5, 1.0])
    assert parity.merge([good, good]).passed
    merged = parity.merge([good, bad])
    assert not merged.passed
    assert errors(merged)["losses"] == 0.25
    silent = parity.merge([compare(gradients=None), compare(gradients=None)])
    assert not silent.passed
    assert "no rank" in next(check.worst for check in silent.checks if check.quantity == "gradients")
