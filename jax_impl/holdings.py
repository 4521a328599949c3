"""What each device holds, read from its own shards of the live arrays.

The program's own `export` may take one device's copy for all. Here every device's copy or part is read by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from harness.contract import Held, Observed
from harness.gate.read_program import check_runs
from harness.spec import DeviceShare
from jax_impl import collectives, weights
from jax_impl.program import Program
from jax_impl.staged import StagedProgram
from jax_impl.strategies.pipeline_spmd import PipelineSpmd
from jax_impl.strategies.pmap import Pmap
from jax_impl.watching import StagePhase, wrapped_stages


def parameters(program: Program) -> list[Held]:
    """The parameters on each device."""
    if isinstance(program, StagedProgram):
        return [held for state in program.held for held in of_tree(state.params)]
    if isinstance(program, PipelineSpmd):
        return [of_row(program, shard) for shard in program.held.params.addressable_shards]
    return of_tree(program.held.params, stacked=isinstance(program, Pmap))


def of_tree(params: weights.Params, *, stacked: bool = False) -> list[Held]:
    """The shards of a tree of parameters, by device. `stacked`: a leading axis has an entry for each device."""
    found: dict[Any, Held] = {}
    for layer, leaves in params.items():
        for leaf, array in leaves.items():
            name = weights.canonical_name(layer, leaf)
            for shard in array.addressable_shards:
                held = found.setdefault(shard.device, Held(device=str(shard.device), arrays={}))
                data = np.array(shard.data)
                held.arrays[name] = data[0] if stacked else data
                if not stacked and data.shape != array.shape:
                    held.starts[name] = tuple(part.start or 0 for part in shard.index)
    return [found[device] for device in sorted(found, key=lambda device: device.id)]


def of_row(program: PipelineSpmd, shard: jax.Shard) -> Held:
    """The stage whose padded row lies on a device."""
    stage = shard.index[0].start or 0
    tree = program.stages.params.unflatten[stage](np.array(shard.data)[0])
    return Held(device=str(shard.device), arrays=weights.parameters(tree))


Batch = tuple[jax.Array, jax.Array]


def observe(program: Any, batches: Sequence[Batch]) -> Observed:
    """Look at the devices, and at what XLA compiled for as many steps in one call as there are batches.

    It makes these steps, to see that they run what was compiled. Of model_parallel and pipeline no program holds a
    whole step; they make one that is watched.
    """
    if isinstance(program, StagedProgram):
        rows, sent = of_stages(program, batches[0])
        return Observed(devices=rows, crossed={"send": sent}, steps=1)
    check_runs(program, batches, one="compiled", several="compiled_steps")
    sent = crossed(collectives.text_of(program, batches), program, len(batches))
    return Observed(devices=of_devices(program, batches[0]), crossed=sent, steps=len(batches))


def crossed(text: str, program: Program, steps: int) -> dict[str, float] | None:
    """Bytes per step, from the text of a program that makes so many; None if it has loops of unknown length."""
    try:
        counted = collectives.count(text, devices=program.job.world.devices)
    except collectives.UnknownLength:
        return None
    return {kind: size / steps for kind, size in counted.items()}


def of_devices(program: Program, placed: Batch) -> tuple[DeviceShare, ...]:
    """What each device holds of the state and of a batch."""
    params, opt_state = bytes_on(program.held.params), bytes_on(program.held.opt_state)
    batch, inputs = bytes_on(placed), bytes_on(placed[0])
    one_sample = math.prod(program.job.workload.input_shape) * placed[0].dtype.itemsize
    return tuple(
        DeviceShare(
            device=str(device),
            parameters=params[device],
            optimizer_state=opt_state[device],
            batch=batch[device],
            samples=inputs[device] // one_sample,
            blocks=blocks_on(program, device),
        )
        for device in sorted({*params, *batch}, key=lambda device: device.id)
    )


def blocks_on(program: Program, device: Any) -> tuple[str, ...]:
    """The network blocks with parameters whose row lies on a device, in a pipeline."""
    if not isinstance(program, PipelineSpmd):
        return ()
    (shard,) = [shard for shard in program.held.params.addressable_shards if shard.device == device]
    return with_parameters(program.stages.cut[shard.index[0].start or 0].blocks, of_row(program, shard).arrays)


def with_parameters(blocks: Sequence[str], names: Any) -> tuple[str, ...]:
    """Those blocks that have any of the named parameters."""
    return tuple(block for block in blocks if any(name.startswith(f"{block}.") for name in names))


def bytes_on(tree: Any) -> Counter[Any]:
    """The bytes of a tree's arrays by device, without counters."""
    found: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards if leaf.ndim else ():
            found[shard.device] += shard.data.nbytes
    return found


def of_stages(program: StagedProgram, placed: Batch) -> tuple[tuple[DeviceShare, ...], float]:
    """Make a step, and say what each stage's device holds and took, and the bytes that went from stage to stage."""
    with watched(program) as calls:
        program.step(placed)
    program.sync()
    rows, sent = [], 0
    batch = bytes_on(placed)
    for index, (stage, state) in enumerate(zip(program.stages, program.held, strict=True)):
        params, opt_state = bytes_on(state.params), bytes_on(state.opt_state)
        own = [(array, phase) for number, array, phase in calls if number == index]
        ran = {device for array, _ in own for device in array.devices()}
        (device,) = ran if len(ran) == 1 else [None]
        names = [name for held in of_tree(state.params) for name in held.arrays]
        rows.append(
            DeviceShare(
                device=" and ".join(sorted(map(str, {*ran, *params}))),
                parameters=params[device],
                optimizer_state=opt_state[device],
                batch=batch[device],
                samples=sum(len(array) for array, phase in own if phase == "forward"),
                blocks=with_parameters(stage.stage.blocks, names),
                order="".join("F" if phase == "forward" else "B" for _, phase in own),
            )
        )
        # its inputs come from the stage before, and the gradients of its outputs from the stage behind
        received = {"forward": index > 0, "backward": index < len(program.stages) - 1}
        sent += sum(array.nbytes for array, phase in own if received[phase])
    return tuple(rows), float(sent)


@contextmanager
def watched(program: StagedProgram) -> Iterator[list[tuple[int, jax.Array, str]]]:
    """Collects (stage, input, phase) of each call of a stage's programs while it is open."""
    calls: list[tuple[int, jax.Array, str]] = []

    def noting(index: int, phase: StagePhase, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls.append((index, given[-1], phase))
            return function(*given)

        return call

    with wrapped_stages(program, noting):
        yield calls
