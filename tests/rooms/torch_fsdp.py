"""python torch_fsdp.py RANK FOLDER: FSDP in bf16 as one of two ranks, by policy with prefetch and by autocast without.

Prints a line of JSON for each network and number of accumulation steps: the bytes that a step gathers and reduces, and
the largest difference of losses and parameters between the two after some steps.
"""

import json
import sys

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.workloads import resnet50
from torch_impl import runtime
from torch_impl.strategies import fsdp
from torch_impl.watching import watch

rank, folder = int(sys.argv[1]), sys.argv[2]
BATCH, STEPS = 12, 3
world = World(
    rank=rank, local_rank=rank, processes=2, devices=2, platform="cpu", cores=1,
    rendezvous=f"file://{folder}/rendezvous",
)  # fmt: skip


def two_blocks_in_a_stack():
    """ResNet-50 `tiny` with one block more: there every stack has one, so that blocks and stacks are the same."""
    tiny = workloads.get("resnet50", "tiny")
    return resnet50._sized(
        "tiny", tiny.summary, image=64, classes=10, width=4, depths=(2, 1, 1, 1), samples=48, loss="mse",
        global_batch=BATCH, parity_batch=BATCH, optimizer=tiny.optimizer,
    )  # fmt: skip


def trained(workload, policy, accumulation_steps):
    """Losses, parameters and what crossed in a step."""
    unit = "block" if accumulation_steps == 1 else "stack"
    options = {"reshard_after_forward": True, "unit": unit, "mixed_precision_policy": policy, "prefetch": policy}
    job = Job(
        world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="bf16",
        global_batch=BATCH, normalization="per_device", accumulation_steps=accumulation_steps, options=options,
    )  # fmt: skip
    program = fsdp.build(job)
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    placed = [program.place(batches.batch(step, BATCH, dtype=np.float32)) for step in range(STEPS)]
    losses = [float(program.step(batch)) for batch in placed]
    (params,) = program.export()
    return losses, params, dict(watch(program, placed[:1], {}).crossed)


if __name__ == "__main__":
    runtime.start(world, "bf16", {})
    for name in ("mnist_cnn", "resnet50"):
        workload = workloads.get(name, "tiny") if name == "mnist_cnn" else two_blocks_in_a_stack()
        for steps in (1, 2):
            by_policy, by_autocast = (trained(workload, policy, steps) for policy in (True, False))
            apart = max(float(np.abs(by_policy[1][key] - by_autocast[1][key]).max()) for key in by_policy[1])
            moved = max(
                float(np.abs(by_policy[1][key] - start).max()) for key, start in workload.init_params(0).items()
            )
            found = {"losses": [by_policy[0], by_autocast[0]], "apart": apart, "moved": moved}
            print(json.dumps({"workload": name, "steps": steps, "crossed": [by_policy[2], by_autocast[2]]} | found))
