"""python tf_batch_norm.py: the settings `fused_batch_norm` and `batch_norm_relu` against the layers of Keras.

All checks are assertions: a process that returns 0 has passed them. Float32 is held to Keras' layers in float64. The
errors of all forms were below 4e-6 of the largest value. Bessel's correction would be 3e-3 of the variance.
"""

import itertools
import os
import sys
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tf_impl import batch_norm

NAMES = ("output", "gradient of x", "gradient of weight", "gradient of bias", "running mean", "running variance")
ROUNDING = {"float32": 1e-5, "bfloat16": 1e-2}
"""The largest error, relative to the largest value. In bfloat16 these are bfloat16's: it has 8 bits."""


def step(dtype, *, fused):
    """What a training step computes, by name, and whether the kernel did it."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((8, 6, 6, 4)) * 3 + 5, rng.standard_normal((8, 6, 6, 4))
    policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
    layer = batch_norm.layer(momentum=0.9, synchronized=False, settings={"fused_batch_norm": fused})(
        name="norm", dtype=policy
    )
    layer.build(x.shape)
    layer.gamma.assign(np.linspace(0.5, 2, 4))
    layer.beta.assign(np.linspace(-1, 1, 4))

    def train(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, *tape.gradient(y, [x, layer.gamma.value, layer.beta.value], output_gradients=dy)

    run: Any = tf.function(train)
    given = tf.constant(x, dtype), tf.constant(dy, dtype)
    found = [*run(*given), layer.moving_mean.value, layer.moving_variance.value]
    kinds = {operation.type for operation in run.get_concrete_function(*given).graph.get_operations()}
    arrays = dict(zip(NAMES, (tf.cast(tensor, tf.float64).numpy() for tensor in found), strict=True))
    return arrays, {"FusedBatchNormV3", "FusedBatchNormGradV3"} <= kinds


def check():
    right, by_kernel = step("float64", fused=False)
    assert not by_kernel
    for dtype, rounding in ROUNDING.items():
        found, by_kernel = step(dtype, fused=True)
        assert by_kernel, dtype
        for name, array in found.items():
            limit = rounding * np.abs(right[name]).max()
            np.testing.assert_allclose(array, right[name], rtol=0, atol=limit, err_msg=f"{name} in {dtype}")
    exact, by_kernel = step("float64", fused=True)
    assert not by_kernel  # it has no float64
    for name, array in exact.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def joined_step(dtype, given, *, joined, with_shortcut, relu):
    """What a training step computes by one layer, or by Keras' three, and what an evaluation computes afterwards, by
    name. `given`: input, shortcut, gradient of the output, weight and bias."""
    x, added, dy = (tf.constant(each, dtype) for each in given[:3])
    policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
    make = batch_norm.layer(momentum=0.9, synchronized=False, settings={"batch_norm_relu": joined})
    layer = make(name="norm", dtype=policy, **({"relu": relu} if joined else {}))
    layer.build(x.shape)
    layer.gamma.assign(given[3])
    layer.beta.assign(given[4])

    def compute(x, added, *, training):
        if joined:
            return layer(*([x, added] if with_shortcut else [x]), training=training)
        y = layer(x, training=training)
        y = added + y if with_shortcut else y
        return tf.nn.relu(y) if relu else y

    @tf.function(jit_compile=True)
    def train(x, added, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, added])
            y = compute(x, added, training=True)
        wanted = [x, layer.gamma.value, layer.beta.value, added]
        none = tf.UnconnectedGradients.ZERO
        *learned, of_shortcut = tape.gradient(y, wanted, output_gradients=dy, unconnected_gradients=none)
        return (y, *learned), of_shortcut

    trained, of_shortcut = cast(Any, train)(x, added, dy)
    found = [*trained, layer.moving_mean.value, layer.moving_variance.value]
    found += [of_shortcut, compute(x, added, training=False)]
    names = (*NAMES, "gradient of shortcut", "evaluation")
    return dict(zip(names, (tf.cast(array, tf.float64).numpy() for array in found), strict=True))


def check_joined():
    rng = np.random.default_rng(0)
    given = *rng.standard_normal((3, 8, 6, 6, 4)) * 3, np.linspace(0.5, 2, 4), np.linspace(-1, 1, 4)
    for with_shortcut, relu in itertools.product((False, True), (False, True)):
        kind = {"with_shortcut": with_shortcut, "relu": relu}
        right = joined_step("float64", given, joined=False, **kind)
        for dtype, rounding in {"float64": 1e-13, "float32": 1e-5}.items():
            found = joined_step(dtype, given, joined=True, **kind)
            for name, array in right.items():
                limit = rounding * np.abs(array).max()
                where = f"{name} in {dtype}, {kind}"
                np.testing.assert_allclose(found[name], array, rtol=0, atol=limit, err_msg=where)


def check_narrow():
    """Of a layer in bfloat16, only the output and its input's gradient are rounded. A channel that is constant and has
    no bias is at zero, where ReLU has no gradient."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 16, 12, 12, 8))
    x, dy = (tf.cast(tf.cast(each, tf.bfloat16), tf.float64).numpy() for each in (x + 0.75 * np.arange(8), dy))
    given = x, x, dy, np.linspace(0.5, 2, 8), np.linspace(-0.5, 0.5, 8)
    right = joined_step("float64", given, joined=False, with_shortcut=False, relu=True)
    found = joined_step("bfloat16", given, joined=True, with_shortcut=False, relu=True)
    apart = {name: np.linalg.norm(found[name] - right[name]) / np.linalg.norm(right[name]) for name in NAMES}
    assert max(apart.pop("output"), apart.pop("gradient of x")) < 3e-3  # measured: 1.7e-3 of both
    # measured: 9e-5, because XLA on CPU devices adds up one number after the other; with sums in bfloat16 2e-3
    assert max(apart.values()) < 5e-4, apart
    constant = np.ones_like(x), x, np.ones_like(dy), np.ones(8), np.zeros(8)
    still = joined_step("bfloat16", constant, joined=True, with_shortcut=False, relu=True)
    assert not any(np.any(still[name]) for name in NAMES if name.startswith("gradient"))


def check_count():
    """XLA reads the shape of this array, and makes none of its 2**31 numbers."""

    @tf.function(jit_compile=True)
    def count():
        return batch_norm.count_of_each_channel(
            tf.broadcast_to(tf.zeros((), tf.int8), (2048, 128, 128, 64)), tf.float32
        )

    assert cast(Any, count)() == 2.0**25


if __name__ == "__main__":
    check()
    check_joined()
    check_narrow()
    check_count()
    sys.stdout.flush()
    os._exit(0)
