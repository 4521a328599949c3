"""Optimizers and schedules by hand, and how --optimizer is read."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import names, refused

from harness.spec import OptimizerSpec, optimizers


def follow(spec, gradients, start=1.0):
    """Where one weight goes under these gradients."""
    w, state, path = {"w": np.array([start])}, {}, []
    for step, gradient in enumerate(gradients):
        w = optimizers.update(spec, w, {"w": np.array([gradient])}, state, step=step)
        path.append(float(w["w"][0]))
    return path


def test_momentum_keeps_the_rate_outside_the_velocity():
    spec = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.5)
    assert follow(spec, [2.0, 1.0]) == pytest.approx([1.0 - 0.1 * 2.0, 0.8 - 0.1 * (0.5 * 2.0 + 1.0)])


def test_nesterov_looks_ahead():
    spec = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.5, nesterov=True)
    # v = 2, then 0.5 * 2 + 1 = 2; steps of g + 0.5 v
    assert follow(spec, [2.0, 1.0]) == pytest.approx([1.0 - 0.1 * 3.0, 0.7 - 0.1 * 2.0])


def test_weight_decay_is_coupled_but_in_adamw():
    sgd = OptimizerSpec(name="sgd", learning_rate=0.1, weight_decay=0.5)
    assert follow(sgd, [2.0], start=4.0) == pytest.approx([4.0 - 0.1 * (2.0 + 0.5 * 4.0)])
    adam = OptimizerSpec(name="adam", learning_rate=0.1, weight_decay=0.5, epsilon=0.0)
    assert follow(adam, [2.0], start=4.0) == pytest.approx([4.0 - 0.1])  # the first step is the rate, decay or not
    adamw = OptimizerSpec(name="adamw", learning_rate=0.1, weight_decay=0.5, epsilon=0.0)
    assert follow(adamw, [2.0], start=4.0) == pytest.approx([4.0 - 0.1 * 0.5 * 4.0 - 0.1])


def test_first_adam_step_is_the_rate_whatever_the_gradient():
    spec = OptimizerSpec(name="adam", learning_rate=0.1)
    w = optimizers.update(spec, {"w": np.zeros(2)}, {"w": np.array([1e-3, -5.0])}, {}, step=0)
    np.testing.assert_allclose(w["w"], [-0.1, 0.1], rtol=2e-5)


def test_adagrad_divides_by_the_root_of_all_squares():
    spec = OptimizerSpec(name="adagrad", learning_rate=0.1, epsilon=0.0)
    assert follow(spec, [3.0, 4.0]) == pytest.approx([0.9, 0.9 - 0.1 * 4.0 / 5.0])


def rates(count, **known):
    spec = OptimizerSpec(name="sgd", learning_rate=1.0, **known)
    return [optimizers.rate(spec, step) for step in range(count)]


def test_schedules():
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(4, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates(6, schedule="step", step_size=2, gamma=0.5) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25])
    assert rates(4, schedule="step", step_size=1, gamma=0.5, warmup_steps=1) == pytest.approx([0.5, 1, 0.5, 0.25])
    assert rates(6, schedule="cosine", total_steps=4) == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0, 0])
    assert rates(4, schedule="cosine", total_steps=3, warmup_steps=1) == pytest.approx([0.5, 1, 0.5, 0])


def test_updates_follow_their_schedule():
    spec = OptimizerSpec(name="sgd", learning_rate=1.0, schedule="step", step_size=1, gamma=0.5)
    assert follow(spec, [0.1, 0.1, 0.1]) == pytest.approx([0.9, 0.85, 0.825])


DEFAULT = OptimizerSpec(name="sgd", learning_rate=0.01, momentum=0.5)


def test_optimizer_text():
    assert optimizers.parse(None, DEFAULT) == DEFAULT
    assert optimizers.parse("sgd:momentum=0.9", DEFAULT).learning_rate == 0.01
    assert optimizers.parse("sgd:momentum=0.9", DEFAULT).momentum == 0.9
    assert optimizers.parse("sgd:nesterov=true", DEFAULT).nesterov
    assert optimizers.parse("adam", DEFAULT).learning_rate == 0.001  # not one made for SGD with momentum
    adam = optimizers.parse("adam:learning_rate=0.1", DEFAULT)
    assert (adam.name, adam.learning_rate, adam.beta2, adam.momentum) == ("adam", 0.1, 0.999, 0.0)
    assert optimizers.parse("adamw", DEFAULT).weight_decay == 0.01  # torch's defaults
    assert optimizers.parse("adagrad", DEFAULT).epsilon == 1e-10
    cosine = optimizers.parse("sgd:schedule=cosine,total_steps=90,warmup_steps=5", DEFAULT)
    assert (cosine.schedule, cosine.total_steps, cosine.warmup_steps) == ("cosine", 90, 5)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("sgd:momentum=0,nesterov=true", ["nesterov", "momentum"]),
        ("sgd:nesterov=yes", ["nesterov", "'yes'", "true, false"]),
        ("sgd:weight_decay=-1", ["weight_decay", "0", "-1"]),
        ("sgd:step_size=3", ["step_size", "schedule=step"]),
        ("sgd:schedule=step,step_size=3,total_steps=9", ["total_steps", "schedule=cosine"]),
        ("sgd:weight_decay=inf", ["weight_decay", "inf"]),
        ("sgd:schedule=step,step_size=0", ["step_size", "1", "0"]),
        ("sgd:schedule=step,step_size=2.5", ["step_size", "'2.5'"]),
        ("sgd:schedule=poly", ["schedule", "'poly'", "constant, step, cosine"]),
        ("sgd:schedule=cosine", ["cosine", "total_steps"]),
        ("sgd:schedule=cosine,total_steps=5,warmup_steps=5", ["cosine", "total_steps", "warmup_steps"]),
        ("adagrad:momentum=0.9", ["'momentum'", "learning_rate, epsilon"]),
        ("sgd:learning_rate=0", ["learning_rate", "0"]),
        ("sgd:learning_rate=-1", ["learning_rate", "-1"]),
        ("adam:epsilon=0", ["epsilon", "0"]),
        ("adagrad:epsilon=-1", ["epsilon", "-1"]),
        ("sgd:learning_rate=0.1,learning_rate=0.2", ["learning_rate", "0.1", "0.2"]),
        ("sgd:schedule=step", ["step_size"]),
        ("sgd:0.1", ["'0.1'"]),
    ],
)
def test_bad_optimizer_text(text, facts):
    with refused("--optimizer", *facts):
        optimizers.parse(text, DEFAULT)


def test_words_name_what_matters():
    names(optimizers.words(DEFAULT), "sgd", "learning_rate 0.01", "momentum 0.5")
    assert "nesterov" not in optimizers.words(DEFAULT)
    spec = optimizers.scaled(optimizers.parse("adamw:learning_rate=0.01,schedule=cosine,total_steps=9", DEFAULT), 4)
    assert spec.learning_rate == 0.04
    names(optimizers.words(spec), "adamw", "learning_rate 0.04", "weight_decay 0.01", "cosine", "4 devices")
