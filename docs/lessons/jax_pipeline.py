"""A pipeline, stage by stage: the programs of jax_model_parallel.py with micro-batches, so both devices work at once.

python docs/lessons/jax_pipeline.py
"""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
MICRO_BATCHES = 4


def stage_0(params, x):
    return jax.nn.relu(x @ params["net1.weight"] + params["net1.bias"])


def loss_of_stage_1(params, hidden, y):  # divided, so that the gradients add up to that of the whole batch's mean loss
    return jnp.mean((hidden @ params["net2.weight"] + params["net2.bias"] - y) ** 2) / MICRO_BATCHES


forward = jax.jit(lambda params, x: jax.vjp(lambda p: stage_0(p, x), params))
loss_and_gradients = jax.jit(jax.value_and_grad(loss_of_stage_1, argnums=(0, 1)))
backward = jax.jit(lambda pullback, dy: pullback(dy)[0])
update = jax.jit(lambda params, *gradients: jax.tree.map(lambda p, *g: p - 0.001 * sum(g), params, *gradients))

given, (first, second) = dict(np.load("inputs.npz")), jax.devices()
params_0 = jax.device_put({name: array for name, array in given.items() if name.startswith("net1")}, first)
params_1 = jax.device_put({name: array for name, array in given.items() if name.startswith("net2")}, second)
for batch in zip(given["x"], given["y"], strict=True):
    micro_batches = zip(*(np.split(array, MICRO_BATCHES) for array in batch), strict=True)
    forwards = [(*forward(params_0, jax.device_put(x, first)), jax.device_put(y, second)) for x, y in micro_batches]
    ends = [loss_and_gradients(params_1, jax.device_put(hidden, second), y) for hidden, _, y in forwards]
    backs = [backward(f[1], jax.device_put(e[1][1], first)) for f, e in zip(forwards, ends, strict=True)]
    params_0, params_1 = update(params_0, *backs), update(params_1, *(own for _, (own, _) in ends))
    print(float(sum(loss for loss, _ in ends)))
