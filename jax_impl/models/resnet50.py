"""ResNet-50 in Flax linen, with torchvision's names, paddings and strides."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from flax import linen as nn

from jax_impl import first_layers
from jax_impl.batch_norm import BatchNormReLU
from jax_impl.models import Block, Network

EXPANSION = 4


class Model(Network):
    """(batch, height, width, 3) to logits (batch, classes)."""

    classes: int
    width: int
    depth1: int
    depth2: int
    depth3: int
    depth4: int = 0  # the size `tiny` has three stages
    space_to_depth: bool = False
    gathered_pooling: bool = False
    batch_norm_relu: bool = False

    def blocks(self) -> dict[str, Block]:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def conv(name: str, channels: int, kernel: int, stride: int = 1, **more: Any) -> nn.Conv:
            # explicit padding, because "SAME" pads one side more if the stride is 2
            around = [(kernel // 2, kernel // 2)] * 2
            layer = self.layer(nn.Conv)
            known = kinds | {"padding": around, "use_bias": False, "name": name} | more
            return layer(channels, (kernel, kernel), stride, **known)

        def bottleneck(name: str, planes: int, stride: int) -> Block:
            def block(x: jax.Array) -> jax.Array:
                y = self.norm(f"{name}.bn1", conv(f"{name}.conv1", planes, 1)(x))
                y = self.norm(f"{name}.bn2", conv(f"{name}.conv2", planes, 3, stride)(y))
                y = conv(f"{name}.conv3", EXPANSION * planes, 1)(y)
                if x.shape != y.shape:
                    x = conv(f"{name}.downsample.0", EXPANSION * planes, 1, stride)(x)
                    x = self.norm(f"{name}.downsample.1", x, relu=False)
                return self.norm(f"{name}.bn3", y, x)

            return block

        by_blocks = {"conv_general_dilated": first_layers.conv_general_dilated} if self.space_to_depth else {}
        around: Any = ((1, 1), (1, 1))  # max_pool pads with minus infinity
        max_pool = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=around)
        found: dict[str, Block] = {
            "conv1": conv("conv1", self.width, 7, 2, **by_blocks),
            "bn1": partial(self.norm, "bn1"),
            "relu": lambda x: x,  # already behind BatchNorm
            "maxpool": first_layers.max_pool if self.gathered_pooling else max_pool,
        }
        for stage, depth in enumerate((self.depth1, self.depth2, self.depth3, self.depth4), 1):
            for index in range(depth):
                stride = 2 if stage > 1 and index == 0 else 1
                name = f"layer{stage}.{index}"
                found[name] = bottleneck(name, self.width * 2 ** (stage - 1), stride)
        fc = self.layer(nn.Dense)(self.classes, name="fc", **kinds)
        return found | {
            "avgpool": lambda x: x.mean((1, 2)),
            "flatten": lambda x: x,  # after the mean there is nothing to flatten
            "fc": lambda x: fc(x).astype(self.param_dtype),
        }

    def norm(self, name: str, x: jax.Array, shortcut: jax.Array | None = None, *, relu: bool = True) -> jax.Array:
        """BatchNorm, plus the shortcut if there is one, and then ReLU."""
        known: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype, "axis_name": self.axis_name}
        known |= {"use_running_average": self.inference, "momentum": self.momentum, "epsilon": 1e-5, "name": name}
        if self.batch_norm_relu:
            return self.layer(BatchNormReLU)(relu=relu, **known)(x, shortcut)
        y = self.layer(nn.BatchNorm)(**known)(x)
        y = y if shortcut is None else shortcut + y
        return nn.relu(y) if relu else y
