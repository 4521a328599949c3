"""JAX's rooms, called with numpy arrays in float64."""

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


def loss(name, outputs, targets):
    return float(losses.get(name)(jnp.asarray(outputs), jnp.asarray(targets)))


def round_trip(workload, params):
    return weights.parameters(weights.load(params, jnp.float64))
