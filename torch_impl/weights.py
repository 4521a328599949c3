"""Canonical weights to PyTorch's layout and back: kernels HWIO <-> OIHW, linear (in, out) <-> (out, in)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from harness.contract import Arrays
from harness.layers import Parameter
from harness.workloads import Workload

STATISTICS = {".running_mean": ".mean", ".running_var": ".var"}  # of BatchNorm: the ends of torch's names and of ours


def load(model: nn.Module, workload: Workload, params: Arrays) -> None:
    """Copy canonical `params` into `model`. Raises RuntimeError where names or shapes do not match."""
    held = dict(model.named_parameters())
    state = {spec.name: torch.from_numpy(_to_torch(spec, params[spec.name])) for spec in workload.parameters()}
    state = {name: like(held[name], tensor) if name in held else tensor for name, tensor in state.items()}
    buffers = dict(model.named_buffers())  # running statistics stay as they are
    model.load_state_dict(buffers | state, strict=True)


def like(held: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every rank has, as `held` is kept: cut over the ranks, or nowhere (on "meta"), or whole."""
    if held.is_meta:
        return held
    if isinstance(held, DTensor):
        # no source rank: every rank cuts its part out of its own, and nothing crosses
        return distribute_tensor(tensor.to(held.device), held.device_mesh, held.placements, src_data_rank=None)
    return tensor


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """BatchNorm's running statistics by the names of a state. (Its count of batches has no part in them here.)"""
    return {
        f"running/{name.removesuffix(end)}{ours}": buffer
        for name, buffer in model.named_buffers()
        for end, ours in STATISTICS.items()
        if name.endswith(end)
    }


def parameters(model: nn.Module, workload: Workload) -> Arrays:
    """The model's parameters, canonical."""
    return canonical(workload, whole(dict(model.named_parameters())))


def gradients(model: nn.Module, *, ranks: int = 1) -> dict[str, torch.Tensor]:
    """The model's gradients; a parameter that got none counts as zero.

    With `ranks`, their mean over so many ranks, which all call this together.
    """
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    if ranks > 1:
        for gradient in found.values():
            dist.all_reduce(gradient)
            gradient /= ranks
    return found


def whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the host. Tensors cut over ranks are put together: a collective of all ranks."""
    together = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in together.items()}


def canonical(workload: Workload, tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Whole tensors by the model's names, canonical."""
    return {spec.name: _from_torch(spec, tensors[spec.name].numpy()) for spec in workload.parameters()}


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
