"""What each device holds, read from the variables as they lie.

A mirrored variable has a component on each device. The program's own `export` may read one of them for all; here each
is read by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from harness.contract import Held, Observed
from harness.gate.read_program import check_runs
from harness.spec import DeviceShare
from tf_impl import cluster, collectives
from tf_impl.coordinator import Coordinator, Share, Worker
from tf_impl.program import Program
from tf_impl.replicas import ReplicatedProgram


def parameters(program: Program | Worker) -> list[Held]:
    """The parameters on each device. Under ParameterServerStrategy rank 0 answers for the server."""
    if isinstance(program, Worker):
        return []
    found: dict[str, Held] = {}
    for name, variable in program.variables.items():
        for component in components(variable):
            held = found.setdefault(component.device, Held(device=component.device, arrays={}))
            held.arrays[name] = component.numpy()
    return list(found.values())


def components(variable: Any) -> Sequence[tf.Variable]:
    """The variables that a variable of tf.distribute consists of in this process, or the variable itself."""
    return getattr(variable, "values", None) or (variable,)


ATTEMPTS = 10
"""Steps in which each worker of parameter_server has the chance to take a share."""
COPIED = ("one_device", "hierarchical_copy")
"""Values of the option `cross_device` with which TensorFlow copies gradients by plain operations, no collectives."""


def observe(program: Any, batches: Sequence[Any]) -> Observed:
    """Look at the devices, and at the graph of as many steps in one call as there are batches.

    It makes these steps, to see that they run this graph. Those of parameter_server are watched; what crosses between
    its processes goes through gRPC, and is not counted.
    """
    if isinstance(program, Worker):
        return Observed(devices=(), crossed=None)
    if isinstance(program, Coordinator):
        steps, devices = of_workers(program, batches[0])
        return Observed(devices=devices, crossed=None, steps=steps)
    check_runs(program, batches, one="train_step", several="train_steps")
    # These calls trace nothing: the graphs have been made for the same shapes.
    one = len(batches) == 1
    made = program.train_step.get_concrete_function(batches[0]) if one else None
    graph = (made or program.train_steps.get_concrete_function(tuple(batches))).graph
    rows = of_devices(program, batches[0], graph)
    if not isinstance(program, ReplicatedProgram):
        sent = collectives.sent(graph) if len(program.devices) > 1 else 0
        return Observed(devices=rows, crossed={"send": sent / len(batches)} if sent else {}, steps=len(batches))
    if program.job.options.get("cross_device") in COPIED:
        return Observed(devices=rows, crossed=None, steps=len(batches))
    return Observed(devices=rows, crossed={"all_reduce": collectives.reduced(graph) / len(batches)}, steps=len(batches))


def of_devices(program: Any, placed: Any, graph: Any) -> tuple[DeviceShare, ...]:
    """What each device holds, and the samples of a batch that lie on it, if the graph computes anything there."""
    parts = list(flat(placed))
    params = bytes_on(each for variable in program.variables.values() for each in components(variable))
    slots = [slot for slots in program.optimizer.slots for slot in slots]
    state, batch = bytes_on(each for slot in slots for each in components(slot)), bytes_on(parts)
    inputs = tuple(program.job.workload.input_shape)
    named = [collectives.name_of(name) for name in program.devices]
    at_work, staged = collectives.computing(graph), len(program.stages) > 1
    if staged:
        stages = zip(program.stages, named, strict=True)
        at_work = {device for stage, device in stages if device in collectives.computing_stage(graph, stage.name)}
    alone = len(program.devices) == 1  # then operations need not name their device
    rows = []
    for name, device in zip(program.devices, named, strict=True):
        here = [tensor for tensor in parts if collectives.name_of(tensor.device) == device]
        samples = sum(len(tensor) for tensor in here if tuple(tensor.shape[1:]) == inputs)
        if staged:  # all samples pass through all stages
            samples = sum(len(tensor) for tensor in parts if tuple(tensor.shape[1:]) == inputs)
        rows.append(
            DeviceShare(
                device=name,
                parameters=params[device],
                optimizer_state=state[device],
                batch=batch[device],
                samples=samples if device in at_work or (alone and "" in at_work) else 0,
                blocks=blocks_on(program, device) if staged or alone else (),
            )
        )
    return tuple(rows)


def of_workers(program: Coordinator, placed: list[Share]) -> tuple[int, tuple[DeviceShare, ...]]:
    """Make steps, and say how many, what each worker did in the last one, and what workers and server hold.

    Workers that are all free take one share each. Where one was slow to take its share, another step is made.
    """
    rows = [sum(len(x) for x, _ in share[0]) for share in placed]
    own = collectives.name_of(program.device)
    at_work = collectives.computing(graph_of_push(program, placed[0]))
    steps, took = 0, Counter()
    while len(took) < len(program.devices) and steps < ATTEMPTS:
        program.sync()
        pushes = program.step(placed)
        program.sync()
        steps += 1
        took = Counter()
        for push, samples in zip(pushes, rows, strict=False):
            took[worker_of(push._get_values().device)] += samples
    held, slots = program.variables.values(), [slot for slots in program.optimizer.slots for slot in slots]
    shares = [
        DeviceShare(
            device=name,
            parameters=sum(size_of(variable) for variable in held if variable.device == name),
            optimizer_state=sum(size_of(slot) for slot in slots if slot.device == name),
            batch=sum(size_of(tensor) for tensor in tf.nest.flatten(placed) if tensor.device == name),
            samples=took[worker_of(name)] if at_work == {own} else 0,
        )
        for name in program.devices
    ]
    server = DeviceShare(
        device=cluster.SERVER,
        parameters=sum(size_of(variable) for variable in held if variable.device.startswith(cluster.SERVER)),
        optimizer_state=sum(size_of(slot) for slot in slots if slot.device.startswith(cluster.SERVER)),
        batch=0,
        samples=0,
        server=True,
    )
    return steps, (*shares, server)


def graph_of_push(program: Coordinator, share: Share) -> Any:
    """The graph that a worker runs. Its operations name a device of whatever worker runs them, or the server."""
    push: Any = program.train_step
    return push.get_concrete_function(share[0]).graph


def worker_of(device: str) -> str:
    """The worker that has a device. A push's loss is in its worker's host memory, whatever device computed it."""
    return device.partition("/device:")[0]


def blocks_on(program: Program, device: str) -> tuple[str, ...]:
    """The network blocks whose parameters are all on a device."""
    found = []
    for block in program.job.workload.blocks:
        own = [variable for name, variable in program.variables.items() if name.startswith(f"{block}.")]
        if own and all(collectives.name_of(variable.device) == device for variable in own):
            found.append(block)
    return tuple(found)


def bytes_on(tensors: Iterable[Any]) -> Counter[str]:
    """The bytes of tensors or variables by device."""
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[collectives.name_of(tensor.device)] += size_of(tensor)
    return found


def size_of(tensor: Any) -> int:
    """Bytes."""
    return int(tensor.shape.num_elements()) * tensor.dtype.size


def flat(placed: Any) -> Iterable[Any]:
    """The tensors of a placed batch, on whatever devices."""
    for value in tf.nest.flatten(placed, expand_composites=False):
        yield from components(value)
