"""ResNet-50 of torchvision's own Bottleneck, as an ordered list of blocks with torchvision's names."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, conv1x1

from torch_impl import first_layers
from torch_impl.relu import ReLUByInput, ReLUByOutput


class BottleneckWithOtherReLU(Bottleneck):
    """torchvision's, with the setting `batch_norm_relu`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        relu = ReLUByInput()
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x))
        return ReLUByOutput.apply(y)  # pyright: ignore[reportReturnType]


def build(
    *,
    classes: int,
    width: int,
    space_to_depth: bool = False,
    gathered_pooling: bool = False,
    batch_norm_relu: bool = False,
    **depths: int,
) -> nn.Sequential:
    """(batch, 3, height, width) to logits (batch, classes). `depths`: the number of bottlenecks in each layer."""
    block = BottleneckWithOtherReLU if batch_norm_relu else Bottleneck
    first_convolution = first_layers.Conv2d if space_to_depth else nn.Conv2d
    max_pooling = first_layers.MaxPool2d if gathered_pooling else nn.MaxPool2d
    model = nn.Sequential(
        OrderedDict(
            conv1=first_convolution(3, width, 7, stride=2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(width),
            relu=ReLUByInput() if batch_norm_relu else nn.ReLU(inplace=True),
            maxpool=max_pooling(3, stride=2, padding=1),
        )
    )
    channels = width
    for stage, depth in enumerate(depths.values(), 1):
        planes = width * 2 ** (stage - 1)
        bottlenecks = []
        for index in range(depth):
            stride = 2 if stage > 1 and index == 0 else 1
            downsample = None
            if stride != 1 or channels != planes * Bottleneck.expansion:
                outputs = planes * Bottleneck.expansion
                downsample = nn.Sequential(conv1x1(channels, outputs, stride), nn.BatchNorm2d(outputs))
            bottlenecks.append(block(channels, planes, stride, downsample))
            channels = planes * Bottleneck.expansion
        model.add_module(f"layer{stage}", nn.Sequential(*bottlenecks))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d((1, 1)))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(channels, classes))
    return model
