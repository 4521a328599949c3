"""What a call shows without NumPy's gradients: on ResNet-50 tiny, and on numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness import workloads
from harness.datasets import Batches
from harness.gate import without_gradients
from harness.layers import BatchNorm, Conv2D, Linear, ReLU, Residual, normalized_kernels
from harness.reference import loops
from harness.spec import OptimizerSpec
from harness.spec.optimizers import update

SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
RESNET = workloads.get("resnet50", "tiny")
BATCH = Batches(RESNET.load("train", None), seed=0, transform=RESNET.transform).batch(0, 8)


@pytest.fixture(scope="module")
def gradients():
    return loops.loss_and_gradients(RESNET, RESNET.init_params(0), BATCH)[1]


def conv(name):
    return Conv2D(name, kernel=1, inputs=2, outputs=2, bias=False)


def test_kernels_before_a_batch_norm_are_found_at_any_depth_unless_they_are_used_twice():
    shortcut = (conv("shortcut"), BatchNorm("bn0", 2))
    block = Residual((conv("in"), BatchNorm("bn1", 2), ReLU(), conv("out")), shortcut)
    shared = conv("shared"), BatchNorm("bn2", 2), conv("shared"), ReLU()
    last = Linear("fc", 2, 2), BatchNorm("bn3", 2)
    found = normalized_kernels((block, *shared, *last))
    assert sorted(found) == ["fc.weight", "in.weight", "shortcut.weight"]
    assert len(normalized_kernels(workloads.get("resnet50", "imagenet").layers)) == 53  # all but fc


def test_their_gradients_are_orthogonal_to_them(gradients):
    params = RESNET.init_params(0)
    for name in normalized_kernels(RESNET.layers):
        kernel, gradient = params[name].ravel(), gradients[name].ravel()
        # not exactly: BatchNorm adds its epsilon of 1e-5 to the variance; measured: up to 2.8e-5
        assert abs(kernel @ gradient) < 3e-5 * np.linalg.norm(kernel) * np.linalg.norm(gradient), name


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_decay_that_is_left_out_is_off_by_all_of_itself(gradients, nesterov):
    optimizer = replace(SGD, nesterov=nesterov, schedule="step", step_size=2, gamma=0.5)
    params, moments = RESNET.init_params(0), {}
    for _ in range(2):  # velocities that are along the kernels as well
        update(optimizer, params, gradients, moments, step=0)

    def judged(rule, made=2):
        after = update(rule, params, gradients, dict(moments), step=2)
        found = {f"model/{name}": array.astype(np.float32) for name, array in after.items()}
        known = {"params": params, "moments": dict(moments), "found": found, "made": made, "precision": "fp32"}
        check = without_gradients.decay(RESNET, optimizer, **known)
        assert check is not None
        return check

    assert judged(optimizer).error < 0.02
    assert judged(replace(optimizer, weight_decay=0.0)).error > 0.98
    assert not judged(optimizer, made=0).passed  # at another rate


def test_a_decay_is_not_judged_where_the_rule_scales_it_or_rounding_hides_it(gradients):
    params = RESNET.init_params(0)
    found = {f"model/{name}": params[name] - 0.1 * gradients[name] for name in params}
    known = {"params": params, "moments": {}, "found": found, "made": 0}
    for rule in (replace(SGD, name="adamw"), replace(SGD, weight_decay=0.0)):
        assert without_gradients.decay(RESNET, rule, **known, precision="fp32") is None
    tiny = replace(SGD, weight_decay=1e-9)
    assert without_gradients.decay(RESNET, tiny, **known, precision="bf16") is None


def test_a_step_keeps_nine_tenths_of_the_statistics():
    def judged(share, steps=1):
        starts = [{"running/bn.mean": np.full(2, shift), "model/w": np.ones(1)} for shift in (1.0, 3.0)]
        one, other = [{name: share * array + 7.0 for name, array in start.items()} for start in starts]
        return without_gradients.kept_statistics((starts[0], starts[1]), (one, other), steps=steps, precision="fp32")

    assert judged(0.9).passed
    assert judged(0.81, steps=2).passed
    for wrong in (1.0, 0.81, 0.99, 0.1, np.nan):
        assert not judged(wrong).passed, wrong
