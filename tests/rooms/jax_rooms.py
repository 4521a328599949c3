"""JAX's rooms, called with NumPy arrays in float64."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_impl import losses, optim, weights

jax.config.update("jax_enable_x64", True)


def optimize(spec, start, gradients):
    optimizer, w = optim.build(spec), jnp.asarray(start)
    state = optimizer.init(w)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, w)
        w = optax.apply_updates(w, updates)
    return np.asarray(w)


@cache
def compiled_schedules(spec):
    """The compiled schedule under float64, and under float32, for which JAX compiles it a second time."""
    compiled = jax.jit(optim.schedule(spec))

    def in_float32(count):
        with jax.enable_x64(False):
            return compiled(jnp.int32(count))

    return compiled, in_float32


def rate(spec, step):
    double, single = compiled_schedules(spec)
    found = float(double(jnp.int32(step)))
    assert float(single(step)) == found, f"step {step} of {spec}"
    return found


def loss(name, outputs, targets):
    return float(losses.get(name)(jnp.asarray(outputs), jnp.asarray(targets)))


def round_trip(workload, params):
    return weights.parameters(weights.load(params, jnp.float64))
