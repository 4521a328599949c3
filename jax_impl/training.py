"""The step that every JAX strategy shares: a pure function, which each of them maps or compiles in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from harness.contract import Arrays, Job
from jax_impl import losses, models, optim, runtime, weights


class State(NamedTuple):
    """All that training changes."""

    params: weights.Params
    opt_state: optax.OptState
    batch_stats: Any  # running statistics of BatchNorm, {} without


class Metrics(NamedTuple):
    """What a step tells of itself. Gradients only in the parity phase: keeping them would cost memory."""

    loss: jax.Array
    gradients: weights.Params | None


Step = Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]


def make_step(job: Job, *, axis_name: str | None = None) -> Step:
    """One update. With `axis_name`, loss and gradients are averaged over that mapped axis before it.

    BatchNorm's statistics are those of the samples that one call sees: under a mapped axis, of one device.
    """
    model = make_model(job)
    optimizer = optim.build(job.optimizer)
    loss_fn = losses.get(job.workload.loss)

    def objective(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, changed = model.apply(variables, x, mutable=["batch_stats"])
        return loss_fn(outputs, y), changed.get("batch_stats", {})

    def step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, Metrics]:
        differentiate = jax.value_and_grad(objective, has_aux=True)
        (loss, batch_stats), gradients = differentiate(state.params, state.batch_stats, x, y)
        if axis_name is not None:
            loss, gradients = jax.lax.pmean((loss, gradients), axis_name)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return State(params, opt_state, batch_stats), Metrics(loss, gradients if job.keep_gradients else None)

    return step


def initial_state(job: Job) -> State:
    """The job's weights and a fresh optimizer state, on the default device."""
    params = weights.load(job.params, runtime.DTYPES[job.precision])
    sample = jnp.zeros((1, *job.workload.input_shape), runtime.DTYPES[job.precision])
    # shapes only: no weights are drawn, since they are given
    shapes = jax.eval_shape(make_model(job).init, jax.random.key(0), sample)
    # running means begin at 0, running variances at 1, as in torch
    start = {"mean": jnp.zeros, "var": jnp.ones}
    stats = {
        layer: {name: start[name](leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
        for layer, leaves in shapes.get("batch_stats", {}).items()
    }
    return State(params, optim.build(job.optimizer).init(params), stats)


def make_model(job: Job) -> nn.Module:
    """The job's network in its number formats."""
    compute_dtype, dtype = runtime.COMPUTE_DTYPES[job.precision], runtime.DTYPES[job.precision]
    return models.build(job.workload, dtype=compute_dtype, param_dtype=dtype)


def cast(batch: Arrays, job: Job) -> tuple[Any, Any]:
    """Numpy inputs and targets in the job's number format; class labels become int32."""
    x, y = batch["x"], batch["y"]
    dtype = runtime.DTYPES[job.precision]
    return x.astype(dtype), y.astype("int32" if y.dtype.kind == "i" else dtype)
