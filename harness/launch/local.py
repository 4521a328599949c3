"""Launching one phase of one trial: fresh processes, one a rank, under the framework's interpreter; results by file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from harness.machine import environment
from harness.machine.devices import Machine
from harness.spec import Status, TrialSpec, registry

POLL_SECONDS = 0.1
STALL_SHARE, STALL_SECONDS = 0.5, 300.0  # of the time limit, and at most: so long without progress counts as hung
KILL_SECONDS = 20.0  # that long the supervisor may take to end its processes


@dataclass(frozen=True, kw_only=True)
class Order:
    """One phase to launch. `inputs` and `golden` are files that the worker reads."""

    spec: TrialSpec
    phase: Literal["parity", "timing", "training"]
    interpreter: str
    folder: Path
    inputs: Path
    golden: Path
    test: Path | None = None  # training: the test set,
    run_folder: Path | None = None  # where checkpoints go,
    checkpoint: Path | None = None  # the one that training goes on from,
    init_from: Path | None = None  # or takes its first weights from
    compile_cache: Path | None = None  # where what it compiles is kept
    shares: bool = False  # whether other launches use the same GPUs at the same time
    groups: int = 1
    devices_in_plan: int = 1  # the most that any cell uses: on CPU each device gets an equal share of the cores


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a phase ended, and each rank's answer (empty where a rank gave none)."""

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
    """Run the phase to its end, whatever that is. On an exception (Ctrl-C), all its processes are ended first.

    `stop`: ends it likewise when it is set.
    """
    spec, folder = order.spec, order.folder
    framework = registry.framework(spec.framework)
    processes = spec.devices if framework.strategy(spec.strategy).processes == "per_device" else 1
    shares = core_shares(machine.cores, processes, spec.devices, order.devices_in_plan, spec.platform)
    folder.mkdir(parents=True)
    variables = environment.worker_environment(
        machine=machine,
        platform=spec.platform,
        devices=spec.devices,
        cores=len(shares[0]),
        own=framework.environment.get(spec.platform, {}),
        code=link_code(folder / "code", framework.package),
    )
    for setting in framework.settings:
        for name, value in setting.environment.items() if spec.settings.get(setting.name) else ():
            variables[name] = f"{value} {variables.get(name, '')}".strip()
    variables |= framework.sharing if order.shares else {}
    if order.compile_cache and framework.compile_cache:
        variables[framework.compile_cache] = str(order.compile_cache)
    # libraries leave files there when a process ends at once; this folder goes with the run's others
    variables["TMPDIR"] = str(folder.parent / "tmp")
    (folder.parent / "tmp").mkdir(exist_ok=True)
    world = {"processes": processes, "devices": spec.devices, "platform": spec.platform, "cores": len(shares[0])}
    job = {
        "spec": asdict(spec),
        "phase": order.phase,
        "package": framework.package,
        "distributions": framework.distributions,
        "world": world | {"rendezvous": f"file://{folder}/rendezvous"},
        "inputs": str(order.inputs),
        "golden": str(order.golden),
        "groups": order.groups,
        "compile_cache": str(order.compile_cache or ""),
        "test": str(order.test or ""),
        "run_folder": str(order.run_folder or ""),
        "checkpoint": str(order.checkpoint or ""),
        "init_from": str(order.init_from or ""),
    }
    command = [order.interpreter, "-m", "harness.worker.main", str(folder), "--rank"]
    ranks = [
        # A GPU trial may use every core; on CPU the devices are the cores.
        {"command": [*command, str(rank)], "environment": variables, "cores": share if spec.platform == "cpu" else []}
        for rank, share in enumerate(shares)
    ]
    limits = {"timeout_seconds": spec.timeout_seconds, "stall_seconds": stall_seconds(spec)}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "group.json").write_text(json.dumps({"ranks": ranks} | limits))
    ended = _supervise(folder, on_progress, limits["timeout_seconds"], stop or threading.Event())
    answers = []
    for rank in range(processes):
        paths = [folder / f"rank{rank}.json", folder / f"rank{rank}.so-far.json"]  # the second of one that was ended
        answers.append(next((json.loads(path.read_text()) for path in paths if path.exists()), {}))
    return Outcome(
        status=ended["status"],
        reason=ended["reason"],
        traceback=ended["traceback"],
        answers=tuple(answers),
        cores=len(shares[0]),
    )


def stall_seconds(spec: TrialSpec) -> float:
    """How long a trial may be without a sign of progress."""
    return min(spec.timeout_seconds * STALL_SHARE, STALL_SECONDS)


def core_shares(
    cores: tuple[int, ...], processes: int, trial_devices: int, plan_devices: int, platform: str
) -> list[list[int]]:
    """The cores of each process.

    On CPU a device is an equal part of the cores, cores // plan_devices of them (at least one), whatever the framework
    or strategy: one device is no more of the machine under `single` than under `ddp`. On GPUs all cores are split
    evenly between the processes.
    """
    per_device = max(1, len(cores) // plan_devices) if platform == "cpu" else max(1, len(cores) // trial_devices)
    per_process = per_device * (trial_devices // processes)
    return [
        [cores[(rank * per_process + index) % len(cores)] for index in range(min(per_process, len(cores)))]
        for rank in range(processes)
    ]


def code_digest(framework: str) -> str:
    """Tells the code that a worker runs, ours but for reports and the framework package's, from any other: a commit
    could not, of a plug-in or where files are not committed."""
    digest, reports = hashlib.sha256(), registry.package_folder("harness") / "reporting"
    for package in ("harness", registry.framework(framework).package):
        folder = registry.package_folder(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(reports):
                digest.update(f"{package}/{path.relative_to(folder)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def link_code(folder: Path, package: str) -> Path:
    """A folder holding nothing but links to the packages that a worker needs.

    Another interpreter must find our code, but not, through the folder that holds it, all the packages of this one.
    """
    folder.mkdir()
    for name in ("harness", package):
        origin = registry.package_folder(name)
        (folder / name).symlink_to(origin, target_is_directory=True)
    return folder


def _supervise(
    folder: Path, on_progress: Callable[[str], None], timeout_seconds: float, stop: threading.Event
) -> dict[str, Any]:
    """Start the supervisor and wait for it. Closing its standard input, in whatever way, makes it end everything."""
    with (folder / "supervisor.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "harness.launch.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder / "code",
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which then ends the rest
        )
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
    return {
        "status": "crashed",
        "reason": f"the supervisor ended early: {(lines or ['no message'])[-1]}",
        "traceback": "",
    }


def end_orphans(supervisor: int) -> None:
    """End what a supervisor that was killed has left: its ranks die with it, but not what they have started, which has
    the supervisor's process id among its variables as they have."""
    for _ in range(3):  # one may have started another in between
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("LIKEFORLIKE_SUPERVISOR") == str(supervisor):
                    process.kill()
