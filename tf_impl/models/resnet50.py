"""ResNet-50 in Keras layers, with torchvision's names, paddings and strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from keras import layers

from tf_impl import first_layers
from tf_impl.models import Blocks

EXPANSION = 4


def blocks(
    *,
    classes: int,
    width: int,
    batch_norm: Callable[..., layers.Layer],
    space_to_depth: bool = False,
    gathered_pooling: bool = False,
    batch_norm_relu: bool = False,
    **depths: int,
) -> Blocks:
    """(batch, height, width, 3) to logits (batch, classes).

    `batch_norm`: makes a BatchNorm layer of a given name; with `batch_norm_relu` the layer also adds a shortcut and
    has ReLU. `depths`: bottlenecks in each stage.
    """

    def conv(x: Any, name: str, channels: int, kernel: int, stride: int = 1) -> Any:
        padding = "same"
        if kernel > 1 and stride > 1:  # "same" would pad one side more than the other
            x, padding = layers.ZeroPadding2D(kernel // 2)(x), "valid"
        return layers.Conv2D(channels, kernel, stride, padding, use_bias=False, name=name)(x)

    norm = partial(normalized, layer=batch_norm, joined=batch_norm_relu)

    def bottleneck(x: Any, name: str, planes: int, stride: int) -> Any:
        y = norm(conv(x, f"{name}.conv1", planes, 1), f"{name}.bn1")
        y = norm(conv(y, f"{name}.conv2", planes, 3, stride), f"{name}.bn2")
        y = conv(y, f"{name}.conv3", EXPANSION * planes, 1)
        if stride != 1 or x.shape[-1] != EXPANSION * planes:
            x = conv(x, f"{name}.downsample.0", EXPANSION * planes, 1, stride)
            x = norm(x, f"{name}.downsample.1", relu=False)
        return norm(y, f"{name}.bn3", x)

    def max_pool(x: Any) -> Any:
        return layers.MaxPool2D(3, 2)(layers.ZeroPadding2D(1)(x))  # no ReLU output is below zero

    first_conv = first_layers.conv if space_to_depth else partial(conv, stride=2)
    found: Blocks = {
        "conv1": partial(first_conv, name="conv1", channels=width, kernel=7),
        "bn1": partial(norm, name="bn1"),
        "relu": lambda x: x,  # already behind BatchNorm
        "maxpool": first_layers.MaxPool2D(3, 2, "same") if gathered_pooling else max_pool,
    }
    for stage, depth in enumerate(depths.values(), 1):
        for index in range(depth):
            name, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            found[name] = partial(bottleneck, name=name, planes=width * 2 ** (stage - 1), stride=stride)
    pooled = {"avgpool": layers.GlobalAveragePooling2D(keepdims=True), "flatten": layers.Flatten()}
    return found | pooled | {"fc": layers.Dense(classes, name="fc")}


def normalized(
    x: Any,
    name: str,
    shortcut: Any = None,
    *,
    layer: Callable[..., layers.Layer],
    joined: bool,
    relu: bool = True,
) -> Any:
    """BatchNorm, plus the shortcut if there is one, and then ReLU. `joined`: the layer does all of it."""
    if joined:
        return layer(name=name, relu=relu)(*([x] if shortcut is None else [x, shortcut]))
    y = layer(name=name)(x)
    y = y if shortcut is None else layers.Add()([shortcut, y])
    return layers.ReLU()(y) if relu else y
