"""python tf_steps.py FOLDER RANK PROCESSES STRATEGY...: several steps in one call against the same steps one by one.

In float64, with Adam, a schedule, BatchNorm and accumulation. All checks are assertions.
"""

import os
import sys
from pathlib import Path

import numpy as np
from tf_training import BATCH, build, one_bottleneck

from harness.contract import World
from harness.datasets import Batches
from tf_impl import runtime


def check(program, batches):
    """Both times the same program: two with collectives in one process would take each other's."""
    whole = [batches.batch(step, BATCH) for step in range(4)]

    def one_by_one():
        return [program.step(program.place(batch)) for batch in whole]

    def together():
        first = program.step(program.place(whole[0]))
        return [first, *program.steps([program.place(batch) for batch in whole[1:]])]

    begin, found = program.state(), []
    for train in (one_by_one, together):
        program.load_state(begin)
        handles = train()
        losses = [program.loss(handle) for handle in handles]
        assert losses[-1] == program.loss() != losses[-2]
        found.append({"losses": np.array(losses), **program.state()})
    for name, right in found[0].items():
        np.testing.assert_allclose(found[1][name], right, rtol=1e-12, atol=1e-14, err_msg=name)


if __name__ == "__main__":
    folder, rank, processes, *strategies = sys.argv[1:]
    world = World(
        rank=int(rank), local_rank=int(rank), processes=int(processes), devices=2, platform="cpu", cores=1,
        rendezvous=f"file://{Path(folder).absolute()}/rendezvous",
    )  # fmt: skip
    runtime.start(world, "fp64", {})
    workload = one_bottleneck()
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    for strategy in strategies:
        program = build(strategy, world, workload, "fp64")
        if hasattr(program, "steps"):
            check(program, batches)
            print(strategy, flush=True)
    runtime.barrier(world)
    os._exit(0)
