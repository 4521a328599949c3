"""The mean of gradients over the devices, tensor by tensor or as one vector (the setting `flat_gradients`).

    pmean of a tree    | kernel | kernel | ...   one for each of ResNet-50's 161 tensors, then all-reduces of several
    flat_pmean         | concatenation |         one kernel writes all of them behind one another, then one all-reduce

Both make the same sums. XLA begins the first all-reduces of a tree while backward still runs; that of the vector begins
when all gradients are known. The update then reads parts of one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from harness.contract import Job


def pmean_for(job: Job) -> Callable[[Any, str], Any]:
    """(tree, axis name) to the tree of means over that mapped axis."""
    return flat_pmean if job.settings.get("flat_gradients", False) else jax.lax.pmean


def flat_pmean(tree: Any, axis_name: str) -> Any:
    """`jax.lax.pmean` of all arrays of a tree, joined to one vector. They should have one format."""
    vector, as_tree = ravel_pytree(tree)
    return as_tree(jax.lax.pmean(vector, axis_name))
