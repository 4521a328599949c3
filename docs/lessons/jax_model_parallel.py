"""Model parallelism: each device has a jitted stage of its own, and the whole batch visits the devices in turn.

python docs/lessons/jax_model_parallel.py
"""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)


def stage_0(params, x):
    return jax.nn.relu(x @ params["net1.weight"] + params["net1.bias"])


def loss_of_stage_1(params, hidden, y):
    return jnp.mean((hidden @ params["net2.weight"] + params["net2.bias"] - y) ** 2)


forward = jax.jit(lambda params, x: jax.vjp(lambda p: stage_0(p, x), params))  # the pullback is a tree of arrays
loss_and_gradients = jax.jit(jax.value_and_grad(loss_of_stage_1, argnums=(0, 1)))
backward = jax.jit(lambda pullback, dy: pullback(dy)[0])
update = jax.jit(lambda params, gradients: jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients))

given, (first, second) = dict(np.load("inputs.npz")), jax.devices()
params_0 = jax.device_put({name: array for name, array in given.items() if name.startswith("net1")}, first)
params_1 = jax.device_put({name: array for name, array in given.items() if name.startswith("net2")}, second)
for x, y in zip(given["x"], given["y"], strict=True):
    hidden, pullback = forward(params_0, jax.device_put(x, first))
    hidden = jax.device_put(hidden, second)  # activations cross
    loss, (own, dy) = loss_and_gradients(params_1, hidden, jax.device_put(y, second))
    params_1 = update(params_1, own)
    params_0 = update(params_0, backward(pullback, jax.device_put(dy, first)))  # their gradient crosses back
    print(float(loss))
