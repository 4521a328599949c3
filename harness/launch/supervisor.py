"""Supervises the rank processes of one trial, and ends every process that descends from them.

    python -m harness.launch.supervisor FOLDER

FOLDER/group.json lists the ranks; FOLDER/outcome.json says how they ended. The harness holds the other end of this
process's standard input: when that closes, on Ctrl-C or because the harness was killed, everything here is ended. This
process is a subreaper, so it stays the ancestor of processes whose parents have ended, even of those in sessions of
their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

import psutil

from harness.launch.group import ENDING, GROUP, SUPERVISOR, Ending, Group, RankProcess
from harness.launch.logs import free_middle, last_line
from harness.messages import Answer, Progress, answer_file, progress_file, write
from harness.spec import Cause, codec
from harness.spec.processes import signal_name

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_SECONDS = 0.05
PAUSE_SECONDS = 2.0
"""From one look at the ranks to the next: if it takes this long, this process did not run meanwhile."""
# After the first failure: time for the other ranks to write down their own. Also the time from SIGTERM to SIGKILL.
GRACE_SECONDS = 1.0


class Rank(Protocol):
    """The process of a rank."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...


Spawn = Callable[[Sequence[str], dict[str, str], Path, IO[bytes]], Rank]
"""Starts a process, from its command, its variables, its working directory and its log."""


def main() -> None:
    run(Path(sys.argv[1]), execute)


