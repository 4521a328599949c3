"""JAX's rungs: the suite's network and optimizer in a step written by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from measure import Loop, Start, Turn

from jax_impl import losses, optim, weights
from jax_impl.models import resnet50


def make(start: Start) -> Loop:
    """Options: config (JAX's), norm, donate, steps (a call), unroll, layers (settings of the suite)."""
    options = start.options
    for name, value in options.get("config", {}).items():
        jax.config.update(name, value)  # an unknown name fails, as an environment variable would not
    dtype = start.runtime.DTYPES[start.precision]
    steps = options.get("steps", 1)
    held = [jax.device_put(initial(start, dtype))]
    update = make_update(start, dtype)
    compiled = jax.jit(
        partial(several, update, unroll=options.get("unroll", False)) if steps > 1 else update,
        donate_argnums=0 if options.get("donate", True) else (),
    )
    hosted = [(batch["x"].astype(dtype), targets(batch["y"], dtype)) for batch in start.batches]
    if steps > 1:  # one resident stack, with the batches in turn
        turns = [hosted[step % len(hosted)] for step in range(steps)]
        hosted = [tuple(np.stack(arrays) for arrays in zip(*turns, strict=True))]
    batches = jax.block_until_ready(jax.device_put(hosted))
    turn = Turn()

    def call() -> jax.Array:
        held[0], loss = compiled(held[0], *batches[turn.next() % len(batches)])
        return loss

    return Loop(
        updates=steps,
        call=call,
        losses=lambda given: np.asarray(given).reshape(-1).tolist(),
        sync=lambda: jax.block_until_ready(held[0]),
    )


def make_update(start: Start, dtype: Any) -> Any:
    """(state, x, y) to the next state and the loss. A state: parameters, the optimizer's, running statistics."""
    model = network(start, dtype)
    optimizer = optim.build(start.workload.optimizer)
    loss_fn = losses.get(start.workload.loss)

    def objective(params: Any, statistics: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        outputs, changed = model.apply(
            {"params": params, "batch_stats": statistics}, x, mutable=["batch_stats"]
        )  # fmt: skip
        return loss_fn(outputs, y), changed["batch_stats"]

    def update(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, remembered, statistics = state
        differentiate = jax.value_and_grad(objective, has_aux=True)
        (loss, statistics), gradients = differentiate(params, statistics, x, y)
        updates, remembered = optimizer.update(gradients, remembered, params)
        return (optax.apply_updates(params, updates), remembered, statistics), loss

    return update


def several(update: Any, state: Any, xs: jax.Array, ys: jax.Array, *, unroll: bool) -> Any:
    """One update for each entry of the leading axis; the last state, and all losses."""
    return jax.lax.scan(lambda held, batch: update(held, *batch), state, (xs, ys), unroll=unroll)


def initial(start: Start, dtype: Any) -> Any:
    """The suite's initial weights, no momentum yet, running means 0 and variances 1."""
    params = weights.load(start.params, dtype)
    sample = jnp.zeros((1, *start.workload.input_shape), dtype)
    shapes = jax.eval_shape(network(start, dtype).init, jax.random.key(0), sample)["batch_stats"]
    statistics = {
        layer: {"mean": jnp.zeros(known["mean"].shape, dtype), "var": jnp.ones(known["var"].shape, dtype)}
        for layer, known in shapes.items()
    }
    return params, optim.build(start.workload.optimizer).init(params), statistics


def network(start: Start, dtype: Any) -> linen.Module:
    """The suite's network. It has no switch for how BatchNorm computes: here another BatchNorm takes its place."""
    kind = start.options.get("norm")
    if kind == "float32":
        linen.BatchNorm = _InFloat32
    elif kind == "bfloat16 statistics":
        linen.BatchNorm = partial(_OWN_NORM, force_float32_reductions=False)
    compute = start.runtime.COMPUTE_DTYPES[start.precision]
    layers: Any = dict.fromkeys(start.options.get("layers", ()), True)
    return resnet50.Model(**start.workload.dims, **layers, dtype=compute, param_dtype=dtype)


_OWN_NORM = linen.BatchNorm


def _InFloat32(**known: Any) -> linen.BatchNorm:
    return _OWN_NORM(**known | {"dtype": jnp.float32})


def targets(y: np.ndarray, dtype: Any) -> np.ndarray:
    """Class labels as int32, all else in the parameters' format."""
    return y.astype("int32" if y.dtype.kind == "i" else dtype)
