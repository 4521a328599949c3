"""Write inputs.npz, which all lessons train on: initial weights and batches of the suite's workload `toy`, in float64.

python docs/lessons/make_inputs.py
"""

import numpy as np

from harness import workloads
from harness.datasets import Batches

STEPS = 6

toy = workloads.get("toy", "base")
samples = Batches(toy.load("train", None), seed=0, transform=toy.transform)
batches = [samples.batch(step, toy.global_batch) for step in range(STEPS)]
arrays = {name: np.stack([batch[name] for batch in batches]) for name in ("x", "y")}  # (steps, batch, ...)
np.savez("inputs.npz", **toy.init_params(seed=0), **arrays)
