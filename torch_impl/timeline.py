"""When each stage worked on which micro-batch, read from the devices themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from harness.spec import Span

Phase = Literal["forward", "backward"]


ATTEMPTS = 10  # to set a device's zero


def from_the_first(spans: Iterable[Span]) -> list[Span]:
    """These spans by stage, in seconds after the first one of them. All processes of a host have one clock."""
    ordered = sorted(spans, key=lambda span: (span.stage, span.micro_batch, span.phase))
    first = min((span.start for span in ordered), default=0.0)
    return [replace(span, start=span.start - first, end=span.end - first) for span in ordered]


class Timeline:
    """Collects the marks of a step. On GPUs a mark is an event in the device's queue; on CPUs it is the host's clock.

    If the step is captured as a CUDA graph, the events become part of the graph, and each replay records them anew.

    Events of different devices cannot be compared directly. So each device records a first event while all are idle
    (`set_zero`), and the host's clock at that moment is the device's zero. It is accurate to half of the time from
    before the event is recorded until the host sees it: tens of microseconds, unless another process has the GPU. The
    shortest of some attempts counts.
    """

    def __init__(self, devices: Mapping[int, torch.device]) -> None:
        """`devices`: of each stage, by its number."""
        self.devices = devices
        self.marks: dict[tuple[int, int, Phase], dict[str, Any]] = {}
        self.events: list[torch.cuda.Event] = []  # all that were ever recorded: a graph may record one again
        self.zero: dict[torch.device, Sequence[Any]] = {}

    def set_zero(self) -> None:
        """Call it before each step, when all devices are idle."""
        for device in dict.fromkeys(self.devices.values()):
            if device.type == "cuda":
                attempts = [self._attempt(device) for _ in range(ATTEMPTS)]
                _, *self.zero[device] = min(attempts, key=lambda attempt: attempt[0])

    def run(
        self, network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, stage: int, micro_batch: int
    ) -> torch.Tensor:
        """The output of a stage's network, with marks around its forward and its backward.

        Its backward lasts from the gradient of its output to the gradient of its input.
        """
        key = stage, micro_batch
        if not x.requires_grad:  # the first stage's input: its gradient, not needed otherwise, ends the backward
            x = x.detach().requires_grad_()
        self.mark(*key, "forward", "start")
        output = network(x)
        self.mark(*key, "forward", "end")
        output.register_hook(lambda _: self.mark(*key, "backward", "start"))
        x.register_hook(lambda _: self.mark(*key, "backward", "end"))
        return output

    def mark(self, stage: int, micro_batch: int, phase: Phase, edge: str) -> None:
        """Record that the stage's device reaches this edge ("start" or "end") of its queue."""
        device = self.devices[stage]
        now = self._event(device) if device.type == "cuda" else time.perf_counter()
        self.marks.setdefault((stage, micro_batch, phase), {})[edge] = (device, now)

    def spans(self) -> list[Span]:
        """All spans with both edges, in seconds of the host's clock. Call it when the devices are idle again."""
        found = {key: {edge: self._seconds(*at) for edge, at in edges.items()} for key, edges in self.marks.items()}
        return [
            Span(stage=stage, micro_batch=number, phase=phase, start=edges["start"], end=edges["end"])
            for (stage, number, phase), edges in sorted(found.items())
            if edges.keys() == {"start", "end"}
        ]

    def _attempt(self, device: torch.device) -> tuple[float, torch.cuda.Event, float]:
        """How long it took to record an event and to see it, the event, and the host's clock in the middle."""
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        event = self._event(device)
        event.synchronize()
        end = time.perf_counter()
        return end - start, event, (start + end) / 2

    def _event(self, device: torch.device) -> torch.cuda.Event:
        # external: in a capture, a node of the graph that records the event, instead of a dependency
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record(torch.cuda.current_stream(device))
        self.events.append(event)
        return event

    def _seconds(self, device: torch.device, at: Any) -> float:
        if device.type != "cuda":
            return at
        event, host = self.zero[device]
        return host + event.elapsed_time(at) / 1e3
