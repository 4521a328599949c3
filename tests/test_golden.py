"""The golden reference is right: derivatives by finite differences, groups and algorithms by definition.

Optimizers are in test_optimizers.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

from harness import layers, workloads
from harness.layers import (
    BatchNorm,
    Conv2D,
    Flatten,
    GlobalAveragePool,
    Linear,
    LogSoftmax,
    MaxPool2D,
    ReLU,
    Residual,
    Unused,
    log_softmax,
)
from harness.reference import loops
from harness.reference.asynchronous import in_turn, replay
from harness.reference.golden import Golden
from harness.spec import OptimizerSpec

LAYERS = {
    "linear": (Linear("l", 6, 4), (6,)),
    "unused": (Unused(Linear("l", 6, 4)), (5,)),
    "conv": (Conv2D("c", 3, 2, 4), (7, 6, 2)),
    "conv with stride and padding": (Conv2D("c", 3, 2, 4, stride=2, padding=1), (7, 6, 2)),
    "conv where the window does not reach the edge": (Conv2D("c", 2, 2, 3, stride=2), (5, 7, 2)),
    "conv without bias": (Conv2D("c", 1, 3, 2, bias=False), (4, 4, 3)),
    "max-pool": (MaxPool2D(2, 2), (6, 4, 3)),
    "overlapping max-pool with padding": (MaxPool2D(3, 2, 1), (7, 6, 2)),
    "batch norm": (BatchNorm("n", 3), (4, 2, 3)),
    "batch norm of vectors": (BatchNorm("n", 3), (3,)),
    "global average pool": (GlobalAveragePool(), (4, 3, 2)),
    "residual": (Residual((Conv2D("c", 3, 2, 2, padding=1), ReLU())), (4, 3, 2)),
    "residual with a shortcut": (
        Residual((Conv2D("c", 3, 2, 4, stride=2, padding=1), BatchNorm("n", 4)), (Conv2D("d", 1, 2, 4, stride=2),)),
        (4, 4, 2),
    ),
    "relu": (ReLU(), (5,)),
    "flatten": (Flatten(), (2, 3, 4)),
    "log-softmax": (LogSoftmax(), (5,)),
}


def in_fours(size):
    """Four equal normalization groups."""
    return (size // 4,) * 4


def numerical_gradient(function, array):
    """Central differences of a scalar function at `array`, changed in place and back."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        before = array[index]
        array[index] = before + 1e-6
        above = function()
        array[index] = before - 1e-6
        below = function()
        array[index] = before
        gradient[index] = (above - below) / 2e-6
    return gradient


def test_every_layer_has_a_case():
    kinds = {kind for kind in vars(layers).values() if isinstance(kind, type) and hasattr(kind, "forward")}
    assert kinds - {layers.Layer, layers.Opaque} == {type(layer) for layer, _ in LAYERS.values()}


@pytest.mark.parametrize("name", LAYERS)
def test_every_pullback_is_the_derivative(name):
    layer, shape = LAYERS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, *shape))
    params = {p.name: rng.standard_normal(p.shape) for p in layer.parameters()}
    y, pullback = layer.forward(params, x)
    assert y.shape == (3, *layer.output_shape(shape))
    weights = rng.standard_normal(y.shape)  # a random direction: every output matters
    dx, grads = pullback(weights)

    def scalar():
        return float((layer.forward(params, x)[0] * weights).sum())

    np.testing.assert_allclose(dx, numerical_gradient(scalar, x), atol=1e-7)
    assert grads.keys() == params.keys()
    for key, param in params.items():
        np.testing.assert_allclose(grads[key], numerical_gradient(scalar, param), atol=1e-7)


