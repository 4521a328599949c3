"""What this process's devices hold, read from the tensors as they lie.

The program's own `export` may gather, average or broadcast first. Nothing here communicates, and nothing is taken from
what the program says about itself: a tensor's device and its local shard are torch's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from harness.contract import Arrays, Held, Observed
from harness.layers import Parameter
from harness.spec import DeviceShare
from torch_impl import stages, watching, weights
from torch_impl.placement import Batch
from torch_impl.stages import StagedProgram
from torch_impl.strategies.fsdp import FSDP
from torch_impl.strategies.pipeline_schedules import PipelineSchedules
from torch_impl.watching import Watched


def parameters(program: Any) -> list[Held]:
    """The parameters that the optimizer updates, on each device that holds any of them.

    For async_sgd these are the shared ones. A rank's own copy may be older.
    """
    workload = program.job.workload
    specs = {spec.name: spec for spec in workload.parameters()}
    found: dict[str, tuple[Arrays, dict[str, tuple[int, ...]]]] = {}
    for name, tensor in program.trained.named_parameters():
        if tensor.is_meta:  # another rank's stage
            continue
        local, start = local_part(tensor)
        arrays, starts = found.setdefault(str(local.device), ({}, {}))
        arrays[name] = canonical_part(specs[name], local)
        if start is not None:
            starts[name] = (0,) * (len(specs[name].shape) - 1) + (start,)
    return [Held(device=device, arrays=arrays, starts=starts) for device, (arrays, starts) in found.items()]


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    """The part of a tensor that this process holds, and its first row; no row if it holds the whole tensor.

    fully_shard cuts along dim 0, in the parts of torch.chunk.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach(), None
    detached = tensor.detach()
    assert isinstance(detached, DTensor)
    local = detached.to_local()
    (placement,) = tensor.placements
    if not isinstance(placement, Shard):
        return local, None
    rows, ranks = tensor.shape[0], tensor.device_mesh.size()
    return local, min(tensor.device_mesh.get_local_rank() * -(-rows // ranks), rows)


def canonical_part(spec: Parameter, local: torch.Tensor) -> Any:
    """Some rows of a tensor in canonical layout: torch's dim 0 is the last canonical axis."""
    part = replace(spec, shape=(*spec.shape[:-1], local.shape[0]))
    return weights.from_torch(part, local.to("cpu", copy=True).numpy())


def observe(program: Any, batches: Sequence[list[Batch]]) -> Observed:
    """Make one step on each of these batches, and look at the devices after them."""
    modules = watchable(program)
    watched = watching.watch(program, batches, modules)
    steps = len(batches)
    if isinstance(program, StagedProgram):
        rows = of_stages(program, watched, batches[0], list(modules))
        crossed = {"send": sum(watched.between[name] for name in entered_from_another(program, modules)) / steps}
        return Observed(devices=tuple(rows), crossed=crossed, steps=steps)
    own = {name: list(modules) for name in watched.rows} | {str(program.device): list(modules)}
    rows = [of_device(program, device, names, watched, batches[0]) for device, names in own.items()]
    if program.trained is not program.model and program.job.world.rank == 0:
        rows.append(of_shared_memory(program))
    # nn.DataParallel copies between devices without torch.distributed
    alone = isinstance(getattr(program, "network", None), nn.DataParallel)
    crossed = None if alone else {kind: size / steps for kind, size in watched.crossed.items()}
    rows.sort(key=lambda row: (row.server, row.device))
    return Observed(devices=tuple(rows), crossed=crossed, steps=steps)


def watchable(program: Any) -> dict[str, nn.Module]:
    """The modules that every sample of this process passes through: network blocks.

    In a compiled network nobody calls the blocks, but the step calls the compiled network, or each compiled stage.
    """
    whole = program.job.settings.get("compile", False)
    if whole and isinstance(program, FSDP):  # its hooks stay outside of what is compiled
        return {name or "network": each for name, each in program.model.named_modules() if _is_unit(each)}
    if whole and isinstance(program, StagedProgram):
        return {f"stage {index}": network for index, network in enumerate(program.networks)}
    if whole and isinstance(program, PipelineSchedules):
        return {f"stage {index}": stage for index, stage in program.stages.items()}
    if whole:
        return {"network": program.network}
    blocks = blocks_of(program)
    if isinstance(program, StagedProgram):
        return blocks  # a stage may begin with a block that has no parameters
    own = {name: block for name, block in blocks.items() if _is_here(block)}
    if isinstance(program, PipelineSchedules) and not own:  # none of its blocks has parameters
        return {f"stage {index}": stage for index, stage in program.stages.items()}
    return own


def _is_unit(module: nn.Module) -> bool:
    """Whether fully_shard was called on a module."""
    return isinstance(module, FSDPModule)


def _is_here(block: nn.Module) -> bool:
    """Whether this process holds parameters of a block."""
    return any(not parameter.is_meta for parameter in block.parameters())


def blocks_of(program: Any) -> dict[str, nn.Module]:
    """The network's blocks by name."""
    return stages.blocks(program.model)


def of_device(program: Any, device: str, names: list[str], watched: Watched, placed: list[Batch]) -> DeviceShare:
    """What one device holds and took."""
    held = [p for p in program.model.parameters() if str(p.device) == device]
    staged = isinstance(program, PipelineSchedules)
    return DeviceShare(
        device=device,
        parameters=size(held),
        optimizer_state=size(state_of(program, held)),
        batch=size(tensor for part in placed for tensor in part if str(tensor.device) == device),
        samples=watched.samples(device, names),
        blocks=tuple(name for name, block in blocks_of(program).items() if _is_here(block)) if staged else (),
        order="".join(kind for kind, name in watched.order if name == names[0]) if staged else "",
    )


def of_stages(program: StagedProgram, watched: Watched, placed: list[Batch], names: list[str]) -> list[DeviceShare]:
    """What each stage's device holds and took. CPU devices have no numbers in torch: stages share one."""
    rows, last, on_cpu = [], len(program.stages) - 1, program.device.type == "cpu"
    blocks = {id(block): name for name, block in blocks_of(program).items()}
    for index, stage in enumerate(program.stages):
        own = [blocks[id(block)] for block in stage]
        passed = own if names[0] != "stage 0" else [names[index]]
        held = list(stage.parameters())
        device = " and ".join(sorted({str(parameter.device) for parameter in held})) or str(program.devices[index])
        edges = [tensor for x, y in placed for tensor, at in ((x, 0), (y, last)) if at == index or not on_cpu]
        rows.append(
            DeviceShare(
                device=f"{device}, stage {index}" if on_cpu else device,
                parameters=size(held),
                optimizer_state=size(state_of(program, held)),
                batch=size(tensor for tensor in edges if str(tensor.device) == device),
                samples=watched.samples(device, passed),
                blocks=tuple(blocks[id(block)] for block in stage if any(True for _ in block.parameters())),
            )
        )
    return rows


def entered_from_another(program: StagedProgram, modules: Mapping[str, nn.Module]) -> list[str]:
    """The watched modules that get their input from another stage: the first of each stage but the first."""
    if "stage 0" in modules:
        return list(modules)[1:]
    blocks = blocks_of(program)
    firsts = [stage[0] for stage in list(program.stages)[1:] if len(stage)]
    return [name for name, block in blocks.items() if any(block is first for first in firsts)]


def of_shared_memory(program: Any) -> DeviceShare:
    """The parameters that all ranks update, in memory that all of them map (async_sgd)."""
    held = list(program.trained.parameters())
    state = size(state_of(program, held))
    return DeviceShare(
        device="shared memory", parameters=size(held), optimizer_state=state, batch=0, samples=0, server=True
    )


def state_of(program: Any, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """What the optimizer keeps for some parameters, but for its counters."""
    kept = [value for parameter in parameters for value in program.optimizer.state.get(parameter, {}).values()]
    return [value for value in kept if isinstance(value, torch.Tensor) and value.ndim]


def size(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the parts of tensors that are on this process's devices."""
    return sum(local_part(tensor)[0].nbytes for tensor in tensors if not tensor.is_meta)
