"""python device_bounds.py PACKAGE: the operations that bounds are measured with, on two CPU devices of one process.

Prints, for memory and links, the amount that counts for one operation, the bytes of its result on one device, and the
smallest and largest number in it.
"""

import importlib
import json
import sys
from typing import Any

import numpy as np

from harness.contract import World
from harness.gate import bounds

package = sys.argv[1]
found: dict[str, Any] = {}
world = World(rank=0, processes=1, devices=2, platform="cpu", cores=2, rendezvous="")
importlib.import_module(f"{package}.runtime").start(world, "fp32", {})
module = importlib.import_module(f"{package}.bounds")


def once(amount, operation, wait, *, at_once=1):
    """Instead of bounds.per_second."""
    made = operation()
    wait()
    seen["amount"], seen["made"] = amount, made
    return 1.0


seen: dict[str, Any] = {}
bounds.per_second = once
for bound, measure in (
    ("memory", lambda: module.memory_rate(world)),
    ("links", lambda: module.link_rate(world, None)),
):
    measure()
    made = seen["made"]
    made = made.values[-1] if type(made).__name__ == "PerReplica" else made
    array = np.asarray(made)
    found[bound] = [seen["amount"], array.nbytes, float(array.min()), float(array.max())]
print(json.dumps(found))
