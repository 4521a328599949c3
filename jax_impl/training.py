"""The step that every JAX strategy shares: a pure function, which each of them maps or compiles in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from harness.contract import Arrays, Job
from jax_impl import losses, models, optim, runtime, weights


class State(NamedTuple):
    """All that training changes."""

    params: weights.Params
    opt_state: optax.OptState


class Metrics(NamedTuple):
    """What a step tells of itself. Gradients only in the parity phase: keeping them would cost memory."""

    loss: jax.Array
    gradients: weights.Params | None


Step = Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]


def make_step(job: Job, *, axis_name: str | None = None) -> Step:
    """One update. With `axis_name`, loss and gradients are averaged over that mapped axis before it."""
    compute_dtype, dtype = runtime.COMPUTE_DTYPES[job.precision], runtime.DTYPES[job.precision]
    model = models.build(job.workload, dtype=compute_dtype, param_dtype=dtype)
    optimizer = optim.build(job.optimizer)
    loss_fn = losses.get(job.workload.loss)

    def objective(params: weights.Params, x: jax.Array, y: jax.Array) -> jax.Array:
        outputs: Any = model.apply({"params": params}, x)
        return loss_fn(outputs, y)

    def step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, Metrics]:
        loss, gradients = jax.value_and_grad(objective)(state.params, x, y)
        if axis_name is not None:
            loss, gradients = jax.lax.pmean((loss, gradients), axis_name)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return State(params, opt_state), Metrics(loss, gradients if job.keep_gradients else None)

    return step


def initial_state(job: Job) -> State:
    """The job's weights and a fresh optimizer state, on the default device."""
    params = weights.load(job.params, runtime.DTYPES[job.precision])
    return State(params, optim.build(job.optimizer).init(params))


def cast(batch: Arrays, job: Job) -> tuple[Any, Any]:
    """Numpy inputs and targets in the job's number format; class labels become int32."""
    x, y = batch["x"], batch["y"]
    dtype = runtime.DTYPES[job.precision]
    return x.astype(dtype), y.astype("int32" if y.dtype.kind == "i" else dtype)
