"""Launches one phase of one trial on this machine: a fresh process per rank, under the framework's interpreter.

The ranks belong to a supervisor process of their own. Everything passes through files in the order's folder: job.json
for the ranks, group.json for the supervisor, and the answers of both.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from harness.launch.worker_code import link_code
from harness.machine import environment
from harness.machine.devices import Machine
from harness.spec import FrameworkSpec, Status, TrialSpec, registry

POLL_SECONDS = 0.1
# Without progress for this share of its time limit, or for this many seconds if that is less, a trial counts as hung.
STALL_SHARE, STALL_SECONDS = 0.5, 300.0
KILL_SECONDS = 20.0  # how long the supervisor may take to end its processes


PhaseName = Literal["parity", "timing", "training"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One phase to launch. `inputs` and `golden` are files that the worker reads."""

    spec: TrialSpec
    phase: PhaseName
    interpreter: str
    folder: Path
    inputs: Path
    golden: Path
    test: Path | None = None  # training: the test set
    run_folder: Path | None = None  # training: where checkpoints are saved
    checkpoint: Path | None = None  # training: the checkpoint to resume from
    init_from: Path | None = None  # training: the checkpoint with the initial weights
    compile_cache: Path | None = None  # where the framework keeps compiled code
    shares: bool = False  # whether other launches use the same GPUs at the same time
    groups: int = 1
    devices_in_plan: int = 1  # the most that any cell uses: on CPU each device gets an equal share of the cores


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a phase ended, and each rank's answer (empty if the rank gave none)."""

    status: Status
    reason: str
    traceback: str
    answers: tuple[dict[str, Any], ...]
    cores: int = 0


