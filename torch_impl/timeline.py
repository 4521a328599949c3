"""When each stage worked on which micro-batch, read off the devices themselves."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch

from harness.spec import Span

Phase = Literal["forward", "backward"]


class Timeline:
    """Collects the marks of one step. On GPUs a mark is an event in the device's own queue; on CPU the host's clock.

    Events of different devices cannot be compared directly, so each device gets a first event while all are idle, and
    its host time is the device's zero: good to the tens of microseconds that recording an event takes.
    """

    def __init__(self, devices: list[torch.device]) -> None:
        self.marks: dict[tuple[int, int, Phase], dict[str, Any]] = {}
        self.zero: dict[torch.device, tuple[Any, float]] = {}
        for device in dict.fromkeys(devices):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                self.zero[device] = (self._event(device), time.perf_counter())

    def mark(self, stage: int, micro_batch: int, phase: Phase, edge: str, device: torch.device) -> None:
        """Note that the device has come to this edge ("start" or "end") of its queue."""
        now = self._event(device) if device.type == "cuda" else time.perf_counter()
        self.marks.setdefault((stage, micro_batch, phase), {})[edge] = (device, now)

    def spans(self) -> list[Span]:
        """All spans with both edges, in seconds from the first; call when the devices are idle."""
        found = {key: {edge: self._seconds(*at) for edge, at in edges.items()} for key, edges in self.marks.items()}
        complete = {key: edges for key, edges in found.items() if edges.keys() == {"start", "end"}}
        first = min((edges["start"] for edges in complete.values()), default=0.0)
        return [
            Span(stage=stage, micro_batch=number, phase=phase, start=edges["start"] - first, end=edges["end"] - first)
            for (stage, number, phase), edges in sorted(complete.items())
        ]

    def _event(self, device: torch.device) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def _seconds(self, device: torch.device, at: Any) -> float:
        if device.type != "cuda":
            return at
        event, host = self.zero[device]
        return host + event.elapsed_time(at) / 1e3