def run(folder: Path, spawn: Spawn) -> None:
    """Supervise the launch in a folder, and write down how it ended. `spawn` starts the process of a rank."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    for number in SIGNALS:
        signal.signal(number, lambda *_: sys.exit(1))  # through the finally below
    try:
        ending = supervise(folder, codec.loads(Group, (folder / GROUP).read_text("utf-8")), spawn)
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # nothing may interrupt the clean-up
        unkillable = end_descendants()
    if unkillable:
        ending = replace(ending, reason=f"{ending.reason}; processes that could not be ended: {unkillable}")
    write(folder / ENDING, ending)


def supervise(folder: Path, group: Group, spawn: Spawn) -> Ending:
    """Start all ranks and wait until all have succeeded, one has failed, or their time is up."""
    ranks = {rank: start(folder, rank, order, spawn) for rank, order in enumerate(group.ranks, group.first_rank)}
    deadline = time.monotonic() + group.timeout_seconds
    exits: dict[int, float] = {}  # when each rank's failure was first seen, by the clock of the ranks' answers
    places, changed = None, time.monotonic()
    looked = changed
    while True:
        codes = {rank: process.poll() for rank, process in ranks.items()}
        exits |= {rank: time.monotonic() for rank, code in codes.items() if code and rank not in exits}
        if exits and time.monotonic() - min(exits.values()) > GRACE_SECONDS:
            return failure(folder, codes, exits)
        if all(code == 0 for code in codes.values()):
            return Ending(status="ok")
        if (now := progress(folder, ranks)) != places:
            places, changed = now, time.monotonic()
        for rank in ranks:
            free_middle(rank_log(folder, rank))
        quiet = time.monotonic() - changed
        if quiet > group.stall_seconds or time.monotonic() > deadline:
            return out_of_time(folder, ranks, quiet, group)
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(sys.stdin.fileno(), 1):
            return Ending(status="killed", reason="the harness was interrupted", cause=Cause(kind="interrupted"))
        before, looked = looked, time.monotonic()
        if group.timed and looked - before > PAUSE_SECONDS:
            return paused(looked - before)


def start(folder: Path, rank: int, process: RankProcess, spawn: Spawn) -> Rank:
    """Start one rank on its share of the cores, with its output in a log."""
    write(folder / progress_file(rank), Progress(activity="starting"))
    variables = process.environment | {SUPERVISOR: str(os.getpid())}
    with rank_log(folder, rank).open("wb") as log, confined(process.cores):
        return spawn(process.command, variables, folder, log)


@contextlib.contextmanager
def confined(cores: Sequence[int]) -> Iterator[None]:
    """What is started here may use only these cores, if any are given. Libraries size their thread pools by it."""
    before = os.sched_getaffinity(0) if cores and hasattr(os, "sched_getaffinity") else None
    try:
        if before:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)


def execute(command: Sequence[str], variables: dict[str, str], folder: Path, log: IO[bytes]) -> Rank:
    """Start a process in a session of its own."""
    return subprocess.Popen(
        command, env=variables, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


def failure(folder: Path, codes: dict[int, int | None], exits: dict[int, float]) -> Ending:
    """How the first rank failed. The others usually fail because of it.

    The time of a failure is that of the rank's answer, or, if it could not give one, when its exit was seen.
    """
    failed: list[tuple[float, int, Ending]] = []
    for rank, code in codes.items():
        answer = read_answer(folder, rank)
        if answer is not None and answer.status != "ok":
            said = Ending(status=answer.status, reason=answer.reason, cause=answer.cause, traceback=answer.traceback)
            failed.append((answer.ended, rank, said))
        elif code and code < 0:
            name = signal_name(-code)
            hint = "; out of host memory?" if -code == signal.SIGKILL else ""
            cause = Cause(kind="killed", data={"rank": rank, "signal": name})
            failed.append((exits[rank], rank, Ending(status="killed", reason=f"ended by {name}{hint}", cause=cause)))
        elif code:
            reason = f"exit code {code} without an answer; its log ends: {last_line(rank_log(folder, rank))}"
            cause = Cause(kind="no_answer", data={"rank": rank, "code": code})
            failed.append((exits[rank], rank, Ending(status="crashed", reason=reason, cause=cause)))
    _, rank, ending = min(failed, key=lambda entry: entry[:2])
    where = f"rank {rank}: " if len(codes) > 1 or rank else ""
    return replace(ending, reason=where + ending.reason)


def paused(seconds: float) -> Ending:
    """The ending of a timed phase whose supervisor did not run for a while.

    A container that is paused, or a frozen control group, tells its processes nothing: their clocks just go on.
    """
    reason = (
        f"the supervisor could not run for {seconds:.1f} s: the machine or its container was paused or overloaded, and "
        "the times would count that; run --resume measures it again"
    )
    return Ending(status="killed", reason=reason, cause=Cause(kind="killed", data={"signal": "SIGSTOP"}))


def out_of_time(folder: Path, ranks: Iterable[int], quiet: float, group: Group) -> Ending:
    """`hung` if no rank has made progress within the stall limit, else `timeout`. Asks the ranks where they are."""
    for process in living(psutil.Process()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if handles(process, signal.SIGUSR1):  # a wrapper script around a rank would die of it
                process.send_signal(signal.SIGUSR1)  # faulthandler writes every thread's stack into the log
    time.sleep(0.2)
    where = "; ".join(f"rank {rank} at {place!r}" for rank, (_, place) in progress(folder, ranks).items())
    if quiet > group.stall_seconds:
        # Half of --timeout may pass without progress (harness/planning/request_checks.py).
        longer = max(4 * group.stall_seconds, group.timeout_seconds)
        hint = f"it is stuck, or it compiles for long; in that case start a new run with --timeout {longer:g}"
        reason = f"no progress for {quiet:.1f} s ({where}): {hint}"
        return Ending(status="hung", reason=reason, cause=Cause(kind="no_progress", data={"seconds": quiet}))
    cause = Cause(kind="time_limit", data={"seconds": group.timeout_seconds})
    hint = f"for twice that, start a new run with --timeout {2 * group.timeout_seconds:g}"
    return Ending(status="timeout", reason=f"not done after {group.timeout_seconds:g} s ({where}): {hint}", cause=cause)


def progress(folder: Path, ranks: Iterable[int]) -> dict[int, tuple[int, str]]:
    """When each rank last reported its progress, and what it reported. Only changes matter, not the times."""
    paths = {rank: folder / progress_file(rank) for rank in ranks}
    return {
        rank: (path.stat().st_mtime_ns, str(codec.loads(Progress, path.read_text("utf-8"))))
        for rank, path in paths.items()
    }


def rank_log(folder: Path, rank: int) -> Path:
    """Where the output of a rank goes."""
    return folder / f"rank{rank}.log"


def read_answer(folder: Path, rank: int) -> Answer | None:
    """What a rank has answered, if it has."""
    path = folder / answer_file(rank)
    return codec.loads(Answer, path.read_text("utf-8")) if path.exists() else None


def end_descendants() -> list[int]:
    """End all descendants of this process, first by SIGTERM, then by SIGKILL. Returns the ids of those still alive."""
    this = psutil.Process()
    # SIGKILL twice: a process may have forked in the meantime.
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        alive = living(this)
        if not alive:
            break
        for child in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)
        psutil.wait_procs(alive, timeout=GRACE_SECONDS if number == signal.SIGTERM else 5)
    return [child.pid for child in living(this)]


def handles(process: psutil.Process, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def living(process: psutil.Process) -> list[psutil.Process]:
    """All descendants that are not zombies."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


if __name__ == "__main__":
    main()
