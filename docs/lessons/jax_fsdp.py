"""FSDP by jit: each device keeps a part of every parameter; XLA gathers parameters for use and scatters gradients.

python docs/lessons/jax_fsdp.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
mesh = Mesh(jax.devices(), "data")
cut, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
given = dict(np.load("inputs.npz"))
params = {name: array for name, array in given.items() if name not in "xy"}
parts = {name: whole if len(array) % mesh.size else cut for name, array in params.items()}  # a bias of 5 stays whole


@jax.checkpoint  # whole parameters are not kept for backward, which gathers them again
def linear(x, weight, bias):
    weight, bias = jax.lax.with_sharding_constraint((weight, bias), whole)  # an all-gather for each
    return x @ weight + bias


@jax.jit
def step(params, x, y):
    def loss_fn(params):
        hidden = jax.nn.relu(linear(x, params["net1.weight"], params["net1.bias"]))
        return jnp.mean((linear(hidden, params["net2.weight"], params["net2.bias"]) - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    gradients = jax.lax.with_sharding_constraint(gradients, parts)  # a reduce-scatter; XLA's CPU backend all-reduces
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss


params = jax.device_put(params, parts)
for x, y in zip(given["x"], given["y"], strict=True):
    params, loss = step(params, *jax.device_put((x, y), cut))
    print(float(loss))
