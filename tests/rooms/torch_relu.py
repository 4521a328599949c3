"""python torch_relu.py: `batch_norm_relu` under torch.compile, against torchvision's layers without it.

The network is in float64, traced as NCHW and as NHWC. Inductor stores activations as NHWC in both. Prints, by format,
the largest error of a gradient beside the largest gradient.
"""

import json
import sys

import torch

from torch_impl import relu
from torch_impl.models import resnet50

FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


def gradients(memory_format, settings, compiled):
    torch.manual_seed(0)
    network = resnet50.build(classes=3, width=4, layer1=2, **settings).double().to(memory_format=memory_format)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64).to(memory_format=memory_format)
    options = {"force_layout_optimization": True, **relu.compiler_options(settings)}
    run = torch.compile(network, dynamic=False, fullgraph=True, options=options) if compiled else network
    run(x).square().sum().backward()
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


if __name__ == "__main__":
    found = {}
    for name, memory_format in FORMATS.items():
        right = gradients(memory_format, {}, compiled=False)
        ours = gradients(memory_format, {"batch_norm_relu": True}, compiled=True)
        error = max(float((a - b).abs().max()) for a, b in zip(ours, right, strict=True))
        found[name] = error / max(float(each.abs().max()) for each in right)
    print(json.dumps(found))
    sys.stdout.flush()
