"""BatchNorm as a Keras layer, with torchvision's epsilon: Keras' own, or as one of two settings has it.

Keras 3 composes BatchNorm of elementwise operations and reductions, in float32 even for bfloat16 inputs. XLA fuses
these. Without XLA each is a kernel of its own that reads and writes a whole activation.

`fused_batch_norm`: TensorFlow has one kernel for forward and one for backward, which Keras 2 used.

`batch_norm_relu`: BatchNorm, the addition of a shortcut and ReLU are one operation with a gradient of its own, for XLA.
The derived gradient reads and writes activations more often than it must. Why, and what keeps XLA from doing so, is in
jax_impl/batch_norm.py: the rule is the same, and so are the programs that XLA makes of it (reports/probes/batch_norm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from keras import layers
from tensorflow.compiler.tf2xla.python import xla

EPSILON = 1e-5  # torchvision's; Keras has another default


class FusedBatchNorm(layers.BatchNormalization):
    """Keras' layer, whose training step is TensorFlow's fused kernel. Inputs are NHWC.

    The kernel takes float32 and narrower formats. Float64 and evaluations use Keras' composed form.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> Any:
        if not training or inputs.dtype == tf.float64:
            return super().call(inputs, training=training, mask=mask)
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.convert_to_tensor(self.gamma),
            offset=tf.convert_to_tensor(self.beta),
            mean=tf.zeros((0,)),  # the kernel uses running statistics only outside training
            variance=tf.zeros((0,)),
            epsilon=self.epsilon,
            is_training=True,
        )
        # The kernel divides the variance by n - 1 (for the running statistics only), Keras by n.
        count = count_of_each_channel(inputs, variance.dtype)
        move(self.moving_mean, mean, self.momentum)
        move(self.moving_variance, variance * (count - 1) / count, self.momentum)
        return outputs


