"""What a stage of JAX's pipelines keeps for backward, and what its own time is measured on. Prints one JSON object."""

import json
from math import prod

import jax

from harness import workloads
from harness.contract import Job, World
from jax_impl import stages, train_state

workload = workloads.get("resnet50", "tiny")
job = Job(
    world=World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous=""), workload=workload,
    params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=12,
    options={"micro_batches": 4, "cut": "time"},
)  # fmt: skip
state, device = train_state.initial(job), jax.devices()[0]
x = jax.numpy.ones((3, *workload.input_shape))
whole = stages.split(job, ())[0]
_, kept, _ = jax.eval_shape(
    stages.compile_stage(whole, job, device, first=True).forward, *state[:1], state.batch_stats, x
)
_, everything, _ = jax.eval_shape(
    lambda params: jax.vjp(lambda params: whole.forward(params, state.batch_stats, x), params, has_aux=True),
    state.params,
)


def held(pullback):
    """Bytes that grow with the batch: those of activations."""
    arrays = [leaf for leaf in jax.tree.leaves(pullback) if leaf.ndim and leaf.shape[0] == len(x)]
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in arrays), sorted({str(leaf.dtype) for leaf in arrays})


samples, products = [], []
seconds_of = stages.seconds_of


def seen(run, params, batch_stats, x):
    samples.append(len(x))
    if "fc" in params and not products:  # one of forward, and one for each gradient of backward
        products.append(run.lower(params, batch_stats, x).compile().as_text().count(" dot("))
    return seconds_of(run, params, batch_stats, x)


stages.seconds_of = seen
seconds = stages.block_seconds(job)
kernels = {leaf.shape for leaf in jax.tree.leaves(state.params) if leaf.ndim > 1}
carried = kernels & {leaf.shape for leaf in jax.tree.leaves(kept)}
found = {"kept": held(kept), "everything": held(everything), "samples": samples, "blocks": len(seconds)}
print(json.dumps(found | {"products": products, "visits": stages.VISITS, "carried": sorted(map(list, carried))}))
