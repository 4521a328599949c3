"""The modules of tf_impl, called with NumPy arrays in float64."""

from functools import cache

import keras
import tensorflow as tf

from tf_impl import losses, models, optim, weights

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


def optimize(spec, start, gradients):
    w = tf.Variable(start)
    optimizer = optim.build(spec, [w])
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)])
    return w.numpy()


@cache
def compiled_schedule(spec):
    return tf.function(lambda step: optim.scheduled_rate(spec, step + 0.0))


def rate(spec, step):
    return float(compiled_schedule(spec)(tf.constant(step, tf.float64)))


def loss(name, outputs, targets):
    return float(losses.get(name)(tf.constant(outputs), tf.constant(targets)))


def round_trip(workload, params):
    variables = weights.variables(models.build(workload))
    weights.load(variables, params)
    return weights.parameters(variables)
