"""Steps that are watched: which samples pass through which module on which device, and what the ranks send.

A watched step is made by the program's own code. Module hooks see what it calls, and a dispatch mode sees every
collective of torch.distributed with its tensors, also those that DistributedDataParallel starts during backward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see operations has no public name

from torch_impl.placement import Batch

# The kind of each collective, and which argument of the operation is its payload.
PAYLOADS: dict[str, tuple[str, int]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "send": ("send", 0),
}
RECEIVING = ("recv_", "recv_any_source_", "barrier", "monitored_barrier_")
"""Operations that send nothing, or nothing but a signal."""


class Collectives(TorchDispatchMode):
    """Counts the bytes of all collectives by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else torch.compile refuses to run what it has compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if "c10d" in space and name not in RECEIVING:
            kind, position = PAYLOADS.get(name, (name, 0))
            self.bytes[kind] += sum(tensor.nbytes for tensor in tensors(args[position]))
        return func(*args, **(kwargs or {}))


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from tensors(each)


@dataclass(frozen=True)
class Watched:
    """What some steps did. `rows`: by device and by module's name, the samples that entered it in all these steps."""

    steps: int
    rows: Mapping[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    order: list[tuple[str, str]] = field(default_factory=list)  # ("F" or "B", module) as the host began them
    crossed: Counter[str] = field(default_factory=Counter)
    between: Counter[str] = field(default_factory=Counter)  # bytes that entered a module, and those of their gradients

    def samples(self, device: str, modules: Sequence[str]) -> int:
        """The samples that passed through all of these modules on a device in one step."""
        return min((self.rows[device][name] for name in modules), default=0) // self.steps


def watch(program: Any, batches: Sequence[list[Batch]], modules: Mapping[str, nn.Module]) -> Watched:
    """Make one step on each batch, and watch these modules and all collectives."""
    watched, collectives = Watched(len(batches)), Collectives()
    with hooked(modules, watched), collectives:
        for placed in batches:
            program.uncaptured_step(placed)  # the replay of a graph calls no Python
    program.sync()
    watched.crossed.update(collectives.bytes)
    return watched


@contextmanager
def hooked(modules: Mapping[str, nn.Module], watched: Watched) -> Iterator[None]:
    """While it is open, calls of the modules are noted."""
    handles = []
    for name, module in modules.items():

        def before(module: nn.Module, given: tuple, name: str = name) -> None:
            x = given[0]
            watched.rows[str(x.device)][name] += len(x)
            watched.order.append(("F", name))
            watched.between[name] += x.nbytes
            if x.requires_grad:
                x.register_hook(lambda gradient: watched.between.update({name: gradient.nbytes}))

        def after(module: nn.Module, given: tuple, output: torch.Tensor, name: str = name) -> None:
            if output.requires_grad:
                output.register_hook(lambda _: watched.order.append(("B", name)))

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