def test_convolution_agrees_with_its_definition():
    layer = Conv2D("c", 3, 2, 2, stride=2, padding=1)
    rng = np.random.default_rng(1)
    x, w, b = rng.standard_normal((1, 5, 5, 2)), rng.standard_normal((3, 3, 2, 2)), rng.standard_normal(2)
    y, _ = layer.forward({"c.weight": w, "c.bias": b}, x)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for i, j, k in np.ndindex(3, 3, 2):
        window = padded[0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        assert y[0, i, j, k] == pytest.approx((window * w[..., k]).sum() + b[k])


@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "nll"])
def test_loss_gradients_are_derivatives_of_the_mean(loss):
    rng = np.random.default_rng(2)
    outputs = rng.standard_normal((4, 3))
    targets = rng.standard_normal((4, 3)) if loss == "mse" else np.array([0, 2, 1, 1])
    _, gradient = loops.loss_and_gradient(loss, outputs, targets)
    numerical = numerical_gradient(lambda: loops.loss_and_gradient(loss, outputs, targets)[0], outputs)
    np.testing.assert_allclose(gradient, numerical, atol=1e-8)


def test_loss_values():
    assert loops.loss_and_gradient("mse", np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]))[0] == 2.5
    logits = np.array([[0.0, np.log(3.0)]])
    assert loops.loss_and_gradient("cross_entropy", logits, np.array([1]))[0] == pytest.approx(-np.log(0.75))
    assert loops.loss_and_gradient("nll", log_softmax(logits), np.array([1]))[0] == pytest.approx(-np.log(0.75))


@pytest.mark.parametrize("groups", [(8,), (4, 4), (3, 3, 2), (1,) * 8])
def test_groups_do_not_change_a_network_without_normalization(groups):
    workload = workloads.get("classifier", "base")
    rng = np.random.default_rng(3)
    batch = {"x": rng.standard_normal((8, 5)), "y": rng.integers(0, 2, 8)}
    params = workload.init_params(0)
    loss, gradients = loops.loss_and_gradients(workload, params, batch)
    other_loss, other = loops.loss_and_gradients(workload, params, batch, groups=groups)
    assert other_loss == pytest.approx(loss, rel=1e-14)
    for name in params:
        np.testing.assert_allclose(other[name], gradients[name], rtol=1e-12, atol=1e-15)


def test_a_batch_that_groups_do_not_divide_is_refused():
    workload = workloads.get("classifier", "base")
    with refused("(2, 2)", "3", kind=ValueError):
        loops.loss_and_gradients(workload, {}, {"x": np.zeros((3, 5)), "y": np.zeros(3)}, groups=(2, 2))


def test_golden_survives_a_file(tmp_path):
    workload = workloads.get("toy", "base")
    batch = {name: array[:4] for name, array in workload.load("train", None).items()}
    before = loops.train(workload, workload.init_params(0), [batch] * 2, optimizer=workload.optimizer)
    before.save(tmp_path / "g.npz")
    after = Golden.load(tmp_path / "g.npz")
    np.testing.assert_array_equal(before.losses, after.losses)
    assert len(before.after_first) == len(after.after_first) == 1
    for one, other in (
        (before.initial, after.initial),
        (before.after_first[0], after.after_first[0]),
        (before.params, after.params),
    ):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


def test_the_parameters_after_the_first_step_are_those_of_a_training_of_one_step(tmp_path):
    """For each worker, where workers train on their own: also of twelve, whose numbers a file must not sort as text."""
    workload = workloads.get("toy", "base")
    batch = {name: array[:24] for name, array in workload.load("train", None).items()}
    known: dict[str, Any] = {"optimizer": workload.optimizer}
    params = workload.init_params(0)
    one = loops.train(workload, params, [batch], **known)
    for several in (
        loops.train(workload, params, [batch] * 3, **known),
        loops.train_locally(workload, params, [batch] * 2, workers=2, sync_every=1, **known),
    ):
        assert_same_arrays(several.after_first[-1], one.params)
    local = loops.train_locally(workload, params, [batch] * 2, workers=12, sync_every=2, **known)
    local.save(tmp_path / "g.npz")
    loaded = Golden.load(tmp_path / "g.npz").after_first
    for worker, found in enumerate(loaded):
        own = {name: array[2 * worker : 2 * worker + 2] for name, array in batch.items()}
        assert_same_arrays(found, loops.train(workload, params, [own], **known).params)
    assert len(loaded) == 12
    replayed = replay(workload, params, [batch] * 2, history=in_turn(2, 2), **known)
    assert_same_arrays(
        replayed.after_first[0], replay(workload, params, [batch], history=in_turn(2, 1), **known).params
    )


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-14)


