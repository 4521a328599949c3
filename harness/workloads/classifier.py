"""A two-class classifier on generated points: is the first coordinate larger than the second?

Linear 5-10-2 with ReLU, cross-entropy, Adam with learning rate 0.001; 1,000 seeded samples, split 800/200, batch 16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets import split_arrays
from harness.layers import Linear, ReLU
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.workloads import Split, Workload

SAMPLES, TEST_SAMPLES, DATA_SEED = 1000, 200, 42


def load(split: Split, source: Path | None = None) -> Arrays:
    """x (800 or 200, 5) float64, standard normal; y int64, 1 where x0 > x1."""
    x = np.random.default_rng(DATA_SEED).standard_normal((SAMPLES, 5))
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    return split_arrays({"x": x, "y": y}, split, test=TEST_SAMPLES, seed=DATA_SEED)


SIZES = {
    "base": Workload(
        name="classifier",
        size="base",
        summary="Linear 5-10-2, cross-entropy, Adam: is x0 > x1?",
        unit="sample",
        input_shape=(5,),
        layers=(Linear("fc", 5, 10), ReLU(), Linear("out", 10, 2)),
        dims={"inputs": 5, "hidden": 10, "outputs": 2},
        blocks=("fc", "relu", "out"),
        loss="cross_entropy",
        global_batch=16,
        optimizer=OptimizerSpec(name="adam", learning_rate=1e-3),
        load=load,
        samples="800 random points",
        target_accuracy=0.95,
        epochs=50,
    )
}
