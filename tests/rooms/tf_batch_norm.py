"""python tf_batch_norm.py: TensorFlow's fused kernel against the BatchNorm that Keras composes.

All checks are assertions: a process that returns 0 has passed them. Float32 is held to the composed form in float64.
The errors of either form were below 4e-6 of the largest value. Bessel's correction would be 3e-3 of the variance.
"""

import os
import sys
from typing import Any

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
    layer = batch_norm.layer(momentum=0.9, synchronized=False, fused=fused)(name="norm", dtype=policy)
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


if __name__ == "__main__":
    check()
    sys.stdout.flush()
    os._exit(0)
