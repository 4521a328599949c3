"""How a program ran: memory layout, torch.compile, CUDA graphs, cuDNN's autotuner, kernels of convolutions, threads.

The profiler notes one step: the strides of what each convolution takes, the compiled regions that are entered and, on
GPUs, the kernels that are launched. As in formats.py, a step that was captured as a CUDA graph is launched by Python
instead: it has the same operators, and cuDNN has already chosen their kernels.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._autograd import DeviceType  # the profiler's events have no public name for it
from torch._dynamo.eval_frame import innermost_backend
from torch.profiler import ProfilerActivity, profile

from harness.gate.execution import alternatives, collected, most_frequent
from torch_impl import tuning
from torch_impl.placement import Batch
from torch_impl.program import Program

CONVOLUTION = ("aten::convolution",)
OF_LIBRARIES = ("aten::cudnn_convolution", "aten::mkldnn_convolution")
"""Operators that take images and kernels as their first two inputs: as the network has them, and as they are computed.
In between PyTorch may change the layout."""
CALLS = re.compile(r"(?:aten|mkldnn)::(?!_?convolution$|conv\dd$)(\w*conv\w*)$")
"""The operators that compute a convolution on CPU devices. Those that are left out only choose one of them."""
KERNELS = re.compile(r"[\w:]*(?:conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_gemm)\w*")
"""What the names of convolution kernels contain; in a template, the argument that says so."""
OTHER_KERNELS = ("triton_poi", "triton_red", "triton_per")
"""The beginnings of Inductor's kernels without products, whose names list the operators that they were fused from."""
REGION = "Torch-Compiled Region"
PARTS = {"network": "network", "networks": "network", "stages": "network", "model": "network", "loss_fn": "loss"}
"""What the attributes of a program hold that may be compiled."""


def execution(program: Program, placed: Sequence[list[Batch]]) -> dict[str, str]:
    """The fields of harness.spec.Execution. Trains on the first of these batches, if there is one."""
    readers = {"state": partial(of_state, program)}
    if placed:
        readers["step"] = partial(of_step, program, placed[0])
    return collected(readers)


def of_state(program: Program) -> dict[str, str]:
    """What the program and the process hold."""
    parts, modes = compiled_parts(program)
    on_gpu = program.device.type == "cuda"
    benchmark = f"cudnn.benchmark {'on' if torch.backends.cudnn.benchmark else 'off'}"
    return {
        "compiled": f"torch.compile of {' and '.join(parts)}, mode {alternatives(modes)}" if parts else "no: eager",
        "graphs": graphs(program) if on_gpu else "none",
        "autotuning": benchmark if on_gpu else "none",
        "threads": f"{torch.get_num_threads()} intra-op, {torch.get_num_interop_threads()} inter-op",
    }


def compiled_parts(program: Program) -> tuple[list[str], list[str]]:
    """Which parts of the program are compiled, and in which modes."""
    parts: dict[str, None] = {}
    modes = []
    for name, value in vars(program).items():
        for each in callables(value):
            if hasattr(each, "_torchdynamo_orig_callable"):
                parts[PARTS.get(name, name)] = None
                modes.append(mode(configuration(each)))
    return list(parts), modes


def configuration(compiled: Any) -> dict[str, Any]:
    """Inductor's configuration for what torch.compile returned.

    With fullgraph=True, get_compiler_config() returns None, in torch 2.11 to 2.15: only the backend has it.
    """
    context = inspect.getclosurevars(compiled.get_compiler_config).nonlocals["self"]
    backend: Any = innermost_backend(context.callback)
    return getattr(backend, "get_compiler_config", dict)()


def callables(value: Any) -> Iterator[Any]:
    """What may be compiled of an attribute: functions, modules and the forward of modules, also in lists."""
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from callables(each)
    elif isinstance(value, nn.Module):
        for module in value.modules():
            yield from (module, module.forward)
    elif callable(value):
        yield value


def mode(config: dict[str, Any]) -> str:
    """The mode of torch.compile that has this configuration of Inductor, and the searches that no mode names."""
    graphs = config.get("triton.cudagraphs", False)
    if config.get("max_autotune", False):
        name = "max-autotune" if graphs else "max-autotune-no-cudagraphs"
    else:
        name = "reduce-overhead" if graphs else "default"
    searches = " and ".join(filter(config.get, tuning.SEARCHES.values()))
    return f"{name} with {searches}" if searches else name


def graphs(program: Program) -> str:
    """The CUDA graphs that the program holds."""
    run = vars(program).get("run")
    if not isinstance(run, tuning.Graphed):
        return "none"
    steps = " and ".join(str(len(captured.inputs)) for captured in run.graphs.values())
    return f"CUDA graphs, steps in each: {steps}" if steps else "none captured"


def of_step(program: Program, placed: list[Batch]) -> dict[str, str]:
    """What a step does, by PyTorch's profiler."""
    on_gpu = program.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, record_shapes=True) as recorded:
        program.uncaptured_step(placed)
        program.sync()
    results: Any = recorded.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    kernels = [event.name() for event in results.events() if event.device_type() == DeviceType.CUDA]
    operators = list(tree(results.experimental_event_tree()))
    names = [event.name for event in operators]
    calls = [found[1] for name in names if (found := CALLS.match(name))]
    found = {
        "layout": " converted to ".join(dict.fromkeys(filter(None, layouts(operators)))),
        "convolutions": most_frequent(filter(None, map(kernel, kernels)) if on_gpu else calls),
    }
    parts, _ = compiled_parts(program)
    if parts and not any(name.startswith(REGION) for name in names):
        found["compiled"] = f"no: {' and '.join(parts)} compiled, but not called in a step"
    return found


def tree(events: Sequence[Any]) -> Iterator[Any]:
    """All events of a tree."""
    for event in events:
        yield event
        yield from tree(event.children)


def layouts(operators: Sequence[Any]) -> Iterator[str]:
    """How images and kernels lie in memory as the network has them, and as they are computed."""
    for level in (CONVOLUTION, OF_LIBRARIES):
        taken = [event.extra_fields.inputs[:2] for event in operators if event.name in level]
        images = alternatives(order(image, "NCHW", "NHWC") for image, _ in taken)
        kernels = alternatives(order(weight, "OIHW", "OHWI") for _, weight in taken)
        known = {"images": images, "kernels": kernels}
        yield ", ".join(f"{name} {found}" for name, found in known.items() if found)


def order(tensor: Any, first: str, last: str) -> str:
    """Whether channels come first or last; "" if that is the same, or if there are not two spatial dimensions."""
    sizes, strides = tensor.sizes, tensor.strides
    if len(sizes) != 4 or sizes[1] == 1 or sizes[2] * sizes[3] == 1:
        return ""
    spatial = [stride for stride, size in zip(strides[2:], sizes[2:], strict=True) if size > 1]
    return last if strides[1] < min(spatial) else first


def kernel(name: str) -> str:
    """The part of a kernel's name that says that it computes a convolution; "" if it does not."""
    found = None if name.startswith(OTHER_KERNELS) else KERNELS.search(name)
    return found[0] if found else ""
