"""python jax_fsdp_layers.py: whether backward computes a layer of FSDP again. Prints one JSON object."""

import json
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from harness import workloads
from harness.contract import Job, World
from jax_impl import placement, runtime
from jax_impl.strategies import fsdp


class Own(nn.Module):
    """A module of a user's, which knows nothing of blocks."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.tanh(nn.Dense(4)(x)))


workload = workloads.get("toy", "base")
job = Job(
    world=World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous=""), workload=workload,
    params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=4,
)  # fmt: skip
runtime.start(job.world, job.precision, job.settings)
layer = fsdp.gathering(job, placement.mesh(job), again_in_backward=True)
x, found = jnp.ones((4, 4)), {}
kinds: dict[Any, dict[str, Any]] = {nn.Dense: {"features": 4}, nn.BatchNorm: {"use_running_average": False}, Own: {}}
for kind, known in kinds.items():
    variables = kind(**known).init(jax.random.key(0), x)
    model = layer(kind)(**known)
    gradient = jax.grad(lambda given, model=model: model.apply(given, x, mutable=["batch_stats"])[0].sum())
    found[kind.__name__] = "remat" in str(jax.make_jaxpr(gradient)(variables))
print(json.dumps(found))
