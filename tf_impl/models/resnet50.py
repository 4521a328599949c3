"""ResNet-50 in Keras layers, with torchvision's names, paddings and strides."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

EXPANSION = 4


def build(*, classes: int, width: int, **depths: int) -> keras.Model:
    """(batch, height, width, 3) to logits (batch, classes). `depths`: bottlenecks in each of the four stages."""

    def conv(x: Any, name: str, channels: int, kernel: int, stride: int = 1) -> Any:
        if kernel > 1:
            x = layers.ZeroPadding2D(kernel // 2)(x)  # "same" pads one side more where the stride is 2
        return layers.Conv2D(channels, kernel, stride, use_bias=False, name=name)(x)

    def norm(x: Any, name: str) -> Any:
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)  # Keras' defaults differ

    inputs = keras.Input((None, None, 3))
    x = layers.ReLU()(norm(conv(inputs, "conv1", width, 7, 2), "bn1"))
    x = layers.MaxPool2D(3, 2)(layers.ZeroPadding2D(1)(x))  # zero is as good as minus infinity behind a ReLU
    channels = width
    for stage, depth in enumerate(depths.values(), 1):
        planes = width * 2 ** (stage - 1)
        for index in range(depth):
            name = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            y = layers.ReLU()(norm(conv(x, f"{name}.conv1", planes, 1), f"{name}.bn1"))
            y = layers.ReLU()(norm(conv(y, f"{name}.conv2", planes, 3, stride), f"{name}.bn2"))
            y = norm(conv(y, f"{name}.conv3", EXPANSION * planes, 1), f"{name}.bn3")
            if stride != 1 or channels != EXPANSION * planes:
                x = norm(conv(x, f"{name}.downsample.0", EXPANSION * planes, 1, stride), f"{name}.downsample.1")
            channels = EXPANSION * planes
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.Dense(classes, name="fc")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Activation("linear", dtype=keras.config.floatx())(x))
