"""python ledger.py FRAMEWORK STRATEGY DEVICES SETTING...: prints how a tiny program ran, as its package reads it.

The program is mnist_cnn on CPU devices of one process, after one step.
"""

import importlib
import json
import sys

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.spec import registry

framework, name, devices, *settings = sys.argv[1:]
package = registry.packages()[framework]
world = World(rank=0, processes=1, devices=int(devices), platform="cpu", cores=2, rendezvous="")
chosen = dict.fromkeys(settings, True)
importlib.import_module(f"{package}.runtime").start(world, "fp32", chosen)
workload = workloads.get("mnist_cnn", "tiny")
strategy = registry.framework(framework).strategy(name)
options = strategy.defaults | ({"cut": "pool1"} if "cut" in strategy.defaults else {})
job = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32",
    global_batch=16, options=options, normalization=strategy.normalization, settings=chosen,
)  # fmt: skip
program = importlib.import_module(f"{package}.strategies.{name}").build(job)
batch = Batches(workload.load("train", None), seed=0, transform=workload.transform).batch(0, 16)
placed = program.place(batch)
program.step(placed)
program.sync()
execution = importlib.import_module(f"{package}.ledger").execution
print(json.dumps({"timed": execution(program, [placed]), "trained": execution(program, ())}))
