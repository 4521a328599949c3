"""Copies from one device to another that hold up nothing but the work that needs them.

A GPU works through streams. A stream is a queue: its work runs in order, and work in different streams may run at the
same time. An event marks a place in a stream, and another stream can be told to wait until the event is reached. The
host does not wait for any of this.

`tensor.to(device)` queues its copy on the streams on which both devices compute, and makes each of them wait for all
that is queued on the other: a barrier. A pipeline queues the next micro-batch before it sends the previous one, so with
such copies its stages take turns. Here each direction has streams of its own, only for copies:

    device 0, computing | F0 | F1 | F2 | F3 |
    device 0, sending        |->1|->2|->3|->4|      each waits for an event after its own F
    device 1, receiving      |->1|->2|->3|->4|
    device 1, computing          | F0 | F1 | F2 |   each waits for an event after its own copy

Autograd's copies in backward are of the first kind, and nobody can move them to other streams. So a program that uses
these links cuts the graph of autograd where tensors cross, and sends the gradients itself.

On CPU devices, which are all the same device in PyTorch, a tensor is where it has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise

import torch

Arrival = Callable[[], torch.Tensor]
"""Call it where the tensor is used: it lets the stream on which the device then computes wait for the copy, and returns
the tensor. The wait belongs there: made earlier, it would hold up work that was to run before the tensor is used."""


class Link:
    """One direction of the way between two devices."""

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self.target = target
        on_gpus = source.type == "cuda"
        self.streams = tuple(torch.cuda.Stream(device) for device in (source, target)) if on_gpus else ()

    def send(self, tensor: torch.Tensor) -> Arrival:
        """Queue a copy of `tensor`, which carries no gradient, as it will be after the work that is queued now."""
        if not self.streams:
            return lambda: tensor
        ready = torch.cuda.current_stream(tensor.device).record_event()
        for stream in self.streams:
            stream.wait_event(ready)
        with ExitStack() as current:
            for stream in reversed(self.streams):  # the source's last: its device is then the current one, too
                current.enter_context(torch.cuda.stream(stream))
            copy = torch.empty_like(tensor, device=self.target)
            copy.copy_(tensor, non_blocking=True)
        copied = [stream.record_event() for stream in self.streams]
        tensor.record_stream(self.streams[0])  # its memory must not be used again before it has been read

        def arrive() -> torch.Tensor:
            computing = torch.cuda.current_stream(self.target)
            for event in copied:
                computing.wait_event(event)
            copy.record_stream(computing)
            return copy

        return arrive


def chain(devices: list[torch.device]) -> tuple[list[Link], list[Link]]:
    """The links between neighbouring stages on these devices: forward, and back."""
    pairs = list(pairwise(devices))
    return [Link(a, b) for a, b in pairs], [Link(b, a) for a, b in pairs]
