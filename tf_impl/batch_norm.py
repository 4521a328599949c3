"""BatchNorm as a Keras layer, with torchvision's epsilon: Keras' own, or by TensorFlow's fused kernel.

Keras 3 composes BatchNorm of elementwise operations and reductions, in float32 even for bfloat16 inputs. XLA fuses
these. Without XLA each is a kernel of its own that reads and writes a whole activation. TensorFlow has one kernel for
forward and one for backward, which Keras 2 used. The setting `fused_batch_norm` chooses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from keras import layers

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
        count = tf.cast(tf.size(inputs) / tf.shape(inputs)[-1], variance.dtype)
        self._move(self.moving_mean, mean)
        self._move(self.moving_variance, variance * (count - 1) / count)
        return outputs

    def _move(self, average: Any, found: tf.Tensor) -> None:
        """Move a running average towards what was found in a batch."""
        average.assign(average * self.momentum + found * (1 - self.momentum))


def layer(*, momentum: float, synchronized: bool, fused: bool) -> Callable[..., layers.Layer]:
    """What makes a BatchNorm layer of a given `name`.

    `momentum`: what its running statistics keep of themselves in an update. `synchronized`: it computes its statistics
    over the samples of all replicas, by its own all-reduces. `fused`: the setting `fused_batch_norm`.
    """
    if fused:
        assert not synchronized, "the fused kernel cannot communicate between its two passes"
        return partial(FusedBatchNorm, momentum=momentum, epsilon=EPSILON)
    return partial(layers.BatchNormalization, momentum=momentum, epsilon=EPSILON, synchronized=synchronized)
