"""What does XLA's flag for the latency-hiding scheduler change in a program for two H200s?

python reports/probes/latency_hiding/probe.py [--out FILE]

No GPU is needed: jax[cuda13] compiles for one that it is told about. The program has what a data-parallel step has: six
layers whose gradients XLA's partitioner sums over two devices, and an update.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
FLAG = "--xla_gpu_enable_latency_hiding_scheduler"
GIVEN = ("", f"{FLAG}=true", f"{FLAG}=false")
LAYERS, WIDTH, BATCH = 6, 4096, 8192


def compiled() -> dict[str, Any]:
    """The program under this process's flags: how many all-reduces run beside other work, and a digest of its text."""
    sys.path.insert(0, str(HERE.parents[1]))
    import h200
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = jnp.tanh(x @ kernel)
        return (x**2).mean()

    def step(kernels: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        gradients = jax.grad(loss)(kernels, x)
        return [kernel - 0.1 * gradient for kernel, gradient in zip(kernels, gradients, strict=True)]

    there = topologies.get_topology_desc(platform="cuda", target_config=h200.DESCRIPTION, topology="1x1x2")
    mesh = Mesh(np.array(there.devices), ("data",))
    replicated, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    kernels = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=replicated)] * LAYERS
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=sharded)
    text = jax.jit(step).lower(kernels, x).compile().as_text() or ""
    text = re.sub(r"metadata=\{[^}]*\}", "", text)
    return {
        "jax": jax.__version__,
        "asynchronous": len(re.findall(r"(?:all-reduce|async)-start\(", text)),
        "synchronous": len(re.findall(r"all-reduce\(", text)),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(compiled()))
        return
    rows = []
    for flag in GIVEN:
        variables = {
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "XLA_FLAGS": f"--xla_gpu_autotune_level=0 {flag}",
        }
        done = subprocess.run(
            [sys.executable, HERE, "--one"], env=os.environ | variables, capture_output=True, text=True, check=True
        )
        rows.append({"flag": flag} | json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1])
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
