"""The launcher protocol: how a phase of a trial is started, followed, stopped and collected, wherever it runs.

Nothing above this knows about processes or hosts. harness/launch/local.py launches on this machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.launch.interrupts import raise_if_lost
from harness.launch.place import HERE, Place
from harness.messages import Answer, Phase, Progress
from harness.spec import Cause, Disturbance, Link, Precision, Status, Telemetry, TrialSpec
from harness.spec.text import encodable

POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One phase to launch. `inputs` and `golden` are files that the ranks read."""

    spec: TrialSpec
    phase: Phase
    interpreter: str
    folder: Path  # a new one, for all files of this launch
    inputs: Path
    golden: Path | None = None
    groups: int = 1
    output: Path | None = None  # reference: the file that it is written to
    rounding: Precision = "fp64"  # reference: the precision of the programs that it judges
    validation: Path | None = None  # training: the samples that the target is judged on
    test: Path | None = None  # training: the test set
    run_folder: Path | None = None  # training: where checkpoints are saved
    checkpoint: Path | None = None  # training: the checkpoint to resume from
    init_from: Path | None = None  # training: the checkpoint with the initial weights
    compile_cache: Path | None = None  # where the framework keeps compiled code
    shares: bool = False  # whether other launches use the same GPUs at the same time
    replicated: bool = True  # whether its times will be compared with those of other launches of the cell
    devices_in_plan: int = 1  # most that a cell uses on one host: they share its cores, and launches take turns on them
    place: Place = HERE


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a phase ended, and the answers of the ranks that gave one, in rank order."""

    status: Status
    reason: str = ""
    cause: Cause | None = None
    traceback: str = ""
    answers: tuple[Answer, ...] = ()
    cores: int = 0  # CPU cores that each process may use
    start_method: str = ""  # "spawn" or "fork": see Conditions
    disturbances: tuple[Disturbance, ...] = ()  # what may have slowed it down
    telemetry: Telemetry | None = None  # of its devices; None: not sampled
    wall_seconds: float | None = None  # of the phase that measures, start-up included; None: another phase


class Running(Protocol):
    """A phase under way."""

    def poll(self) -> bool:
        """Whether it has ended. Does not wait."""
        ...

    def progress(self) -> Progress | None:
        """What rank 0 is doing; None if it has not said so yet."""
        ...

    def stop(self) -> None:
        """End everything that belongs to it, and wait until that is done. May be called at any time, more than once."""
        ...

    def collect(self) -> Outcome:
        """How it ended. Call it after `stop`."""
        ...


class Launcher(Protocol):
    """A place where phases can run."""

    @property
    def links(self) -> tuple[Link, ...]:
        """How fast its hosts reach each other; () on one host."""
        ...

    def start(self, launch: Launch) -> Running:
        """Start a phase. Returns at once."""
        ...


def launch(
    launch: Launch,
    launcher: Launcher,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    on_said: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a phase until it ends, in whatever way. On an exception (Ctrl-C) all of it is ended first.

    `on_progress` gets what the phase is doing, again and again; `on_said` each line to keep on the screen, once.
    `stop`: ends the phase as well, as soon as it is set.
    """
    stop = stop or threading.Event()
    heard = 0
    running = launcher.start(launch)
    try:
        while not running.poll() and not stop.is_set():
            raise_if_lost()
            if progress := running.progress():
                on_progress(str(progress))
                heard = _tell(progress, heard, on_said)
            time.sleep(POLL_SECONDS)
        if progress := running.progress():
            _tell(progress, heard, on_said)
    finally:
        running.stop()
    return encodable(running.collect())


def _tell(progress: Progress, heard: int, on_said: Callable[[str], None]) -> int:
    """Pass on the lines after the first `heard`; returns how many there are."""
    for line in progress.said[heard:]:
        on_said(line)
    return max(heard, len(progress.said))
