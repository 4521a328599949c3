"""Progress on standard error, as one live line or as plain lines."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from harness.spec.progress import Display
from harness.spec.text import visible

QUIET_SECONDS = 30.0  # how often a long phase reports its progress in a log file
INDENT = 14  # characters before what a line says: they have its status
FEWEST_KNOWN = 2  # parity phases and launches that must have ended before the time left is told
STYLES = {"ok": "green", "skipped": "dim", "note": "cyan", "epoch": "cyan", "pending": "yellow"}


class LiveDisplay:
    """Two live lines: how many parity phases and launches have ended, and the time that is left; then what runs now.

    Count and times come first, so that no terminal is too narrow for them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._count = 0
        self._started = time.monotonic()
        self._phase, self._detail = "preparing", ""
        self._live = Live(get_renderable=self.lines, console=console, transient=True)

    def lines(self) -> Group:
        """What is shown now."""
        elapsed = time.monotonic() - self._started
        times = f"{self._count}/{self._total}  {_clock(elapsed)} elapsed"
        if self._count >= FEWEST_KNOWN:  # parity phases and launches of all cells count alike: this is rough
            times += f", about {_clock(elapsed / self._count * (self._total - self._count))} left"
        first = Text.assemble((times, "bold"), f"  {visible(self._phase)}")
        second = Text(f"  {self._detail}", style="dim")
        for line in (first, second):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(first, second)

    def start(self, total: int) -> None:
        self._total, self._started = total, time.monotonic()
        self._live.start()

    def phase(self, name: str) -> None:
        self._phase, self._detail = name, ""

    def detail(self, text: str) -> None:
        self._detail = visible(text)

    def done(self, text: str, status: str) -> None:
        wrapper = textwrap.TextWrapper(max(1, self._console.width - INDENT), break_on_hyphens=False)
        wrapper.break_long_words = False  # what is to be copied stays whole
        said = f"\n{' ' * INDENT}".join(wrapper.wrap(visible(text)))
        self._console.print(Text.assemble((f"{status:{INDENT}}", STYLES.get(status, "red")), said), soft_wrap=True)

    def advance(self) -> None:
        self._count += 1

    def close(self) -> None:
        self._live.stop()


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds: 0:07:30."""
    return str(timedelta(seconds=round(seconds)))


class PlainDisplay:
    """One line for each phase that ends, and sometimes one during a long phase, so that log files stay short."""

    def __init__(self) -> None:
        self._total = self._count = 0
        self._started = self._reported = time.monotonic()
        self._phase = ""

    def start(self, total: int) -> None:
        self._total = total

    def phase(self, name: str) -> None:
        self._phase, self._reported = name, time.monotonic()
        if name.startswith("preparing"):  # other phases end with a line soon enough
            print(f"{name} ...", file=sys.stderr, flush=True)  # noqa: T201

    def detail(self, text: str) -> None:
        if time.monotonic() - self._reported > QUIET_SECONDS:
            self._reported = time.monotonic()
            print(f"{self._phase}: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201

    def done(self, text: str, status: str) -> None:
        elapsed = time.monotonic() - self._started
        print(f"[{elapsed:6.1f} s, {self._count}/{self._total}] {status}: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201

    def advance(self) -> None:
        self._count += 1

    def close(self) -> None:
        pass


class LastingDisplay:
    """Another display, or nothing once that cannot be written to: a closed terminal or pipe must not end a run."""

    def __init__(self, display: Display) -> None:
        self._display: Display | None = display

    def start(self, total: int) -> None:
        self._show(lambda display: display.start(total))

    def phase(self, name: str) -> None:
        self._show(lambda display: display.phase(name))

    def detail(self, text: str) -> None:
        self._show(lambda display: display.detail(text))

    def done(self, text: str, status: str) -> None:
        self._show(lambda display: display.done(text, status))

    def advance(self) -> None:
        self._show(lambda display: display.advance())

    def close(self) -> None:
        self._show(lambda display: display.close())

    def _show(self, call: Callable[[Display], None]) -> None:
        if self._display is not None:
            try:
                call(self._display)
            except OSError:
                self._display = None


def make_display() -> Display:
    """A live display if standard error is a terminal, a plain one if it is a file or a pipe."""
    return LastingDisplay(LiveDisplay(Console(stderr=True)) if sys.stderr.isatty() else PlainDisplay())
