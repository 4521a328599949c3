"""python jax_shardings.py: how XLA compiles the strategies for 2 devices, and what each device then holds.

Prints one JSON line for each strategy and number of accumulation steps: the bytes of the collectives in the compiled
step, by kind and separately for those inside loops; how often backward recomputes each operation that jax.checkpoint
does not save; the bytes of parameters and of optimizer state on the first device.
"""

import importlib
import json
import math
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.spec import Normalization, Precision
from jax_impl import runtime
from jax_impl.strategies import fsdp

DEVICES, BATCH = 2, 16
STRATEGIES: list[tuple[str, Normalization, dict[str, Any]]] = [
    ("pmap", "per_device", {}),
    ("shard_map", "per_device", {}),
    ("jit_sharding", "global", {}),
    ("jit_explicit", "global", {}),
    ("fsdp", "global", {"reshard_after_forward": True}),
    ("fsdp", "global", {"reshard_after_forward": False}),
    ("pipeline_spmd", "per_microbatch", {"cut": "pool2", "micro_batches": 4}),
]
COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def collectives(text):
    """Bytes that each kind of collective returns; "loop" precedes the kinds outside of the entry computation."""
    found, where = {}, ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            where = "" if line.startswith("ENTRY") else "loop "
        if match := COLLECTIVE.search(line):
            shapes = re.findall(r"f(16|32|64)\[([\d,]*)\]", match[1])
            size = sum(int(bits) // 8 * math.prod(int(n) for n in dims.split(",") if n) for bits, dims in shapes)
            kind = where + match[2]
            found[kind] = found.get(kind, 0) + size
    return found


def partitioned(lowered):
    """The program when XLA has inserted the collectives, before its CPU compiler turns bfloat16 into float32."""
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_hlo_pass_re": "spmd.*"})
        (found,) = Path(folder).glob("*after_spmd-partitioning*")
        return found.read_text()


def recomputed(text):
    """How often the program computes again what jax.checkpoint did not save, by operation."""
    lines = [line for line in text.splitlines() if "rematted_computation" in line]
    return Counter(match[1] for line in lines if (match := re.search(r" ([a-z\-]+)\(", line)))


def on_first_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree) if leaf.ndim)


def job_of(
    precision: Precision, options: dict[str, Any], normalization: Normalization = "global", steps: int = 1
) -> Job:
    return Job(
        world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer,
        precision=precision, global_batch=BATCH, normalization=normalization, accumulation_steps=steps,
        options=options,
    )  # fmt: skip


if __name__ == "__main__":
    workload = workloads.get("mnist_cnn", "tiny")
    world = World(rank=0, processes=1, devices=DEVICES, platform="cpu", cores=2, rendezvous="")
    runtime.start(world, "fp32", {})
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    for strategy, normalization, options in STRATEGIES:
        for steps in (1,) if strategy == "pipeline_spmd" else (1, 2):
            job = job_of("fp32", options, normalization, steps)
            program = importlib.import_module(f"jax_impl.strategies.{strategy}").build(job)
            placed = program.place(batches.batch(0, BATCH, dtype=np.float32))
            text = program.compiled.lower(program.held, *placed).compile().as_text()
            for _ in range(2):
                program.step(placed)
            params, opt_state, _ = program.held
            held = {"params": on_first_device(params), "opt_state": on_first_device(opt_state)}
            found = {"collectives": collectives(text), "recomputed": recomputed(text)} | held
            print(json.dumps({"strategy": strategy, "options": options, "steps": steps} | found))
    program = fsdp.build(job_of("bf16", {"reshard_after_forward": True}))
    placed = program.place(batches.batch(0, BATCH, dtype=np.float32))
    found = {"collectives": collectives(partitioned(program.compiled.lower(program.held, *placed)))}
    print(json.dumps({"strategy": "fsdp in bf16", "options": {}, "steps": 1} | found))
