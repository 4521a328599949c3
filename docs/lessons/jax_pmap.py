"""pmap: every array has a leading axis of devices, and each device runs the step on its own entry.

python docs/lessons/jax_pmap.py
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)


def loss_fn(params, x, y):
    hidden = jax.nn.relu(x @ params["net1.weight"] + params["net1.bias"])
    return jnp.mean((hidden @ params["net2.weight"] + params["net2.bias"] - y) ** 2)


@partial(jax.pmap, axis_name="data")
def step(params, x, y):  # x and y: this device's share of the batch
    loss, gradients = jax.lax.pmean(jax.value_and_grad(loss_fn)(params, x, y), "data")  # the all-reduce
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss


given, count = dict(np.load("inputs.npz")), jax.device_count()
params = {name: np.stack([array] * count) for name, array in given.items() if name not in "xy"}  # a copy for each
for x, y in zip(given["x"], given["y"], strict=True):
    params, loss = step(params, x.reshape(count, -1, x.shape[1]), y.reshape(count, -1, y.shape[1]))
    print(float(loss[0]))  # equal on all devices