def test_groups_matter_where_there_is_batch_norm_and_equal_each_part_by_itself():
    workload = workloads.get("resnet50", "tiny")
    params = workload.init_params(0)
    batch = {name: array[:6].astype(np.float64) for name, array in workload.load("train", None).items()}
    whole, _ = loops.loss_and_gradients(workload, params, batch)
    parts = [{name: array[a:b] for name, array in batch.items()} for a, b in ((0, 4), (4, 6))]
    alone = [loops.loss_and_gradients(workload, params, part) for part in parts]
    loss, gradients = loops.loss_and_gradients(workload, params, batch, groups=(4, 2))
    assert loss == pytest.approx((4 * alone[0][0] + 2 * alone[1][0]) / 6, rel=1e-14)
    assert abs(loss / whole - 1) > 1e-4
    for name in params:
        np.testing.assert_allclose(gradients[name], (4 * alone[0][1][name] + 2 * alone[1][1][name]) / 6, atol=1e-12)


# torchvision's documentation: parameters and billions of multiply-adds (GFLOPS)
@pytest.mark.parametrize(
    ("size", "parameters", "operations", "bottlenecks"),
    [("imagenet", 25_557_032, 4.09e9, 16), ("resnet101", 44_549_160, 7.8e9, 33)],
)
def test_resnet50_and_101_are_torchvisions(size, parameters, operations, bottlenecks):
    workload = workloads.get("resnet50", size)
    shapes = {parameter.name: parameter.shape for parameter in workload.parameters()}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == parameters
    assert workload.flops_per_unit() / 3 / 2 == pytest.approx(operations, rel=0.01)
    assert len(workload.blocks) == 4 + bottlenecks + 3


def test_initial_weights_have_the_spread_that_their_rule_says():
    workload = workloads.get("resnet50", "imagenet")
    spec = next(parameter for parameter in workload.parameters() if parameter.name == "layer4.2.conv2.weight")
    params = workload.init_params(0)
    assert params[spec.name].std() == pytest.approx(np.sqrt(2 / (9 * 512)), rel=0.01)
    assert set(params["bn1.weight"]) == {1.0}
    assert set(params["bn1.bias"]) == {0.0}


SMALL = [
    (n, s)
    for n in workloads.names()
    for s, w in workloads.sizes(n).items()
    if w.flops_per_unit() < 1e9 and not w.needs_data
]


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_every_workload_learns_under_its_own_optimizer(name, size):
    workload = workloads.get(name, size)
    from harness.datasets import Batches

    data = workload.load("train", None)
    batches = Batches(data, seed=0, transform=workload.transform)
    batch = batches.batch(0, 8)
    result = loops.train(workload, workload.init_params(0), [batch] * 5, optimizer=workload.optimizer)
    assert np.all(np.diff(result.losses) < 0)


def test_flops_by_hand():
    # conv1 24x24x20 outputs of 25 products; conv2 8x8x50 of 500; 800x500; 500x10; a product and a sum each; x3 to train
    expected = 3 * 2 * (24 * 24 * 20 * 25 + 8 * 8 * 50 * 500 + 800 * 500 + 500 * 10)
    assert workloads.get("mnist_cnn", "base").flops_per_unit() == expected


def test_initial_weights_depend_on_the_seed_and_the_name_alone():
    workload = workloads.get("toy", "base")
    first, again, other = workload.init_params(0), workload.init_params(0), workload.init_params(1)
    for spec in workload.parameters():
        np.testing.assert_array_equal(first[spec.name], again[spec.name])
        assert not np.array_equal(first[spec.name], other[spec.name])
        assert np.abs(first[spec.name]).max() <= 1 / np.sqrt(spec.fan)


def classifier_batches(count, samples=8):
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((samples, 5)), "y": rng.integers(0, 2, samples)} for _ in range(count)]


SGD = OptimizerSpec(name="sgd", learning_rate=0.1)
MOMENTUM = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9)


def assert_same_training(one, other):
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-13)
    for name in one.params:
        np.testing.assert_allclose(one.after_first[0][name], other.after_first[0][name], atol=1e-14)
        np.testing.assert_allclose(one.params[name], other.params[name], atol=1e-14)


