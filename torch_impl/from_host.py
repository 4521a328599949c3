"""Batches as PyTorch's model-parallel tutorial makes them: on the host, by torch.randn, one for each step.

For `reproduce tutorial` alone, which times the making of batches along with the steps, as the tutorial does
(https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.contract import Arrays
from torch_impl import placement, tuning
from torch_impl.strategies.single import SingleDevice


def make_batches(program: SingleDevice, like: Arrays, *, seed: int) -> Iterator[list[placement.Batch]]:
    """Endless batches in the shapes of `like`, each made when it is asked for and then copied to the devices.

    Inputs are normal noise, drawn in torch's own layout (images NCHW) by one thread. Targets are those of `like` in
    another order each time.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = placement.on_host(like, program.dtype)
    while True:
        inputs = torch.randn(x.shape, generator=generator, dtype=program.dtype)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=tuning.memory_format(program.job))
        targets = y[torch.randperm(len(y), generator=generator)]
        yield program.put([(inputs, targets)])
