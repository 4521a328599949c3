"""One update of a training against NumPy: its weights, its decay, and at which steps the ranks stop for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_spec
from stand_ins import PartOfContext

from harness import workloads
from harness.datasets import Batches, Step
from harness.gate import step_update
from harness.reference import loops
from harness.spec import OptimizerSpec, TrainingSpec
from harness.spec.optimizers import update
from harness.worker.update_check import UpdateCheck

RULE = OptimizerSpec(name="adamw", learning_rate=0.01, weight_decay=0.01)
SGD = replace(RULE, name="sgd", momentum=0.9)
TOY = workloads.get("toy", "base")
BATCHES = Batches(TOY.load("train", None), seed=0, transform=TOY.transform)
SAMPLES = [BATCHES.batch(number, 8) for number in range(4)]


def gradients(params, step):
    return loops.loss_and_gradients(TOY, params, SAMPLES[step])[1]


def history(optimizer, *, last):
    """The weights around each of four steps, and the moments before each. The `last` step has its own rule."""
    weights, moments, state = [TOY.init_params(0)], [], {}
    for step in range(4):
        moments.append(dict(state))
        rule = last if step == 3 else optimizer
        weights.append(update(rule, weights[-1], gradients(weights[-1], step), state, step=step))
    return [{name: array.astype(np.float32) for name, array in each.items()} for each in weights], moments


def judged(optimizer, last=None):
    """The errors of the last of four steps, which was made by the rule `last`."""
    weights, moments = history(optimizer, last=last or optimizer)
    known = {"before": weights[3], "gradients": gradients(weights[3], 3), "made": 3}
    if optimizer.name == "sgd":
        earlier = {"earlier": weights[2], "earlier_gradients": gradients(weights[2], 2)}
        right = step_update.by_two_steps(optimizer, **known, **earlier)
    else:
        right = step_update.by_moments(optimizer, **known, moments=moments[3])
    whole = step_update.compare_update(right, weights[4], tolerance=0.05, where="here")
    decay = step_update.compare_decay(right, weights[4], where="here")
    return whole.error, decay and decay.error


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "adagrad"])
def test_a_right_update_is_right_and_another_rate_is_not(rule):
    optimizer = replace(SGD if rule == "sgd" else RULE, name=rule)
    assert judged(optimizer)[0] < 1e-3
    assert judged(optimizer, replace(optimizer, learning_rate=0.015))[0] > 0.3


@pytest.mark.parametrize("optimizer", [SGD, replace(SGD, nesterov=True), replace(SGD, momentum=0.0), RULE])
def test_a_decay_that_is_left_out_or_doubled_is_seen(optimizer):
    assert (judged(optimizer)[1] or 0.0) < 0.02
    for share in (0.0, 2.0):
        wrong = replace(optimizer, weight_decay=share * optimizer.weight_decay)
        assert (judged(optimizer, wrong)[1] or 0.0) > 0.9


@pytest.mark.parametrize("optimizer", [replace(RULE, name="adam"), replace(SGD, weight_decay=0.0)])
def test_where_the_weights_do_not_show_the_decay_it_is_not_judged(optimizer):
    assert judged(optimizer)[1] is None


def update_check(rank, optimizer, **known):
    """The check of a training in which each rank has its part, of a framework that does not show moments."""
    context: Any = PartOfContext(
        spec=make_spec(optimizer=optimizer, training=TrainingSpec(epochs=1, target_accuracy=0.9), **known),
        job=SimpleNamespace(workload=TOY), order=SimpleNamespace(package="harness"),
        agree=SimpleNamespace(rank=rank), draft=SimpleNamespace(rank=rank),
        program=SimpleNamespace(export=lambda: [TOY.init_params(0)] if rank == 0 else [], state=dict),
    )  # fmt: skip
    return UpdateCheck(context, BATCHES, step_flops=1e9, whole_flops=2.5 * TOY.flops_per_unit() * 8)


def test_ranks_stop_at_the_same_steps_until_all_that_numpy_may_compute_is_spent():
    steps = [Step(BATCHES.indices(number, 8), 8) for number in range(4)]
    starts = []
    for rank in range(2):
        check = update_check(rank, SGD)
        starts.append([])
        for _ in range(4):
            starts[rank].append(check.starts_at(3, steps))
            if starts[rank][-1] == 2:
                check.hold(steps[2])
            check.read_moments()
            if rank == 0:
                weights = TOY.init_params(0)
                check.compare(steps[3], before=weights, after=weights, made=3, where="here")
    assert starts[0] == starts[1] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("optimizer", "known", "left_out"),
    [
        (SGD, {}, set()),
        (replace(SGD, weight_decay=0.0), {"precision": "bf16"}, {"step updates"}),
        (SGD, {"precision": "bf16"}, {"step updates"}),
        (SGD, {"algorithm": "local"}, {"step updates", "step weight decay"}),
        (RULE, {}, {"step updates", "step weight decay"}),
        (replace(RULE, weight_decay=0.0), {}, {"step updates"}),
    ],
)
def test_it_says_what_it_can_never_check(optimizer, known, left_out):
    assert update_check(0, optimizer, **known).unchecked().keys() == left_out
