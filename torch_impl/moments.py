"""What the optimizer remembers of each parameter, as a state holds it: under torch.optim's names, in torch's layout."""

from __future__ import annotations

from harness.contract import Arrays, Moments
from harness.workloads import Workload
from torch_impl import weights

NAMES = {"momentum_buffer": "v", "exp_avg": "m", "exp_avg_sq": "s", "sum": "s"}
"""torch.optim's names: the moments in harness.spec.optimizers.update."""

OF_WORKER = "optimizer/rank{}/"
"""Begins the names of what a worker of local training has for itself. It goes on as in a state of this worker alone."""


def moments(state: Arrays, workload: Workload) -> Moments:
    """The moments in a state, canonical: "optimizer/fc1.weight/exp_avg" is the m of fc1.weight, transposed."""
    return {
        (spec.name, ours): weights.from_torch(spec, state[name])
        for spec in workload.parameters()
        for theirs, ours in NAMES.items()
        if (name := f"optimizer/{spec.name}/{theirs}") in state
    }
