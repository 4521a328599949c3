"""The number formats of a running program: of its operators from PyTorch's profiler, of its state from the tensors.

The profiler notes the types of each operator's inputs, in forward and in backward. It sees operators that compiled code
calls (products among them), but not what happens inside a fused kernel. The replay of a CUDA graph calls no operators,
so the step that was captured is called once more in their place, as plain PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from harness.gate.number_formats import SAMPLED, held_in, narrower, note
from harness.spec import NumberFormats
from torch_impl import tuning
from torch_impl.placement import Batch
from torch_impl.program import Program

MAKES_STEPS = True  # whether `read` trains the program
NAMES = {"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
"""The profiler's names of formats. It calls 8-bit formats "c10::Float8_e4m3fn" and the like."""
OF_NCCL = {"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16"}
PRODUCTS = re.compile(
    r"aten::_?(convolution|convolution_backward|mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot|scaled_mm)$"
    r"|aten::_scaled_dot_product_\w+|mkldnn::\w*(linear|convolution)\w*"
)
"""The operators that compute products. Others, like aten::linear, are called before autocast has cast their inputs."""
CASTS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::type_as")


@dataclass(frozen=True)
class Operator:
    """One call of an operator: the formats of its inputs, and the names of those that called it, outermost first.

    `of_numbers`: no input has a dimension. So torch counts updates, in float32 whatever the parameters' format.
    """

    name: str
    formats: tuple[str, ...]
    inside: tuple[str, ...]
    of_numbers: bool = False


def read(program: Program, calls: Sequence[Sequence[list[Batch]]]) -> NumberFormats:
    """The formats of these calls, each with the batches of its steps. It makes them: the program trains on."""
    found = NumberFormats()
    try:
        for called in profiled(lambda: make(program, calls)):
            _note(called, found)
    except torch.OutOfMemoryError:
        if not isinstance(program.run, tuning.Graphed):
            raise
        found = NumberFormats(unread="a step beside the captured one does not fit into memory")
    for name, parameter in program.trained.named_parameters():
        if not parameter.is_meta:
            note(found.parameters, held(parameter), name)
    for name, parameter in program.model.named_parameters():
        if parameter.grad is not None:
            note(found.gradients, _name(parameter.grad.dtype), name)
    for state in program.optimizer.state.values():
        for name, value in state.items():
            # Of no dimension: the count of updates, which torch keeps in float32 whatever the parameters' format.
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                note(found.optimizer_state, held(value), name)
    return found


def make(program: Program, calls: Sequence[Sequence[list[Batch]]]) -> None:
    """The calls as the timed blocks make them, but step by step where a CUDA graph would be replayed."""
    for batches in calls:
        for placed in batches:
            program.uncaptured_step(placed)


def profiled(call: Callable[[], None]) -> Iterator[Operator]:
    """The operators that a call makes, in all threads that it starts for autograd."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    open_ones: dict[int, list[Any]] = {}  # by thread, those that have not ended
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        around = open_ones.setdefault(event.start_thread_id(), [])
        while around and around[-1].end_ns() <= event.start_ns() and around[-1].end_ns() < event.end_ns():
            around.pop()
        yield operator(event, tuple(outer.name() for outer in around))
        around.append(event)


def operator(event: Any, inside: tuple[str, ...]) -> Operator:
    """An event of the profiler. NCCL's collectives name their format in their metadata."""
    if event.name() == "record_param_comms" and hasattr(event, "extra_meta"):
        known = {key: value.strip('"') for key, value in event.extra_meta().items()}
        formats = [OF_NCCL[known["dtype"]]] if known.get("dtype") in OF_NCCL else []
        return Operator(f"nccl:{known.get('Collective name')}", tuple(formats), inside)
    formats = [_named(name) for name in event.dtypes() if _float(name)]
    return Operator(event.name(), tuple(formats), inside, of_numbers=not any(event.shapes()))


def held(tensor: torch.Tensor) -> str:
    """The format of a tensor, or the narrower one that holds all its values."""
    local: torch.Tensor = getattr(tensor, "to_local", lambda: tensor)()  # of FSDP's shards
    flat = local.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLED)].cpu()
    name = _name(local.dtype)
    return held_in(sample.numpy()) if name in ("float32", "float64") else name


def _note(operator: Operator, found: NumberFormats) -> None:
    collective = operator.name.startswith(("gloo:", "nccl:"))
    for format_ in operator.formats:
        if collective:
            note(found.reductions if "reduce" in operator.name else found.transfers, format_, operator.name)
        elif PRODUCTS.match(operator.name):
            note(found.products, format_, operator.name)
        if not operator.of_numbers:
            note(found.anywhere, format_, operator.name)
    if operator.name == "aten::copy_" and len(operator.formats) > 1 and not any(map(_casts, operator.inside)):
        to, source = operator.formats[:2]
        if narrower(to, source):
            outside = [name for name in operator.inside if name not in CASTS]
            note(found.rounded, to, f"a cast in {outside[-1]}" if outside else "a cast between operators")


def _casts(name: str) -> bool:
    """Whether casts inside are the framework's own: autocast casts inside an operator, and backward what it cast."""
    return (name.startswith("aten::") and name not in CASTS) or ("Backward" in name and "::" not in name)


def _float(name: str) -> bool:
    return name in NAMES or "Float8" in name or "Float4" in name


def _named(name: str) -> str:
    """The format that the profiler calls by this name."""
    return NAMES[name] if name in NAMES else name.rpartition("::")[2].lower()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
