"""Long golden runs, each in a process of its own, as many at a time as the cores and the memory allow.

The devices are idle until the golden references are ready, so all that a plan needs are computed together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.gate.runs import THREADS, GoldenRun
from harness.launch.interrupts import raise_if_lost
from harness.launch.logs import last_line
from harness.launch.worker_code import link_code
from harness.machine import machine_record
from harness.machine.devices import cores
from harness.spec import OUT_OF_TIME, Cause, codec, workload_packages
from harness.spec.errors import UsageError
from harness.spec.processes import signal_name

LONG_FLOPS = 2e10  # about a second of NumPy on one core; a process takes half a second to start
# BLAS uses at most half the cores: its threads wait for each other, so one that shares its core slows down all.
MOST_BLAS_THREADS = 4
POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a golden run was not computed: in words, and as the cause that its trials get."""

    reason: str
    cause: Cause


def in_processes(
    runs: Sequence[GoldenRun], *, on_progress: Callable[[str], None], over: Callable[[], bool] = lambda: False
) -> dict[Path, Failure]:
    """Compute several runs at the same time, each in a process.

    All processes are ended on an exception (Ctrl-C) and as soon as `over` says that there is no time left. A run that
    fails while others are running is tried again alone, since the likely cause is a lack of memory.

    Returns the reasons why runs were not computed, keyed by folder. Raises UsageError for a reference that diverges.
    """
    at_once = processes_at_once(runs, cores=len(cores()), memory_bytes=psutil.virtual_memory().available)
    threads = max(1, min(MOST_BLAS_THREADS, len(cores()) // (2 * THREADS * at_once)))
    waiting = deque(sorted(runs, key=lambda run: -run.flops))  # longest first, so that no long run starts last
    running: dict[subprocess.Popen[bytes], GoldenRun] = {}
    failures: dict[Path, Failure | None] = {}  # of runs that have ended: why the last attempt failed
    try:
        while waiting or running:
            if over():
                late = Failure(reason=OUT_OF_TIME, cause=Cause(kind="not_begun"))
                failures |= {run.folder: late for run in (*waiting, *running.values())}
                break
            while waiting and len(running) < at_once:
                run = waiting.popleft()
                running[start(run, threads)] = run
            time.sleep(POLL_SECONDS)
            raise_if_lost()
            for process in [process for process in running if process.poll() is not None]:
                run = running.pop(process)
                failed = failure(run, process.returncode)
                if failed and len(runs) > 1 and run.folder not in failures:
                    at_once = 1
                    waiting.append(run)
                failures[run.folder] = failed
            on_progress(f"{len(runs) - len(waiting) - len(running)} of {len(runs)} done, {len(running)} running")
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
    return {folder: failed for folder, failed in failures.items() if failed}


def too_large(run: GoldenRun) -> Failure | None:
    """Why a run is not even started: it would need more memory than this host has. None for all others."""
    host = psutil.virtual_memory().total
    if run.memory_bytes <= host:
        return None
    needed, has = (f"{size / 2**30:.0f} GiB" for size in (run.memory_bytes, host))
    reason = (
        f"{_title(run)} is not computed: with batches of {run.batch:,} samples it would need some {needed} of host "
        f"memory, and this host has {has}; choose a smaller --global-batch"
    )
    return Failure(reason=reason, cause=Cause(kind="no_reference"))


def _title(run: GoldenRun) -> str:
    return f"the golden {run.phase} of {run.spec.workload} {run.spec.size}"


def processes_at_once(runs: Sequence[GoldenRun], *, cores: int, memory_bytes: float) -> int:
    """How many of these runs fit on this machine at a time: at least one."""
    most = max(run.memory_bytes for run in runs)
    return max(1, min(len(runs), cores // THREADS, int(memory_bytes // most)))


def start(run: GoldenRun, threads: int) -> subprocess.Popen[bytes]:
    """Start one process. The number of BLAS threads is set in its environment: BLAS reads it when NumPy is imported."""
    run.folder.mkdir(exist_ok=True)
    (run.folder / "run.json").write_text(codec.dumps(run), "utf-8")
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    own, packages = run.folder / "code", workload_packages.packages_of(run.spec.workload)
    if packages and not own.exists():  # it does if the run is tried again
        link_code(own, *packages)
    path = os.pathsep.join(filter(None, [str(machine_record.PROJECT), str(own), os.environ.get("PYTHONPATH", "")]))
    with (run.folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.gate.runs", str(run.folder)],
            env=os.environ | limits | {"PYTHONPATH": path, "LIKEFORLIKE_SUPERVISOR": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which then ends the rest
        )


def failure(run: GoldenRun, code: int) -> Failure | None:
    """Why a run could not be computed; None if it was. Raises UsageError for a reference that diverges."""
    refused = run.folder / "refused"
    if refused.exists():
        raise UsageError(refused.read_text("utf-8"))
    if not code:
        return None
    reason = f"ended by {signal_name(-code)}; out of host memory?" if code < 0 else f"exit code {code}"
    return Failure(
        reason=": ".join([f"{_title(run)} cannot be computed", reason, last_line(run.folder / "log")]),
        cause=Cause(kind="no_reference", data={"code": code}),
    )
