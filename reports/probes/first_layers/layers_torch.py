"""ResNet's first layers in PyTorch, each by itself: microseconds on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torch_impl import first_layers

REPEATS = 30
NHWC = torch.channels_last


def measure(count: int, note: Callable[[str, Any], None]) -> None:
    """`note` each form's name and times. All forms compute the same."""
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(torch.bfloat16, memory_format=NHWC)

    x, w, dy = random(count, 3, 224, 224), random(64, 3, 7, 7), random(count, 64, 112, 112)
    forms = {"convolution": (x, w, 2, 3)}
    forms |= {f"with {c} channels": (padded(x, c), padded(w, c), 2, 3) for c in (4, 8, 16)}
    forms |= {f"in blocks of {c} channels": (in_blocks(x, 4, 2, c), in_blocks(w, 1, 0, c), 1, 0) for c in (12, 16, 32)}
    for name, (image, kernel, stride, around) in forms.items():

        def convolve(image=image, kernel=kernel, stride=stride, around=around) -> Any:
            return F.conv2d(image, kernel, stride=stride, padding=around)

        def gradient(image=image, kernel=kernel, stride=stride, around=around) -> Any:
            known = (None, [stride] * 2, [around] * 2, [1, 1], False, [0, 0], 1, [False, True, False])
            return torch.ops.aten.convolution_backward(dy, image, kernel, *known)

        note(name, {"forward": timed(convolve), "gradient of weights": timed(gradient)})
    compiled = torch.compile(in_blocks, dynamic=False) if device == "cuda" else in_blocks
    for channels in (12, 16):
        note(f"to blocks of {channels} channels", timed(lambda channels=channels: compiled(x, 4, 2, channels)))
    pooling(random(count, 64, 112, 112).relu(), random(count, 64, 56, 56), note)
    big = torch.empty(count * 112 * 112 * 64, device=device, dtype=torch.bfloat16)
    copy = torch.empty_like(big)
    note("copy, bytes", 2 * big.nbytes)
    note("copy", timed(lambda: copy.copy_(big)))


def pooling(x: torch.Tensor, dy: torch.Tensor, note: Callable[[str, Any], None]) -> None:
    """Max pooling and its gradient, compiled."""
    x.requires_grad_()
    own = lambda x: F.max_pool2d(x, 3, 2, 1)  # noqa: E731
    for name, pool in {"max pooling": own, "gathered": first_layers.GatheredPooling.apply}.items():
        compiled: Any = torch.compile(pool, dynamic=False) if x.is_cuda else pool

        def forward(compiled=compiled) -> Any:
            with torch.no_grad():
                return compiled(x)

        def both(compiled=compiled) -> Any:
            return torch.autograd.grad(compiled(x), x, dy)

        note(name, {"forward": timed(forward), "forward and gradient": timed(both)})


def in_blocks(t: torch.Tensor, before: int, after: int, channels: int) -> torch.Tensor:
    return padded(F.pixel_unshuffle(F.pad(t, (before, after, before, after)), 2), channels)


def padded(t: torch.Tensor, channels: int) -> torch.Tensor:
    return F.pad(t, (0, 0, 0, 0, 0, channels - t.shape[1])).contiguous(memory_format=NHWC)


def timed(call: Callable[[], Any]) -> float:
    """Microseconds; on a CPU 0, after one call."""
    call()
    if not torch.cuda.is_available():
        return 0.0
    for _ in range(4):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPEATS):
        call()
    end.record()
    torch.cuda.synchronize()
    return round(start.elapsed_time(end) / REPEATS * 1000, 1)
