"""What a CUDA graph needs that holds the work of several devices. tuning.py captures with it.

A capture begins on one stream of one device. Work on other streams becomes part of the graph if these streams wait for
an event of the capture, and all of them must be waited for before it ends. One launch then starts the work of all
devices, and what each of them waits for is in the graph.

- Everything must run on streams that take part. A copy that autograd makes between devices does not: it uses the
  default stream of the other device. So the step must send its tensors itself (transfers.py).
- PyTorch gives a graph memory of its own on the device where the capture begins. On the others, `further` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

KEPT: list[torch.cuda.MemPool] = []
"""The memory of all graphs on their further devices. It is never given back: a graph may be replayed until the process
ends."""


@contextmanager
def taking_part(beginning: torch.cuda.Stream, others: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Inside a capture that began on one stream: work on the other streams is captured as well."""
    begun = beginning.record_event()
    for stream in others:
        stream.wait_event(begun)
    yield
    for stream in others:
        beginning.wait_event(stream.record_event())


@contextmanager
def further(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Makes these streams the current ones of their devices, and gives each device memory of its own for what is
    allocated inside. It waits until these devices are idle. (torch.cuda.graph waits for the current one.)

    torch.cuda.use_mem_pool would be for the calling thread only, and backward allocates in threads of autograd.
    """
    with ExitStack() as around:
        for stream in streams:
            torch.cuda.synchronize(stream.device)
            around.enter_context(torch.cuda.stream(stream))
        for stream in streams:
            around.enter_context(_memory_of_its_own(stream.device))
        yield


@contextmanager
def _memory_of_its_own(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device):
        pool = torch.cuda.MemPool()
    KEPT.append(pool)
    torch._C._cuda_beginAllocateToPool(device.index, pool.id)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device.index, pool.id)
        torch._C._cuda_releasePool(device.index, pool.id)  # what the beginning took; KEPT still holds it
