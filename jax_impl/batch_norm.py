"""BatchNorm, the addition of a shortcut and ReLU as one operation: the setting `batch_norm_relu`.

Flax's layers do the same, and JAX derives their gradient. For that, XLA reads and writes activations more often than
it must:

- The derived gradient of BatchNorm has three sums over the batch, which read its input or its output's gradient again.
  Two suffice: of dy, and of dy times the normalized input (Ioffe and Szegedy, 2015, section 3).
- dy is stored, because ReLU's mask is a comparison, which XLA does not compute twice. It is cheaper to compute the mask
  again from the input, which must be read anyway, for the sums and once more for dx.
- Behind a shortcut dy is needed in memory, for the shortcut. But XLA recomputes its mask from both summands, which
  takes one array more than the mask of the output.

So the rule below says what is read, and barriers keep XLA from joining what is to be computed twice. In the program
for ResNet-50, 61.1 GB read and written outside of convolutions become 53.5 GB (reports/probes/batch_norm).

It also rounds less: in bf16, JAX's gradient of Flax's layer is the sum of two that are rounded to bfloat16. The second
is the small correction that makes the mean over the batch zero, and most of it is lost in that addition. Here, as in
torch's and Keras' layers, one gradient is rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

Statistics = tuple[jax.Array, jax.Array]
Residuals = tuple[jax.Array, jax.Array | None, jax.Array, jax.Array, jax.Array, jax.Array]


class BatchNormReLU(nn.Module, kw_only=True):
    """flax.linen.BatchNorm over all axes but the last, plus `shortcut` if one is given, and then ReLU if `relu`.

    Fields and variables are those of Flax's layer.
    """

    use_running_average: bool
    momentum: float
    epsilon: float
    dtype: DTypeLike
    param_dtype: DTypeLike
    axis_name: str | None = None
    relu: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, shortcut: jax.Array | None = None) -> jax.Array:
        shape, wide = (x.shape[-1],), jnp.promote_types(self.param_dtype, jnp.float32)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, wide)
        variance = self.variable("batch_stats", "var", jnp.ones, shape, wide)
        scale = self.param("scale", nn.initializers.ones, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        x = x.astype(self.dtype)
        if self.use_running_average:
            inverse = jax.lax.rsqrt(variance.value + self.epsilon)
            return output(x, shortcut, mean.value, inverse, scale, bias, relu=self.relu)
        form = Form(self.epsilon, None if self.is_initializing() else self.axis_name, self.relu)
        found: Any = by_batch(form, x, shortcut, scale, bias)
        y, statistics = found
        if not self.is_initializing():
            for average, value in zip((mean, variance), statistics, strict=True):
                average.value = self.momentum * average.value + (1 - self.momentum) * value
        return y


class Form(NamedTuple):
    """What is fixed when the program is traced. With `axis_name`, statistics are those of all samples of that axis."""

    epsilon: float
    axis_name: str | None
    relu: bool


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def by_batch(
    form: Form, x: jax.Array, shortcut: jax.Array | None, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, Statistics]:
    """The output, in the format of `x`; and mean and biased variance of the batch, which have no gradient.

    x and shortcut (..., channels), scale and bias (channels,). Inside shard_map, all must vary over the same axes.
    """
    return forward(form, x, shortcut, scale, bias)[0]


def forward(
    form: Form, x: jax.Array, shortcut: jax.Array | None, scale: jax.Array, bias: jax.Array
) -> tuple[tuple[jax.Array, Statistics], Residuals]:
    wide = widened(x)
    mean, square = over_axis(form.axis_name, *over_batch(jnp.mean, wide, wide * wide))
    variance = jnp.maximum(0.0, square - mean * mean)  # rounding may leave less than zero, as in Flax
    inverse = jax.lax.rsqrt(variance + form.epsilon)
    y = output(x, shortcut, mean, inverse, scale, bias, relu=form.relu)
    return (y, (mean, variance)), (x, None if shortcut is None else y, mean, inverse, scale, bias)


def output(
    x: jax.Array,
    shortcut: jax.Array | None,
    mean: jax.Array,
    inverse: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    relu: bool,
) -> jax.Array:
    """What the layer computes from these statistics, in the format of `x`. `inverse`: of the standard deviation."""
    y = affine(widened(x) - mean, inverse, scale, bias).astype(x.dtype)
    y = y if shortcut is None else shortcut + y  # in the narrow format, or XLA would store the summands in float32
    return nn.relu(y) if relu else y


def affine(centered: jax.Array, inverse: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return centered * (inverse * scale) + bias


def backward(form: Form, kept: Residuals, given: Any) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
    x, y, mean, inverse, scale, bias = kept
    dy, _ = given
    if form.relu and y is not None:
        y, dy = jax.lax.optimization_barrier((y, dy))  # or XLA would compute y again
        dy = jnp.where(y > 0, dy, jnp.zeros((), dy.dtype))
    masked = form.relu and y is None

    def of_elements(x: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The gradient behind ReLU, and the input less its mean."""
        centered, wide = widened(x) - mean, widened(dy)
        if masked:  # a product: XLA would store a comparison instead of computing it twice
            wide = wide * jnp.maximum(jnp.sign(affine(centered, inverse, scale, bias)), 0.0)
        return wide, centered

    wide, centered = of_elements(x, dy)
    sums = total, product = over_batch(jnp.sum, wide, wide * centered)
    if masked:
        x, dy, *sums = jax.lax.optimization_barrier((x, dy, *sums))
        wide, centered = of_elements(x, dy)
    mean_dy, mean_product = over_axis(form.axis_name, *(each / (x.size // x.shape[-1]) for each in sums))
    dx = inverse * scale * (wide - mean_dy - centered * (inverse * inverse * mean_product))
    learned = (product * inverse).astype(scale.dtype), total.astype(bias.dtype)
    return dx.astype(x.dtype), None if y is None else dy, *learned


by_batch.defvjp(forward, backward)


def widened(x: jax.Array) -> jax.Array:
    """`x` in float32, or in its own format if that is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def over_batch(reduce: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Each reduced to its last axis."""
    return tuple(reduce(each, tuple(range(each.ndim - 1))) for each in arrays)


def over_axis(axis_name: str | None, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Means over a mapped axis, if one is given."""
    return arrays if axis_name is None else jax.lax.pmean(arrays, axis_name)
