"""The networks. Each is an nn.Sequential: an ordered list of blocks, so that strategies can cut it between any two."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn

from harness.spec import of_layers, workload_packages
from harness.workloads import Workload
from torch_impl import weights

SAMPLES = 2  # whose outputs are looked at


def build(workload: Workload, *, settings: Mapping[str, bool] = MappingProxyType({})) -> nn.Sequential:
    """The network of `workload`, with PyTorch's own initial weights. `settings`: those of the job.

    That of a package of one's own may be any module, as long as no strategy cuts it. Raises ValueError if its
    parameters or outputs are not those of its workload.
    """
    module = workload_packages.model_module(workload.name, "torch", ours_in=__name__)
    model = importlib.import_module(module).build(**workload.dims, **of_layers(settings))
    if not workload_packages.is_ours(workload.name):
        _check(model, workload)
    return model


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The model's blocks by name, in order: its children, and instead of a child that is a Sequential its children.

    A model that is no Sequential is a single block: nothing says in which order it calls its children.
    """
    if not isinstance(model, nn.Sequential):
        return {"model": model}
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            found |= {f"{name}.{inner}": block for inner, block in child.named_children()}
        else:
            found[name] = child
    return found


def _check(model: nn.Module, workload: Workload) -> None:
    workload_packages.check_blocks(workload.name, "torch", blocks=tuple(blocks(model)), expected=workload.blocks)
    found = {name: weights.canonical_shape(name, parameter.shape) for name, parameter in model.named_parameters()}
    expected = {parameter.name: parameter.shape for parameter in workload.parameters()}
    workload_packages.check_model(workload.name, "torch", parameters=found, expected=expected)
    x = next(model.parameters()).new_zeros(SAMPLES, *workload.input_shape)  # on "meta", if the model is there
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2)
    was_training = model.training
    with torch.no_grad():
        outputs = model.eval()(x)
    model.train(was_training)
    shape = tuple(outputs.shape[1:])
    workload_packages.check_outputs(workload.name, "torch", outputs=shape, expected=workload.output_shape)
