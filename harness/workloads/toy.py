"""The two toy regressions of the parallel-training tutorials: two linear layers, random inputs, random targets.

`base`: Linear 10-10-5 with ReLU between, MSE, SGD 0.001, batch 20. `wide`: Linear 10-100-1 without an activation, MSE,
SGD 0.01 with momentum 0.9, batch 64. `unused`: `base` with one more linear layer, which the forward pass leaves out.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from harness.datasets import split_arrays
from harness.layers import Linear, ReLU, Unused
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.workloads import Split, Workload

SAMPLES, TEST_SAMPLES, DATA_SEED = 1250, 250, 0
NOISE = "1,000 random samples with random targets"


def load(split: Split, source: Path | None = None, *, outputs: int) -> Arrays:
    """x (1000 or 250, 10) and y (1000 or 250, outputs), float64, standard normal."""
    rng = np.random.default_rng(DATA_SEED)
    arrays = {"x": rng.standard_normal((SAMPLES, 10)), "y": rng.standard_normal((SAMPLES, outputs))}
    return split_arrays(arrays, split, test=TEST_SAMPLES, seed=DATA_SEED)


SIZES = {
    "base": Workload(
        name="toy",
        size="base",
        summary="Linear 10-10-5 with ReLU, mean squared error, SGD",
        unit="sample",
        input_shape=(10,),
        layers=(Linear("net1", 10, 10), ReLU(), Linear("net2", 10, 5)),
        dims={"inputs": 10, "hidden": 10, "outputs": 5, "relu": 1},
        blocks=("net1", "relu", "net2"),
        default_cut="relu",  # as in the tutorial
        loss="mse",
        global_batch=20,
        optimizer=OptimizerSpec(name="sgd", learning_rate=1e-3),
        load=partial(load, outputs=5),
        samples=NOISE,
    ),
    "wide": Workload(
        name="toy",
        size="wide",
        summary="Linear 10-100-1, mean squared error, SGD with momentum",
        unit="sample",
        input_shape=(10,),
        layers=(Linear("net1", 10, 100), Linear("net2", 100, 1)),
        dims={"inputs": 10, "hidden": 100, "outputs": 1, "relu": 0},
        blocks=("net1", "net2"),
        default_cut="net1",
        loss="mse",
        global_batch=64,
        optimizer=OptimizerSpec(name="sgd", learning_rate=0.01, momentum=0.9),
        load=partial(load, outputs=1),
        samples=NOISE,
    ),
    "unused": Workload(
        name="toy",
        size="unused",
        summary="base, and a linear layer that the forward pass leaves out",
        unit="sample",
        input_shape=(10,),
        layers=(Linear("net1", 10, 10), ReLU(), Unused(Linear("unused", 10, 10)), Linear("net2", 10, 5)),
        dims={"inputs": 10, "hidden": 10, "outputs": 5, "relu": 1, "unused": 1},
        blocks=("net1", "relu", "unused", "net2"),
        default_cut="relu",
        loss="mse",
        global_batch=20,
        optimizer=OptimizerSpec(name="sgd", learning_rate=1e-3),
        load=partial(load, outputs=5),
        samples=NOISE,
    ),
}
