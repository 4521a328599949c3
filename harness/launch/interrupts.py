"""Ctrl-C and similar signals: turned into one exception, and delayed where an unfinished write would do damage."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from harness.spec.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_raised: list[int] = []  # the signal that was turned into Interrupted


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Signals that arrive inside the block are delivered after it.

    Handlers do this. Masking the signals in this thread would not help: the system would deliver them to another
    thread, and Python would still run the handler in this one.
    """
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: arrived.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def install_signal_handlers(told: str = "") -> Callable[[], None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into Interrupted; a second signal kills the process.

    `told`: what the first says on standard error at once, since launches need seconds to end.

    But not a second SIGHUP: where a terminal is closed, the shell and the system both send one. Returns a function that
    restores the previous handlers.
    """
    # An ignored signal stays ignored: SIGHUP under nohup, where the run must outlive its terminal, and SIGINT of a
    # script's background job, which Ctrl-C must not end.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) != signal.SIG_IGN}

    _raised.clear()

    def restore() -> None:
        _raised.clear()
        for number, handler in before.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN if each == number == signal.SIGHUP else signal.SIG_DFL)
        _raised.append(number)
        if told:
            with contextlib.suppress(OSError):  # the terminal is gone. Not by print, which may be what is interrupted
                start = "\n" if os.isatty(2) else ""  # behind ^C, and below the lines of a live display
                os.write(2, f"{start}{signal.Signals(number).name}: {told}\n".encode())
        raise Interrupted(number)

    for number in before:
        signal.signal(number, interrupt)
    return restore


def raise_if_lost() -> None:
    """Raise Interrupted if a signal has come. For loops that such a signal should have ended.

    Python runs a handler wherever it is. If that is a finalizer (`__del__`, a weak reference's callback), it prints
    what the handler raises, and goes on.
    """
    if _raised:
        raise Interrupted(_raised[0])
