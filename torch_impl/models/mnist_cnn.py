"""The convolutional network of the MNIST examples."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def build(*, channels1: int, channels2: int, hidden: int, classes: int) -> nn.Sequential:
    """(batch, 1, 28, 28) to log-probabilities (batch, classes)."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, channels1, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(channels1, channels2, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(4 * 4 * channels2, hidden),
            relu3=nn.ReLU(),
            fc2=nn.Linear(hidden, classes),
            log_softmax=nn.LogSoftmax(dim=1),
        )
    )
