"""ResNet-50 in Flax linen, with torchvision's names, paddings and strides."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax.typing import DTypeLike

EXPANSION = 4


class Model(nn.Module):
    """(batch, height, width, 3) to logits (batch, classes)."""

    classes: int
    width: int
    depth1: int
    depth2: int
    depth3: int
    depth4: int
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def conv(x: jax.Array, name: str, channels: int, kernel: int, stride: int = 1) -> jax.Array:
            # padding spelled out: "SAME" pads one side more where the stride is 2
            around = [(kernel // 2, kernel // 2)] * 2
            layer = nn.Conv(channels, (kernel, kernel), stride, padding=around, use_bias=False, name=name, **kinds)
            return layer(x)

        def norm(x: jax.Array, name: str) -> jax.Array:
            # Flax's momentum of 0.9 is torch's of 0.1
            return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, name=name, **kinds)(x)

        x = nn.relu(norm(conv(x, "conv1", self.width, 7, 2), "bn1"))
        around: Any = ((1, 1), (1, 1))  # padded with minus infinity
        x = nn.max_pool(x, (3, 3), (2, 2), padding=around)
        for stage, depth in enumerate((self.depth1, self.depth2, self.depth3, self.depth4), 1):
            planes = self.width * 2 ** (stage - 1)
            for index in range(depth):
                name = f"layer{stage}.{index}"
                stride = 2 if stage > 1 and index == 0 else 1
                y = nn.relu(norm(conv(x, f"{name}.conv1", planes, 1), f"{name}.bn1"))
                y = nn.relu(norm(conv(y, f"{name}.conv2", planes, 3, stride), f"{name}.bn2"))
                y = norm(conv(y, f"{name}.conv3", EXPANSION * planes, 1), f"{name}.bn3")
                if x.shape != y.shape:
                    x = conv(x, f"{name}.downsample.0", EXPANSION * planes, 1, stride)
                    x = norm(x, f"{name}.downsample.1")
                x = nn.relu(x + y)
        x = nn.Dense(self.classes, name="fc", **kinds)(x.mean((1, 2)))
        return x.astype(self.param_dtype)