class BatchNormReLU(layers.Layer):
    """Keras' BatchNormalization over all axes but the last, plus `shortcut` if one is given, and then ReLU if `relu`.

    It has the variables of Keras' layer, and trains inside XLA only.
    """

    def __init__(self, *, relu: bool, momentum: float, epsilon: float, name: str, **known: Any) -> None:
        super().__init__(name=name, **known)
        self.relu, self.momentum, self.epsilon = relu, momentum, epsilon

    def build(self, inputs_shape: Any, shortcut_shape: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        known: dict[str, Any] = {"shape": (inputs_shape[-1],), "autocast": False}  # in the parameters' format
        self.gamma = self.add_weight(name="gamma", initializer="ones", **known)
        self.beta = self.add_weight(name="beta", initializer="zeros", **known)
        known["trainable"] = False
        self.moving_mean = self.add_weight(name="moving_mean", initializer="zeros", **known)
        self.moving_variance = self.add_weight(name="moving_variance", initializer="ones", **known)

    def call(self, inputs: tf.Tensor, shortcut: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        scale, bias = (tf.convert_to_tensor(each) for each in (self.gamma, self.beta))
        if training:
            y, mean, variance = by_batch(inputs, shortcut, scale, bias, epsilon=self.epsilon, relu=self.relu)
            move(self.moving_mean, mean, self.momentum)
            move(self.moving_variance, variance, self.momentum)
            return y
        inverse = tf.math.rsqrt(tf.convert_to_tensor(self.moving_variance) + tf.constant(self.epsilon, scale.dtype))
        centered = tf.cast(inputs, scale.dtype) - tf.convert_to_tensor(self.moving_mean)
        return output(centered, inverse, scale, bias, shortcut, dtype=inputs.dtype, relu=self.relu)


def by_batch(
    x: tf.Tensor, shortcut: tf.Tensor | None, scale: tf.Tensor, bias: tf.Tensor, *, epsilon: float, relu: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The output, in the format of `x`; and mean and biased variance of the batch, which have no gradient.

    x and shortcut (..., channels), scale and bias (channels,), in float32 or float64.
    """

    @tf.custom_gradient
    def rule(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor, *shortcut: tf.Tensor) -> Any:
        wide, axes = tf.cast(x, scale.dtype), list(range(len(x.shape) - 1))
        mean, square = tf.reduce_mean(wide, axes), tf.reduce_mean(wide * wide, axes)
        variance = tf.maximum(square - mean * mean, 0)  # rounding may leave less than zero
        inverse = tf.math.rsqrt(variance + tf.constant(epsilon, variance.dtype))
        y = output(wide - mean, inverse, scale, bias, *shortcut, dtype=x.dtype, relu=relu)

        def gradients(dy: tf.Tensor, *_: Any) -> list[tf.Tensor]:
            if relu and shortcut:
                dy = behind_relu(y, dy)
            found = backward(x, dy, (mean, inverse, scale, bias), masked=relu and not shortcut)
            return [*found, *(dy for _ in shortcut)]

        return (y, mean, variance), gradients

    found: Any = rule(x, scale, bias, *([] if shortcut is None else [shortcut]))
    y, mean, variance = found
    return y, tf.stop_gradient(mean), tf.stop_gradient(variance)


def output(
    centered: tf.Tensor,
    inverse: tf.Tensor,
    scale: tf.Tensor,
    bias: tf.Tensor,
    shortcut: tf.Tensor | None = None,
    *,
    dtype: tf.DType,
    relu: bool,
) -> tf.Tensor:
    """What the layer computes from the input less its mean, and the inverse of the standard deviation."""
    y = tf.cast(affine(centered, inverse, scale, bias), dtype)
    y = y if shortcut is None else shortcut + y  # in the narrow format, or XLA would store the summands in float32
    return tf.nn.relu(y) if relu else y


def affine(centered: tf.Tensor, inverse: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return centered * (inverse * scale) + bias


def behind_relu(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    y, dy = barrier(y, dy)  # or XLA would compute y again
    return tf.where(y > 0, dy, tf.zeros_like(dy))


def barrier(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """The tensors, of which XLA then knows no longer where they come from."""
    found: Any = xla.optimization_barrier(*tensors)
    return found


def backward(x: tf.Tensor, dy: tf.Tensor, kept: Sequence[tf.Tensor], *, masked: bool) -> list[tf.Tensor]:
    """The gradients of input, scale and bias. `masked`: dy is before ReLU, whose mask is computed from the input.

    `kept`: the mean, the inverse of the standard deviation, scale and bias.
    """
    mean, inverse, scale, _ = kept

    def of_elements(x: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradient behind ReLU, and the input less its mean."""
        centered, wide = tf.cast(x, mean.dtype) - mean, tf.cast(dy, mean.dtype)
        if masked:  # a product: XLA would store a comparison instead of computing it twice
            wide *= tf.maximum(tf.sign(affine(centered, *kept[1:])), 0)
        return wide, centered

    wide, centered = of_elements(x, dy)
    axes = list(range(len(x.shape) - 1))
    total, product = tf.reduce_sum(wide, axes), tf.reduce_sum(wide * centered, axes)
    learned = [product * inverse, total]
    if masked:
        x, dy, total, product = barrier(x, dy, total, product)
        wide, centered = of_elements(x, dy)
    count = count_of_each_channel(x, mean.dtype)
    dx = inverse * scale * (wide - total / count - centered * (inverse * inverse * product / count))
    return [tf.cast(dx, x.dtype), *learned]


def count_of_each_channel(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """How many numbers each channel of `x` has. The size of `x` itself is an int32, which overflows in ResNet-50 from
    2,675 images of 224 x 224 on."""
    return tf.cast(tf.reduce_prod(tf.shape(x, tf.int64)[:-1]), dtype)


def move(average: Any, found: tf.Tensor, momentum: float) -> None:
    """Move a running average towards what was found in a batch."""
    average.assign(average * momentum + found * (1 - momentum))


def layer(*, momentum: float, synchronized: bool, settings: Mapping[str, bool]) -> Callable[..., layers.Layer]:
    """What makes a BatchNorm layer of a given `name`.

    `momentum`: what its running statistics keep of themselves in an update. `synchronized`: it computes its statistics
    over the samples of all replicas, by its own all-reduces. `settings`: those of the job.
    """
    known = {"momentum": momentum, "epsilon": EPSILON}
    if settings.get("batch_norm_relu"):
        assert not synchronized, "the rule has no all-reduces"
        return partial(BatchNormReLU, **known)
    if settings.get("fused_batch_norm"):
        assert not synchronized, "the fused kernel cannot communicate between its two passes"
        return partial(FusedBatchNorm, **known)
    return partial(layers.BatchNormalization, **known, synchronized=synchronized)
