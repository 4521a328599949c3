"""jit over sharded arrays: the program of one device; XLA parallelizes it, because the batch lies on two devices.

python docs/lessons/jax_jit_sharding.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)


def loss_fn(params, x, y):
    hidden = jax.nn.relu(x @ params["net1.weight"] + params["net1.bias"])
    return jnp.mean((hidden @ params["net2.weight"] + params["net2.bias"] - y) ** 2)


@jax.jit
def step(params, x, y):
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)  # XLA puts an all-reduce into these sums over samples
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss


given = dict(np.load("inputs.npz"))
mesh = Mesh(jax.devices(), "data")
by_sample, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
params = jax.device_put({name: array for name, array in given.items() if name not in "xy"}, replicated)
for x, y in zip(given["x"], given["y"], strict=True):
    params, loss = step(params, *jax.device_put((x, y), by_sample))
    print(float(loss))
