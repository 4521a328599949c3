"""Networks and data unlike those here: a parameter may be used twice, and what is not defined is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import make_spec
from refusals import refused

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.datasets import padded
from harness.layers import (
    BatchNorm,
    Conv2D,
    GlobalAveragePool,
    Linear,
    MaxPool2D,
    ReLU,
    Residual,
    chain_flops,
    chain_forward,
    running_statistics,
    with_rounding,
)
from harness.layers.rounding import Rounding
from harness.reference import loops
from harness.reference.losses import split_targets
from harness.session.references import References
from harness.spec import OptimizerSpec
from harness.workloads import check_samples

TIED = Linear("tied", 4, 4)
CONV = Conv2D("tied", 3, 2, 2, padding=1)
NETWORKS = {
    "in a chain": ((TIED, ReLU(), TIED, ReLU(), TIED), (4,)),
    "in a residual block": ((Residual((TIED, ReLU(), TIED)),), (4,)),
    "in body and shortcut": ((Residual((TIED, ReLU()), (TIED,)),), (4,)),
    "at two depths": ((TIED, ReLU(), Residual((Residual((TIED, ReLU())), TIED))), (4,)),
    "a convolution beside BatchNorm": (
        (CONV, BatchNorm("norm", 2), ReLU(), Residual((CONV,)), GlobalAveragePool()),
        (3, 4, 2),
    ),
}


def network(layers, shape, **known):
    """A workload of these layers."""
    workload = workloads.get("toy", "base")
    return replace(workload, layers=tuple(layers), input_shape=shape, blocks=(), **known)


def rounding_to_all_bits(layers):
    """Layers that round as `with_rounding` does, but to float64, so that finite differences still see a slope."""
    return with_rounding(layers, "fp64")


def observed(layers):
    return running_statistics.observed(layers, {})


@pytest.mark.parametrize("change", [tuple, rounding_to_all_bits, observed], ids=["as it is", "rounded", "observed"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_a_parameter_that_is_used_twice_is_the_sum(name, change):
    layers, shape = NETWORKS[name]
    layers = change(layers)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, *shape))
    params = {p.name: rng.standard_normal(p.shape) for p in network(NETWORKS[name][0], shape).parameters()}
    y, pullback = chain_forward(layers, params, x)
    weights = rng.standard_normal(y.shape)
    _, gradients = pullback(weights)
    assert gradients.keys() == params.keys()
    for key, array in params.items():
        for index in np.ndindex(array.shape):
            before, sums = array[index], []
            for step in (1e-5, -1e-5):
                array[index] = before + step
                sums.append(float((chain_forward(layers, params, x)[0] * weights).sum()))
            array[index] = before
            assert gradients[key][index] == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-5, abs=1e-6), (key, index)


def test_a_rounded_gradient_of_a_parameter_that_is_used_twice_is_the_sum():
    """Each use by itself is known: that of a network in which the other use has a copy of the parameter."""
    first, second = Rounding(Linear("first", 4, 4), 8), Rounding(Linear("second", 4, 4), 8)
    tied = Rounding(TIED, 8)
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    params = {f"tied.{end}": rng.standard_normal(shape) for end, shape in (("weight", (4, 4)), ("bias", (4,)))}
    copies = {f"{use}.{end}": params[f"tied.{end}"] for use in ("first", "second") for end in ("weight", "bias")}
    _, found = chain_forward((tied, ReLU(), tied), params, x)[1](dy)
    _, apart = chain_forward((first, ReLU(), second), copies, x)[1](dy)
    for end in ("weight", "bias"):
        np.testing.assert_allclose(found[f"tied.{end}"], apart[f"first.{end}"] + apart[f"second.{end}"], rtol=1e-13)


def test_a_shared_parameter_is_drawn_and_counted_once_and_its_work_twice():
    shared = network((TIED, ReLU(), Residual((TIED, ReLU(), TIED))), (4,))
    assert [parameter.name for parameter in shared.parameters()] == ["tied.weight", "tied.bias"]
    assert shared.init_params(0).keys() == {"tied.weight", "tied.bias"}
    assert [p.name for p in shared.layers[2].parameters()] == ["tied.weight", "tied.bias"]
    assert chain_flops(shared.layers, (4,)) == 3 * TIED.flops((4,))
    assert shared.flops_per_unit() == 9 * TIED.flops((4,))


def test_a_shared_parameter_is_updated_once_with_the_sum():
    shared = network((TIED, ReLU(), TIED), (4,))
    rng = np.random.default_rng(2)
    batch = {"x": rng.standard_normal((6, 4)), "y": rng.standard_normal((6, 4))}
    start = shared.init_params(0)
    rate = OptimizerSpec(name="sgd", learning_rate=0.1, weight_decay=0.01)
    found = loops.train(shared, start, [batch], optimizer=rate)
    apart = network((Linear("first", 4, 4), ReLU(), Linear("second", 4, 4)), (4,))
    copies = {f"{use}.{end}": start[f"tied.{end}"] for use in ("first", "second") for end in ("weight", "bias")}
    _, each = loops.loss_and_gradients(apart, copies, batch)
    for end in ("weight", "bias"):
        gradient = each[f"first.{end}"] + each[f"second.{end}"]
        expected = start[f"tied.{end}"] - 0.1 * (gradient + 0.01 * start[f"tied.{end}"])
        np.testing.assert_allclose(found.params[f"tied.{end}"], expected, rtol=1e-12)


@pytest.mark.parametrize("others", [Linear("tied", 4, 3), Linear("tied", 4, 4, flattened=(2, 2, 1))])
def test_two_different_parameters_of_one_name_are_refused(others):
    with refused("toy base", "tied.weight", "alike"):
        network((TIED, ReLU(), others), (4,))
    with pytest.raises(ValueError, match=r"tied\.weight"):
        Residual((TIED,), (others,)).parameters()


def test_a_batch_norm_that_is_used_twice_is_refused():
    norm = BatchNorm("norm", 2)
    with refused("toy base", "BatchNorm norm", "2 times"):
        network((norm, ReLU(), Residual((norm,)), GlobalAveragePool()), (3, 4, 2))


UNFIT = {
    "fewer inputs": ((Linear("l", 5, 4),), (4,), ("l", "(4,)", "(5,)")),
    "a linear layer on rows": ((Linear("l", 4, 4),), (3, 4), ("l", "(3, 4)", "(4,)")),
    "other channels": ((Conv2D("c", 3, 2, 2), GlobalAveragePool()), (4, 4, 3), ("c", "(4, 4, 3)", "2")),
    "other channels of a normalization": ((BatchNorm("n", 1),), (3,), ("n", "(3,)", "1")),
    "a large window": ((Conv2D("c", 5, 2, 2), GlobalAveragePool()), (4, 8, 2), ("5 x 5", "4 x 8")),
    "a large pool": ((MaxPool2D(3, 1), GlobalAveragePool()), (8, 2, 2), ("3 x 3", "8 x 2")),
    "a sum that NumPy would broadcast": (
        (Residual((Conv2D("c", 1, 2, 1),)), GlobalAveragePool()),
        (4, 4, 2),
        ("(4, 4, 1)", "(4, 4, 2)"),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_layers_that_do_not_fit_are_refused(name):
    layers, shape, facts = UNFIT[name]
    with refused("toy base", *facts):
        network(layers, shape)


def test_a_network_with_several_rows_of_outputs_is_refused():
    """With such outputs, targets are labels of shape (samples, tokens), which look like labels with factors."""
    with refused("toy base", "(3, 4, 2)", "one axis"):
        network((CONV, ReLU()), (3, 4, 2))


LABELS = workloads.get("classifier", "base")
ROWS = workloads.get("toy", "base")
X = np.zeros((6, 5))
MISREAD = {
    "token numbers as inputs": (LABELS, X.astype(np.int64), np.zeros(6, np.int64), ("int64", "floating-point")),
    "several labels a sample": (LABELS, X, np.zeros((6, 2), np.int64), ("(6, 2)", "cross_entropy", "(6,)")),
    "labels as floating-point numbers": (LABELS, X, np.zeros(6), ("float64", "cross_entropy")),
    "unsigned labels": (LABELS, X, np.zeros(6, np.uint8), ("uint8", "cross_entropy")),
    "a label without an output": (LABELS, X, np.array([0, 1, 2, 0, 1, 0]), ("2", "0 to 1")),
    "a negative label": (LABELS, X, np.array([0, 1, -1, 0, 1, 0]), ("-1", "0 to 1")),
    "inputs of another shape": (LABELS, np.zeros((6, 4)), np.zeros(6, np.int64), ("(4,)", "(5,)")),
    "fewer targets than inputs": (LABELS, X, np.zeros(5, np.int64), ("6", "5")),
    "a single number as the target of several outputs": (ROWS, np.zeros((6, 10)), np.zeros(6), ("(6,)", "(6, 5)")),
    "a row with one more number than outputs": (ROWS, np.zeros((6, 10)), np.zeros((6, 6)), ("(6, 6)", "(6, 5)")),
    "whole numbers as targets of a regression": (ROWS, np.zeros((6, 10)), np.zeros((6, 5), int), ("int64", "(6, 5)")),
    "no samples": (LABELS, X[:0], np.zeros(0, np.int64), ("0", "at least one")),
    "an input that is no number": (LABELS, np.full((6, 5), np.nan), np.zeros(6, np.int64), ("NaN", "(x)")),
    "a target that is infinite": (ROWS, np.zeros((6, 10)), np.full((6, 5), -np.inf), ("infinite", "(y)")),
    "targets of three axes": (ROWS, np.zeros((6, 10)), np.zeros((6, 5, 2)), ("(6, 5, 2)", "(6, 5)")),
}


@pytest.mark.parametrize("name", MISREAD)
def test_samples_that_would_be_misread_are_refused(name):
    workload, x, y, facts = MISREAD[name]
    with refused(f"{workload.name} {workload.size}", *facts):
        check_samples(workload, {"x": x, "y": y})


def test_a_run_refuses_samples_that_would_be_misread(tmp_path, monkeypatch):
    """The check is where every command gets its samples."""
    tokens = replace(LABELS, load=lambda split, source: {"x": X.astype(np.int64), "y": np.zeros(6, np.int64)})
    monkeypatch.setattr(workloads, "get", lambda name, size: tokens)
    with refused("classifier base", "int64"):
        References(tmp_path, data=None, display=PlainDisplay()).prepare(make_spec())


@pytest.mark.parametrize(("name", "size"), [(n, s) for n in workloads.names() for s in workloads.sizes(n)])
def test_the_samples_of_every_workload_are_accepted(name, size):
    workload = workloads.get(name, size)
    if workload.needs_data or workload.flops_per_unit() > 1e9:
        pytest.skip("needs files, or is large; its smaller size has the same kinds")
    for split in ("train", "test"):
        check_samples(workload, workload.load(split, None))


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_regressions_with_several_outputs_have_factors_of_padding(outputs):
    """Rows of targets are not taken for labels with factors, however many numbers they have."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((4, outputs))
    found = rng.standard_normal((4, outputs))
    known, factors = split_targets("mse", found, y)
    np.testing.assert_array_equal(known, y)
    np.testing.assert_array_equal(factors, 1)
    wide = padded({"x": x, "y": y}, 6)
    known, factors = split_targets("mse", np.zeros((6, outputs)), wide["y"])
    np.testing.assert_array_equal(known[:4], y)
    np.testing.assert_array_equal(factors, [1.5] * 4 + [0] * 2)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        ("cross_entropy", np.zeros((4, 2), np.int64)),
        ("nll", np.zeros((4, 3))),
        ("cross_entropy", np.zeros((4, 2, 2))),
        ("mse", np.zeros((4, 5))),
        ("mse", np.zeros(4)),
        ("mse", np.zeros((4, 4), np.int64)),
    ],
)
def test_the_reference_refuses_targets_that_it_would_misread(loss, targets):
    with refused(loss, str(targets.shape), kind=ValueError):
        split_targets(loss, np.zeros((4, 3)), targets)
