"""Progress on standard error, as one live line or as plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.spec.progress import Display
from harness.spec.text import visible

QUIET_SECONDS = 30.0  # how often a long phase reports its progress in a log file
STYLES = {"ok": "green", "skipped": "dim"}


class LiveDisplay:
    """A progress bar over all launches, with what the current one is doing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False, style="dim"),
            console=console,
        )
        self._live = Live(self._progress, console=console, transient=True)
        self._task = self._progress.add_task("preparing", total=None, detail="")

    def start(self, total: int) -> None:
        self._progress.update(self._task, total=total)
        self._live.start()

    def phase(self, name: str) -> None:
        self._progress.update(self._task, description=name, detail="")

    def detail(self, text: str) -> None:
        self._progress.update(self._task, detail=visible(text))

    def done(self, text: str, status: str) -> None:
        self._console.print(Text.assemble((f"{status:14}", STYLES.get(status, "red")), visible(text)))

    def advance(self) -> None:
        self._progress.advance(self._task)

    def close(self) -> None:
        self._live.stop()


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
