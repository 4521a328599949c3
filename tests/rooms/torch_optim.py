"""python torch_optim.py: what optimizers need of gradients and of their own state. Prints one line of JSON.

`wrong`, `error`: of AdamW's updates in float64 with its step count on the device, where CUDA graphs need it, as torch
makes it and as the suite does. `strides`: of a gradient and its parameter, after pipelining.lay_out_gradients.
"""

import json
from importlib import import_module
from typing import Any

import torch
from torch import nn

from torch_impl import optim, pipelining

# torch allows a step count on the device for GPUs only, but its formulas are the same here
adam: Any = import_module("torch.optim.adam")
adam._get_capturable_supported_devices = lambda *_, **__: ["cpu"]
torch.manual_seed(0)
GRADIENTS = torch.randn(5, 40, dtype=torch.float64)


def updated(*, on_device: bool, in_float64: bool = False) -> torch.Tensor:
    weight = nn.Parameter(torch.zeros(40, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], foreach=True, capturable=on_device)
    if in_float64:
        optim.count_in_float64(optimizer)
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


right = updated(on_device=False)
errors = [updated(on_device=True, in_float64=known) for known in (False, True)]
wrong, error = (float((found - right).abs().max() / right.abs().max()) for found in errors)

kernel = nn.Parameter(torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last))
gradient = torch.randn(4, 3, 5, 5)
kernel.grad = gradient.clone()
without = nn.Parameter(torch.zeros(3))
pipelining.lay_out_gradients([kernel, without])
assert without.grad is None and kernel.grad is not None and torch.equal(kernel.grad, gradient)
print(json.dumps({"wrong": wrong, "error": error, "strides": [kernel.grad.stride(), kernel.stride()]}))
