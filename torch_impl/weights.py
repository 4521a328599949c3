"""Canonical weights to PyTorch's layout and back: kernels HWIO <-> OIHW, linear (in, out) <-> (out, in)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from harness.contract import Arrays
from harness.layers import Parameter
from harness.workloads import Workload


def load(model: nn.Module, workload: Workload, params: Arrays) -> None:
    """Copy canonical `params` into `model`. Raises RuntimeError where names or shapes do not match."""
    state = {spec.name: torch.from_numpy(_to_torch(spec, params[spec.name])) for spec in workload.parameters()}
    buffers = dict(model.named_buffers())  # running statistics: they begin as PyTorch makes them
    model.load_state_dict(buffers | state, strict=True)


def parameters(model: nn.Module, workload: Workload) -> Arrays:
    """The model's parameters, canonical."""
    return canonical(workload, {name: parameter.data for name, parameter in model.named_parameters()})


def gradients(model: nn.Module, workload: Workload, *, ranks: int = 1) -> Arrays:
    """The model's gradients, canonical; a parameter that got none counts as zero.

    With `ranks`, their mean over so many ranks, which all call this together.
    """
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    if ranks > 1:
        for gradient in found.values():
            dist.all_reduce(gradient)
            gradient /= ranks
    return canonical(workload, found)


def canonical(workload: Workload, tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Tensors by the model's names, canonical. Those cut over ranks are put together: a collective of all ranks."""
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {spec.name: _from_torch(spec, whole[spec.name].detach().cpu().numpy()) for spec in workload.parameters()}


def _to_torch(spec: Parameter, array: np.ndarray) -> np.ndarray:
    if len(spec.shape) == 4:
        array = array.transpose(3, 2, 0, 1)
    elif spec.flattened:  # torch flattens (channel, height, width), so the rows change places
        array = array.reshape(*spec.flattened, -1).transpose(3, 2, 0, 1).reshape(spec.shape[1], -1)
    elif len(spec.shape) == 2:
        array = array.T
    return np.ascontiguousarray(array)


def _from_torch(spec: Parameter, array: np.ndarray) -> np.ndarray:
    if len(spec.shape) == 4:
        array = array.transpose(2, 3, 1, 0)
    elif spec.flattened:
        height, width, channels = spec.flattened
        array = array.reshape(-1, channels, height, width).transpose(2, 3, 1, 0).reshape(spec.shape)
    elif len(spec.shape) == 2:
        array = array.T
    return np.array(array)  # a copy: the tensor lives on
