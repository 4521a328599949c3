"""shard_map: the step of one device, written by hand; pmean averages the gradients over the devices.

python docs/lessons/jax_shard_map.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)


def loss_fn(params, x, y):
    hidden = jax.nn.relu(x @ params["net1.weight"] + params["net1.bias"])
    return jnp.mean((hidden @ params["net2.weight"] + params["net2.bias"] - y) ** 2)


def step(params, x, y):  # x and y: this device's share of the batch
    own = jax.lax.pcast(params, "data", to="varying")  # or JAX would sum the gradients over the devices by itself
    loss, gradients = jax.lax.pmean(jax.value_and_grad(loss_fn)(own, x, y), "data")  # the all-reduce
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss


given = dict(np.load("inputs.npz"))
everywhere, samples = PartitionSpec(), PartitionSpec("data")
mesh = Mesh(jax.devices(), "data")
specs = {"in_specs": (everywhere, samples, samples), "out_specs": (everywhere, everywhere)}
on_all_devices = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
params = {name: array for name, array in given.items() if name not in "xy"}
for x, y in zip(given["x"], given["y"], strict=True):
    params, loss = on_all_devices(params, x, y)
    print(float(loss))