def test_local_training_that_meets_at_every_step_is_synchronous_under_plain_sgd():
    workload, batches = workloads.get("classifier", "base"), classifier_batches(4)
    params = workload.init_params(0)
    local = loops.train_locally(workload, params, batches, optimizer=SGD, workers=2, sync_every=1)
    assert_same_training(local, loops.train(workload, params, batches, optimizer=SGD))
    adam = OptimizerSpec(name="adam", learning_rate=0.1)
    local = loops.train_locally(workload, params, batches, optimizer=adam, workers=2, sync_every=1)
    synchronous = loops.train(workload, params, batches, optimizer=adam)
    assert any(np.abs(local.params[n] - synchronous.params[n]).max() > 1e-3 for n in params)  # its moments are local


def test_local_training_is_each_workers_own_between_meetings():
    workload, batches = workloads.get("classifier", "base"), classifier_batches(3)
    params = workload.init_params(0)
    local = loops.train_locally(workload, params, batches, optimizer=MOMENTUM, workers=2, sync_every=3)
    halves = [[{n: a[part] for n, a in batch.items()} for batch in batches] for part in (slice(0, 4), slice(4, 8))]
    alone = [loops.train(workload, params, half, optimizer=MOMENTUM) for half in halves]
    np.testing.assert_allclose(local.losses, (alone[0].losses + alone[1].losses) / 2, rtol=1e-13)
    for name in params:
        mean = (alone[0].params[name] + alone[1].params[name]) / 2
        np.testing.assert_allclose(local.params[name], mean, atol=1e-14)


def test_local_workers_take_accumulation_steps_as_everybody_does():
    workload, batches = workloads.get("resnet50", "tiny"), []
    data = workload.load("train", None)
    batches = [{name: array[8 * k : 8 * k + 8].astype(np.float64) for name, array in data.items()} for k in range(2)]
    params = workload.init_params(0)
    # meeting at every step under plain SGD: the same as synchronous training with the same normalization groups
    local = loops.train_locally(
        workload,
        params,
        batches,
        optimizer=SGD,
        workers=2,
        sync_every=1,
        accumulation_steps=2,
        groups=in_fours,
    )
    synchronous = loops.train(workload, params, batches, optimizer=SGD, groups=in_fours)
    np.testing.assert_allclose(local.losses, synchronous.losses, rtol=1e-9)


def test_running_statistics_are_torchs_by_hand():
    """Momentum 0.1 from mean 0 and variance 1, with the unbiased variance; of two devices, in two ways."""
    workload = workloads.get("resnet50", "tiny")
    params, rng = workload.init_params(0), np.random.default_rng(0)
    batches = [
        {"x": rng.standard_normal((6, 64, 64, 3)), "y": np.eye(10)[rng.integers(0, 10, 6)]} for _ in range(2)
    ]  # fmt: skip
    still = OptimizerSpec(name="sgd", learning_rate=0.0)
    found = loops.train(workload, params, batches, optimizer=still, groups=lambda count: (count // 2,) * 2).running

    def after(of_steps):
        mean, var = np.zeros(4), np.ones(4)
        for means, variances in of_steps:
            mean, var = 0.9 * mean + 0.1 * means, 0.9 * var + 0.1 * variances
        return mean, var

    first_layer = workload.layers[0]
    parts = []  # of each step, by device: mean and unbiased variance of the first convolution's outputs
    for batch in batches:
        y, _ = first_layer.forward(params, batch["x"])
        halves = [half.reshape(-1, 4) for half in (y[:3], y[3:])]
        parts.append([(half.mean(0), half.var(0, ddof=1)) for half in halves])
    mean_of = [tuple(np.mean([device[index] for device in step], axis=0) for index in (0, 1)) for step in parts]
    first = [step[0] for step in parts]
    for history, of_steps in (("all", mean_of), ("first", first)):
        mean, var = after(of_steps)
        np.testing.assert_allclose(found[f"{history}/bn1.mean"], mean, rtol=1e-12)
        np.testing.assert_allclose(found[f"{history}/bn1.var"], var, rtol=1e-12)
    count = 3 * 32 * 32  # samples of a half, and positions
    biased = (found["all/bn1.var"] - 0.81) * (count - 1) / count + 0.81
    np.testing.assert_allclose(found["all/bn1.biased_var"], biased, rtol=1e-12)
