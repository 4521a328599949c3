"""Canonical weights to PyTorch's layout and back: kernels HWIO <-> OIHW, linear weights (in, out) <-> (out, in)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from harness.contract import Arrays
from harness.layers import Parameter
from harness.workloads import Workload

KERNEL = (2, 3, 1, 0)  # OIHW to HWIO
STATISTICS = {".running_mean": ".mean", ".running_var": ".var"}  # BatchNorm's: torch's suffix, canonical suffix


def load(model: nn.Module, workload: Workload, params: Arrays) -> None:
    """Copy canonical `params` into `model`. Raises RuntimeError if names or shapes do not match."""
    held = dict(model.named_parameters())
    state = {spec.name: torch.from_numpy(_to_torch(spec, params[spec.name])) for spec in workload.parameters()}
    state = {name: like(held[name], tensor) if name in held else tensor for name, tensor in state.items()}
    buffers = dict(model.named_buffers())  # running statistics: left as they are
    model.load_state_dict(buffers | state, strict=True)


def like(held: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A whole tensor, which every rank has, in the form of `held`: sharded over the ranks, on "meta", or whole."""
    if held.is_meta:
        return held
    if isinstance(held, DTensor):
        # No source rank: every rank cuts its shard out of its own copy, and nothing is sent. One tensor at a time is
        # whole on the device.
        return distribute_tensor(
            tensor.to(held.device, held.dtype), held.device_mesh, held.placements, src_data_rank=None
        )
    return tensor


def reset_statistics(model: nn.Module) -> None:
    """BatchNorm's running statistics as they begin, in a model that got memory without values."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            module.reset_running_stats()


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """BatchNorm's running statistics by their names in a state. Its count of batches is not used here."""
    return {
        f"running/{name.removesuffix(end)}{ours}": buffer
        for name, buffer in model.named_buffers()
        for end, ours in STATISTICS.items()
        if name.endswith(end)
    }


def parameters(model: nn.Module, workload: Workload) -> Arrays:
    """The model's parameters, canonical."""
    return canonical(workload, to_host(dict(model.named_parameters())))


def to_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the host. Sharded tensors are gathered, which is a collective."""
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in whole.items()}


def canonical(workload: Workload, tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """The canonical form of whole tensors by torch's names."""
    return {spec.name: from_torch(spec, tensors[spec.name].numpy()) for spec in workload.parameters()}


def canonical_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The canonical shape of a tensor of torch's."""
    if _is_of_a_layer(name) and len(shape) == 4:
        return tuple(shape[axis] for axis in KERNEL)
    return tuple(reversed(shape)) if _is_of_a_layer(name) and len(shape) == 2 else tuple(shape)


def _is_of_a_layer(name: str) -> bool:
    """Whether a tensor has the layout of a layer's weights. Parameters with names of their own are as they are."""
    return name.rpartition(".")[2] == "weight"


def _to_torch(spec: Parameter, array: np.ndarray) -> np.ndarray:
    if not _is_of_a_layer(spec.name):
        return np.ascontiguousarray(array)
    if len(spec.shape) == 4:
        array = array.transpose(3, 2, 0, 1)
    elif spec.flattened:  # torch flattens (channel, height, width), so rows are permuted
        array = array.reshape(*spec.flattened, -1).transpose(3, 2, 0, 1).reshape(spec.shape[1], -1)
    elif len(spec.shape) == 2:
        array = array.T
    return np.ascontiguousarray(array)


def from_torch(spec: Parameter, array: np.ndarray) -> np.ndarray:
    """A canonical copy of an array in torch's layout."""
    if not _is_of_a_layer(spec.name):
        return np.array(array)
    if len(spec.shape) == 4:
        array = array.transpose(KERNEL)
    elif spec.flattened:
        height, width, channels = spec.flattened
        array = array.reshape(-1, channels, height, width).transpose(2, 3, 1, 0).reshape(spec.shape)
    elif len(spec.shape) == 2:
        array = array.T
    return np.array(array)  # a copy: the tensor lives on
