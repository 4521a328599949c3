"""What the optimizer remembers of each parameter, as a state holds it: under the paths of Optax's trees."""

from __future__ import annotations

from harness.contract import Arrays, Moments
from harness.workloads import Workload
from jax_impl.weights import canonical_name

NAMES = {"trace": "v", "mu": "m", "nu": "s", "sums": "s"}
"""The fields of Optax's states and of optim.py: the moments in harness.spec.optimizers.update."""


def moments(state: Arrays, workload: Workload) -> Moments:
    """The moments in a state, canonical: "optimizer/0/mu/fc1/kernel" is the m of fc1.weight."""
    found: Moments = {}
    for name, array in state.items():
        parts = name.split("/")
        at = next((index for index, part in enumerate(parts) if part in NAMES), None)
        if parts[0] == "optimizer" and at is not None:
            found[canonical_name(*parts[at + 1 :]), NAMES[parts[at]]] = array
    return found
