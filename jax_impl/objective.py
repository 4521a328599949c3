"""The loss as a pure function of the parameters, which is what JAX differentiates; and its counterpart in evaluation.

Only JAX needs this room. torch and TensorFlow record the operations on parameters while a model runs; JAX transforms a
function, so model, loss and BatchNorm's running statistics must be arguments and results of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from harness.contract import Job
from jax_impl import losses, models, weights

Objective = Callable[[weights.Params, Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
ValueAndGrad = Callable[[weights.Params, Any, jax.Array, jax.Array], tuple[tuple[jax.Array, Any], weights.Params]]
Evaluation = Callable[[weights.Params, Any, jax.Array, jax.Array], jax.Array]


def make_objective(job: Job, *, axis_name: str | None = None, layer: models.Layer | None = None) -> Objective:
    """(params, batch_stats, x, y) to the mean loss of these samples and BatchNorm's new running statistics.

    BatchNorm normalizes by the samples that one call sees. Under a mapped axis these are the samples of one device;
    with `axis_name`, BatchNorm shares its statistics over that axis. `layer`: see models.Network.
    """
    known: dict[str, Any] = {"axis_name": axis_name, "momentum": job.statistics_momentum, "layer": layer}
    model = models.build(job.workload, precision=job.precision, settings=job.settings, **known)
    loss_fn = losses.get(job.workload.loss)

    def objective(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, changed = model.apply(variables, x, mutable=["batch_stats"])
        return loss_fn(outputs, y), changed.get("batch_stats", {})

    return objective


def with_accumulation(value_and_grad: ValueAndGrad, job: Job) -> ValueAndGrad:
    """`value_and_grad` for a batch in parts, the accumulation steps, which are the leading axis of x and y.

    Loss and gradients are means over the parts, and only one part's activations are in memory at a time. With one
    accumulation step the batch has no such axis, and `value_and_grad` is returned as it is.

    On CPU devices, XLA's convolutions are some twenty times slower inside a loop: see strategies/pipeline_spmd.py.
    """
    if job.accumulation_steps == 1:
        return value_and_grad

    def accumulate(
        params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array
    ) -> tuple[tuple[jax.Array, Any], weights.Params]:
        def add(sums: Any, part: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            batch_stats, totals = sums
            (loss, batch_stats), gradients = value_and_grad(params, batch_stats, *part)
            return (batch_stats, jax.tree.map(jnp.add, totals, gradients)), loss

        start = batch_stats, jax.tree.map(jnp.zeros_like, params)
        (batch_stats, totals), of_parts = jax.lax.scan(add, start, (x, y))
        gradients = jax.tree.map(lambda total: total / job.accumulation_steps, totals)
        return (of_parts.mean(), batch_stats), gradients

    return accumulate


def make_evaluation(
    job: Job, *, axis_name: str | None = None, own_statistics: bool = False, layer: models.Layer | None = None
) -> Evaluation:
    """(params, batch_stats, x, y) to loss and accuracy, as one array; BatchNorm normalizes with running statistics.

    x and y are as a step takes them; of several accumulation steps, one at a time is in memory. With `axis_name`,
    running statistics and results are averaged over that mapped axis. With `own_statistics`, running statistics have a
    leading axis with one entry per device, and their mean is used. `layer`: see models.Network.
    """
    model = models.build(job.workload, precision=job.precision, settings=job.settings, inference=True, layer=layer)
    measure = losses.evaluation(job.workload.loss)

    def evaluate(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        if own_statistics:
            batch_stats = jax.tree.map(lambda a: a.mean(0), batch_stats)
        if axis_name is not None:
            batch_stats = jax.lax.pmean(batch_stats, axis_name)

        def of_part(part: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, y = part
            return measure(model.apply({"params": params, "batch_stats": batch_stats}, x), y)  # pyright: ignore

        found = of_part((x, y)) if job.accumulation_steps == 1 else jax.lax.map(of_part, (x, y)).mean(0)
        return found if axis_name is None else jax.lax.pmean(found, axis_name)

    return evaluate