def launch(
    order: Order,
    machine: Machine,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a phase until it ends, in whatever way. On an exception (Ctrl-C) all its processes are ended first.

    `stop`: ends the phase as well, as soon as it is set.
    """
    spec, folder = order.spec, order.folder
    framework = registry.framework(spec.framework)
    processes = spec.devices if framework.strategy(spec.strategy).processes == "per_device" else 1
    shares = core_shares(machine.cores, processes, spec.devices, order.devices_in_plan, spec.platform)
    folder.mkdir(parents=True)
    variables = _variables(order, framework, machine, cores=len(shares[0]))
    job = _job(order, framework, processes=processes, cores=len(shares[0]))
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "group.json").write_text(json.dumps(_group(order, variables, shares)))
    ended = _supervise(folder, on_progress, spec.timeout_seconds, stop or threading.Event())
    return Outcome(
        status=ended["status"],
        reason=ended["reason"],
        traceback=ended["traceback"],
        answers=tuple(_answer(folder, rank) for rank in range(processes)),
        cores=len(shares[0]),
    )


def _variables(order: Order, framework: FrameworkSpec, machine: Machine, *, cores: int) -> dict[str, str]:
    """All environment variables of a rank. Links the code and makes the folder for temporary files."""
    spec = order.spec
    variables = environment.worker_environment(
        machine=machine,
        platform=spec.platform,
        devices=spec.devices,
        cores=cores,
        own=framework.environment.get(spec.platform, {}),
        code=link_code(order.folder / "code", framework.package),
    )
    for setting in framework.settings:
        if spec.settings.get(setting.name):
            for name, value in setting.environment.items():
                variables[name] = f"{value} {variables.get(name, '')}".strip()
    if order.shares:
        variables |= framework.sharing
    if order.compile_cache and framework.compile_cache:
        variables[framework.compile_cache] = str(order.compile_cache)
    # Libraries leave files there when a process ends abruptly. This folder is deleted with all others of the session.
    temporary = order.folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    variables["TMPDIR"] = str(temporary)
    return variables


def _job(order: Order, framework: FrameworkSpec, *, processes: int, cores: int) -> dict[str, Any]:
    """What every rank reads."""
    spec = order.spec
    return {
        "spec": asdict(spec),
        "phase": order.phase,
        "package": framework.package,
        "distributions": framework.distributions,
        "world": {
            "processes": processes,
            "devices": spec.devices,
            "platform": spec.platform,
            "cores": cores,
            "rendezvous": f"file://{order.folder}/rendezvous",
        },
        "inputs": str(order.inputs),
        "golden": str(order.golden),
        "groups": order.groups,
        "compile_cache": str(order.compile_cache or ""),
        "test": str(order.test or ""),
        "run_folder": str(order.run_folder or ""),
        "checkpoint": str(order.checkpoint or ""),
        "init_from": str(order.init_from or ""),
    }


def _group(order: Order, variables: dict[str, str], shares: Sequence[list[int]]) -> dict[str, Any]:
    """What the supervisor reads: each rank's command, environment and cores, and the time limits."""
    spec = order.spec
    command = [order.interpreter, "-m", "harness.worker.main", str(order.folder), "--rank"]
    ranks = [
        {
            "command": [*command, str(rank)],
            "environment": variables,
            # A GPU trial may use every core. On CPU the cores are the devices.
            "cores": share if spec.platform == "cpu" else [],
        }
        for rank, share in enumerate(shares)
    ]
    return {"ranks": ranks, "timeout_seconds": spec.timeout_seconds, "stall_seconds": stall_seconds(spec)}


def _answer(folder: Path, rank: int) -> dict[str, Any]:
    """A rank's answer; if it was ended before it could give one, what it had written by then."""
    for path in (folder / f"rank{rank}.json", folder / f"rank{rank}.so-far.json"):
        if path.exists():
            return json.loads(path.read_text())
    return {}


def stall_seconds(spec: TrialSpec) -> float:
    """How long a trial may go without a sign of progress."""
    return min(spec.timeout_seconds * STALL_SHARE, STALL_SECONDS)


def core_shares(
    cores: tuple[int, ...], processes: int, trial_devices: int, plan_devices: int, platform: str
) -> list[list[int]]:
    """The cores of each process.

    On CPU, every device of every cell has the same number of cores: cores // plan_devices, at least one. So one device
    under `single` is no larger a part of the machine than one under `ddp`. On GPUs all cores are split evenly between
    the processes.
    """
    per_device = max(1, len(cores) // plan_devices) if platform == "cpu" else max(1, len(cores) // trial_devices)
    per_process = per_device * (trial_devices // processes)
    return [
        [cores[(rank * per_process + index) % len(cores)] for index in range(min(per_process, len(cores)))]
        for rank in range(processes)
    ]


def _supervise(
    folder: Path, on_progress: Callable[[str], None], timeout_seconds: float, stop: threading.Event
) -> dict[str, Any]:
    """Start the supervisor and wait for it. Closing its standard input, in whatever way, makes it end everything."""
    supervisor = _start_supervisor(folder)
    path, limit = folder / "outcome.json", time.monotonic() + timeout_seconds + KILL_SECONDS
    try:
        while supervisor.poll() is None and time.monotonic() < limit and not stop.is_set():
            progress = folder / "rank0.progress"
            if progress.exists():
                on_progress(progress.read_text())
            time.sleep(POLL_SECONDS)
    finally:
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        try:
            supervisor.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.kill()  # its ranks die with it
        if not path.exists():
            end_orphans(supervisor.pid)
    if path.exists():
        return json.loads(path.read_text())
    lines = (folder / "supervisor.log").read_text(errors="replace").strip().splitlines()
    reason = f"the supervisor ended early: {(lines or ['no message'])[-1]}"
    return {"status": "crashed", "reason": reason, "traceback": ""}


def _start_supervisor(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "supervisor.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.launch.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder / "code",
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which then ends the rest
        )


def end_orphans(supervisor: int) -> None:
    """End what a killed supervisor has left behind.

    Its ranks die with it, but not the processes that they have started. Those are found by an inherited environment
    variable, which holds the supervisor's process id.
    """
    for _ in range(3):  # one may have started another in the meantime
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("LIKEFORLIKE_SUPERVISOR") == str(supervisor):
                    process.kill()
