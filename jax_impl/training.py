"""The step that every data-parallel JAX strategy shares: a pure function, which each compiles in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

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


Objective = Callable[[weights.Params, Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
Differentiation = Callable[[State, jax.Array, jax.Array], tuple[tuple[jax.Array, Any], weights.Params]]
Evaluation = Callable[[weights.Params, Any, jax.Array, jax.Array], jax.Array]
Step = Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]


def make_objective(job: Job, *, axis_name: str | None = None) -> Objective:
    """(params, batch_stats, x, y) to the mean loss of these samples and BatchNorm's new running statistics.

    BatchNorm normalizes by the samples that one call sees: under a mapped axis, those of one device. With `axis_name`
    it shares its statistics over that axis.
    """
    model = models.build(job.workload, precision=job.precision, axis_name=axis_name)
    loss_fn = losses.get(job.workload.loss)

    def objective(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, changed = model.apply(variables, x, mutable=["batch_stats"])
        return loss_fn(outputs, y), changed.get("batch_stats", {})

    return objective


def make_differentiation(job: Job, *, objective: Objective) -> Differentiation:
    """Loss, new running statistics and gradients of what a step takes; with accumulation, means over its steps."""
    differentiate = jax.value_and_grad(objective, has_aux=True)

    def at_once(state: State, x: jax.Array, y: jax.Array) -> tuple[tuple[jax.Array, Any], weights.Params]:
        return differentiate(state.params, state.batch_stats, x, y)

    def accumulate(state: State, x: jax.Array, y: jax.Array) -> tuple[tuple[jax.Array, Any], weights.Params]:
        """The accumulation steps are the leading axis of x and y; one at a time is in memory.

        On CPU devices XLA's convolutions are some twenty times slower inside a loop: see strategies/pipeline.py.
        """

        def add(sums: Any, part: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            batch_stats, *totals = sums
            (loss, batch_stats), gradients = differentiate(state.params, batch_stats, *part)
            return (batch_stats, *jax.tree.map(jnp.add, totals, [loss, gradients])), None

        zeros = jnp.zeros((), runtime.DTYPES[job.precision]), jax.tree.map(jnp.zeros_like, state.params)
        (batch_stats, *totals), _ = jax.lax.scan(add, (state.batch_stats, *zeros), (x, y))
        loss, gradients = jax.tree.map(lambda total: total / job.accumulation_steps, totals)
        return (loss, batch_stats), gradients

    return at_once if job.accumulation_steps == 1 else accumulate


def make_step(
    job: Job,
    *,
    axis_name: str | None = None,
    objective: Objective | None = None,
    differentiate: Differentiation | None = None,
) -> Step:
    """One update. With `axis_name`, loss and gradients are averaged over that mapped axis before it: once, however many
    accumulation steps there are. `objective` and `differentiate` are those of the job by default."""
    optimizer = optim.build(job.optimizer)
    if differentiate is None:
        shared = axis_name if job.normalization == "global" else None
        differentiate = make_differentiation(job, objective=objective or make_objective(job, axis_name=shared))

    def step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, Metrics]:
        (loss, batch_stats), gradients = differentiate(state, x, y)
        if axis_name is not None:
            loss, gradients = jax.lax.pmean((loss, gradients), axis_name)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return State(params, opt_state, batch_stats), Metrics(loss, gradients if job.keep_gradients else None)

    return step


def make_evaluation(job: Job, *, axis_name: str | None = None) -> Evaluation:
    """(params, batch_stats, x, y) to loss and accuracy, as one array; BatchNorm normalizes with running statistics.

    x and y are what a step takes: of several accumulation steps one at a time is in memory. With `axis_name`, running
    statistics and results are averaged over that mapped axis.
    """
    model = models.build(job.workload, precision=job.precision, inference=True)
    measure = losses.evaluation(job.workload.loss)

    def evaluate(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        if axis_name is not None:
            batch_stats = jax.lax.pmean(batch_stats, axis_name)

        def of_part(part: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, y = part
            return measure(model.apply({"params": params, "batch_stats": batch_stats}, x), y)  # pyright: ignore

        found = of_part((x, y)) if job.accumulation_steps == 1 else jax.lax.map(of_part, (x, y)).mean(0)
        return found if axis_name is None else jax.lax.pmean(found, axis_name)

    return evaluate


def initial_state(job: Job, *, own_statistics: bool = False) -> State:
    """The job's weights and a fresh optimizer state, on the default device.

    `own_statistics`: each device has running statistics of its own, which are the entries of a leading axis.
    """
    dtype = runtime.DTYPES[job.precision]
    params = weights.load(job.params, dtype)
    sample = jnp.zeros((1, *job.workload.input_shape), dtype)
    # shapes only: no weights are drawn, since they are given
    model = models.build(job.workload, precision=job.precision)
    shapes = jax.eval_shape(model.init, jax.random.key(0), sample)
    # Running means begin at 0, running variances at 1, as in torch; not in Flax's own dtype, which is float32 at first
    # and float64 after a float64 step: the step would be compiled twice, and a scan refuses it.
    start = {"mean": jnp.zeros, "var": jnp.ones}
    axes = (job.world.local_devices,) if own_statistics else ()
    stats = {
        layer: {name: start[name]((*axes, *leaf.shape), dtype) for name, leaf in leaves.items()}
        for layer, leaves in shapes.get("batch_stats", {}).items()
    }
    return State(params, optim.build(job.optimizer).init(params), stats)


def cast(batch: Arrays, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Numpy inputs and targets in the job's number format; class labels become int32."""
    x, y = batch["x"], batch["y"]
    dtype = runtime.DTYPES[job.precision]
    return x.astype(dtype), y.astype("int32" if y.dtype.kind == "i" else dtype)


def parts(batch: Arrays, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """What a step takes of a global batch: (batch, ...), or (accumulation steps, batch / accumulation steps, ...)."""
    x, y = cast(batch, job)
    if job.accumulation_steps == 1:
        return x, y
    x, y = (array.reshape(job.accumulation_steps, -1, *array.shape[1:]) for array in (x, y))
    return x, y
