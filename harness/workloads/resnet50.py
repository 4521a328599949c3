"""ResNet-50 (He et al. 2015, arXiv:1512.03385) as torchvision builds it, on synthetic images.

This is version 1.5: the stride of a bottleneck is on its 3x3 convolution. With 1,000 classes it has 25,557,032
parameters. The sizes:

- `tutorial`: the model-parallel tutorial's setting. 120 images of 128 x 128, mean squared error against one-hot labels,
  SGD 0.001.
- `imagenet`: the usual benchmark. 224 x 224, 256 images per device, cross-entropy, SGD 0.1 with momentum 0.9.
- `resnet101`: the same with 23 bottlenecks in the third stage, which makes it ResNet-101: 44,549,160 parameters.
- `cifar10`: real images from --data, batch 128, SGD 0.02 with momentum 0.9 and weight decay 5e-4. Its last activations
  are 1 x 1, so BatchNorm computes statistics from only one number per sample. That is why its parity phase has more
  samples than the others, and fewer steps.
- `tiny`: the tutorial's setting on a network that is small enough for tests. It has three stages, the first with two
  bottlenecks: one with a convolution in its shortcut, and one without.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from harness.datasets import DataError, cifar10
from harness.layers import BatchNorm, Conv2D, GlobalAveragePool, Layer, Linear, MaxPool2D, ReLU, Residual
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.workloads import Split, Workload

EXPANSION = 4  # output channels of a bottleneck / its inner channels
DATA_SEED = 0
CIFAR10 = f"CIFAR-10, as .bin or .png files; it is at {cifar10.SOURCE}"
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the 50,000 training images


def load(split: Split, source: Path | None = None, *, samples: int, image: int, classes: int, one_hot: bool) -> Arrays:
    """x (samples, image, image, 3) float32, standard normal; y random classes, int64, or one-hot float32 rows."""
    rng = np.random.default_rng([DATA_SEED, split == "test"])
    x = rng.standard_normal((samples, image, image, 3), dtype=np.float32)
    y = rng.integers(0, classes, samples)
    return {"x": x, "y": np.eye(classes, dtype=np.float32)[y] if one_hot else y}


def load_cifar10(split: Split, source: Path | None = None) -> Arrays:
    """x (50000 or 10000, 32, 32, 3) uint8, y int64. Raises DataError."""
    if source is None:
        raise DataError("resnet50 cifar10 needs --data DIR")
    return cifar10.load(source, split)


def normalize_cifar10(x: np.ndarray) -> np.ndarray:
    """Pixels 0..255 to float64 with mean 0 and standard deviation 1 in each channel over the training set."""
    return (x / 255.0 - CIFAR10_MEAN) / CIFAR10_STD


def _conv(name: str, kernel: int, inputs: int, outputs: int, stride: int = 1) -> Conv2D:
    return Conv2D(name, kernel, inputs, outputs, stride=stride, padding=kernel // 2, bias=False, he=True)


def _bottleneck(name: str, inputs: int, planes: int, stride: int) -> tuple[Layer, ...]:
    outputs = EXPANSION * planes
    body = (
        _conv(f"{name}.conv1", 1, inputs, planes), BatchNorm(f"{name}.bn1", planes), ReLU(),
        _conv(f"{name}.conv2", 3, planes, planes, stride), BatchNorm(f"{name}.bn2", planes), ReLU(),
        _conv(f"{name}.conv3", 1, planes, outputs), BatchNorm(f"{name}.bn3", outputs),
    )  # fmt: skip
    if stride == 1 and inputs == outputs:
        return (Residual(body), ReLU())
    down = (_conv(f"{name}.downsample.0", 1, inputs, outputs, stride), BatchNorm(f"{name}.downsample.1", outputs))
    return (Residual(body, down), ReLU())


def _sized(
    size: str, summary: str, *, image: int, classes: int, width: int, depths: tuple[int, ...], **known
) -> Workload:
    layers: list[Layer] = [
        _conv("conv1", 7, 3, width, stride=2), BatchNorm("bn1", width), ReLU(), MaxPool2D(3, 2, padding=1),
    ]  # fmt: skip
    blocks, channels = ["conv1", "bn1", "relu", "maxpool"], width
    for stage, depth in enumerate(depths, 1):
        planes = width * 2 ** (stage - 1)
        for index in range(depth):
            name = f"layer{stage}.{index}"
            layers += _bottleneck(name, channels, planes, stride=2 if stage > 1 and index == 0 else 1)
            blocks.append(name)
            channels = EXPANSION * planes
    layers += [GlobalAveragePool(), Linear("fc", channels, classes)]
    if "samples" in known:
        one_hot = known["loss"] == "mse"
        count = known.pop("samples")
        known["load"] = partial(load, samples=count, image=image, classes=classes, one_hot=one_hot)
        known["samples"] = f"{count} images of {image} x {image} random noise with random labels"
    return Workload(
        name="resnet50",
        size=size,
        summary=summary,
        unit="image",
        input_shape=(image, image, 3),
        layers=tuple(layers),
        blocks=(*blocks, "avgpool", "flatten", "fc"),
        default_cut="layer2",
        dims={"classes": classes, "width": width} | {f"depth{i}": depth for i, depth in enumerate(depths, 1)},
        **known,
    )


SIZES = {
    "tutorial": _sized(
        "tutorial", "128 x 128, batch 120, mean squared error, SGD: the model-parallel tutorial's setting",
        image=128, classes=1000, width=64, depths=(3, 4, 6, 3), samples=480, loss="mse", global_batch=120,
        parity_batch=8, curve_steps=5, optimizer=OptimizerSpec(name="sgd", learning_rate=1e-3),
    ),
    "imagenet": _sized(
        "imagenet", "224 x 224, 256 images per device, cross-entropy, SGD with momentum",
        image=224, classes=1000, width=64, depths=(3, 4, 6, 3), samples=2048, loss="cross_entropy", global_batch=256,
        batch_per_device=True, parity_batch=4, parity_steps=3, curve_steps=5,
        optimizer=OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9),
    ),
    "resnet101": _sized(
        "resnet101", "ResNet-101: 224 x 224, 256 images per device, cross-entropy, SGD with momentum",
        image=224, classes=1000, width=64, depths=(3, 4, 23, 3), samples=2048, loss="cross_entropy", global_batch=256,
        batch_per_device=True, parity_batch=4, parity_steps=2, curve_steps=5,
        optimizer=OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9),
    ),
    "cifar10": _sized(
        "cifar10", "CIFAR-10's 32 x 32 from --data, batch 128, cross-entropy, SGD with momentum and weight decay",
        image=32, classes=10, width=64, depths=(3, 4, 6, 3), loss="cross_entropy", global_batch=128, parity_batch=32,
        parity_steps=3, optimizer=OptimizerSpec(name="sgd", learning_rate=0.02, momentum=0.9, weight_decay=5e-4),
        load=load_cifar10, transform=normalize_cifar10, takes_data=True, needs_data=CIFAR10,
        target_accuracy=0.6, epochs=20,
    ),
    "tiny": _sized(
        "tiny", "64 x 64, 4 bottlenecks, batch 12, mean squared error, SGD, for tests",
        image=64, classes=10, width=4, depths=(2, 1, 1), samples=48, loss="mse", global_batch=12,
        parity_batch=12, target_accuracy=0.5, validation_share=0.25,
        optimizer=OptimizerSpec(name="sgd", learning_rate=1e-3),
    ),
}  # fmt: skip
SIZE_ON_CPU = "tiny"  # a step of the others takes a processor seconds to minutes
