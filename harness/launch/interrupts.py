"""Ctrl-C and its kin: turned into one exception, and held off where a half-done write would hurt."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from harness.spec.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Signals that arrive meanwhile are delivered afterwards. By handlers: a mask of this thread's would not do, as the
    system then gives them to another thread, for which Python runs the handler here all the same."""
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: arrived.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def install_signal_handlers() -> Callable[[], None]:
    """Turn SIGINT, SIGTERM and SIGHUP into Interrupted, once: a second signal kills. Returns the way back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup: the run is to outlive its terminal
        del before[signal.SIGHUP]

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    for number in before:
        signal.signal(number, interrupt)
    return restore
