"""What the optimizer remembers of each parameter, as a state holds it: under the names in optim.py."""

from __future__ import annotations

from harness.contract import Arrays, Moments
from harness.workloads import Workload

NAMES = {"velocity": "v", "mean": "m", "square": "s", "sum": "s"}
"""The names of optim.py's variables: the moments in harness.spec.optimizers.update."""


def moments(state: Arrays, workload: Workload) -> Moments:
    """The moments in a state: "optimizer/fc1.weight/mean" is the m of fc1.weight. They are canonical there."""
    return {
        (spec.name, ours): state[name]
        for spec in workload.parameters()
        for theirs, ours in NAMES.items()
        if (name := f"optimizer/{spec.name}/{theirs}") in state
    }
