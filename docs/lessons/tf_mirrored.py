"""MirroredStrategy: every variable has a copy on each device, and the optimizer sums the gradients over the replicas.

python docs/lessons/tf_mirrored.py
"""

import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.config.set_floatx("float64")
given = dict(np.load("inputs.npz"))
batch = given["x"].shape[1]  # over all replicas

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # with GPUs: no argument
with strategy.scope():
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(10, "relu"), keras.layers.Dense(5)])
    model.set_weights([given[f"{layer}.{kind}"] for layer in ("net1", "net2") for kind in ("weight", "bias")])
    optimizer = keras.optimizers.SGD(0.001)


@tf.function
def step(x, y):  # x and y: this replica's share of the batch
    with tf.GradientTape() as tape:
        of_samples = tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1)
        loss = tf.nn.compute_average_loss(of_samples, global_batch_size=batch)  # the sum over samples, divided by all
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))  # all-reduces: the sum
    return loss


samples = [given[name].reshape(-1, given[name].shape[2]) for name in ("x", "y")]
dataset = tf.data.Dataset.from_tensor_slices(tuple(samples)).batch(batch)
for x, y in strategy.experimental_distribute_dataset(dataset):
    print(float(strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)))
