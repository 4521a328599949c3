"""Batches as PyTorch's model-parallel tutorial makes them: on the host, by torch.randn, one for each step.

Only for `reproduce tutorial`, which times the making of batches together with the steps, as the tutorial does
(https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.contract import Arrays
from torch_impl import placement, tuning
from torch_impl.program import Program


def make_batches(program: Program, like: Arrays, *, seed: int) -> Iterator[list[placement.Batch]]:
    """Endless batches in the shapes of `like`, each made on demand and then copied to the devices.

    Inputs are normal noise, drawn in torch's own layout (images NCHW) by one thread. Targets are those of `like`, in a
    new order each time.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = placement.on_host(like, program.dtype)
    while True:
        inputs = torch.randn(x.shape, generator=generator, dtype=program.dtype)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=tuning.memory_format(program.job))
        targets = y[torch.randperm(len(y), generator=generator)]
        yield program.put([(inputs, targets)])
