"""Starts supervisors: as processes of their own, or, without importing the framework again, forked from a zygote.

Forks are for CPU devices of one host under the harness's own interpreter, and for times that are not compared with
those of other launches. What forks of one zygote have in common (Python's hash seed, the addresses of libraries) would
be the same in all replicates. On GPUs every launch is measured like that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import psutil

from harness.launch.group import IMPORTS, ROOM_FOR_ID, SUPERVISOR, RankProcess
from harness.launch.launcher import Launch
from harness.launch.supervisor import confined
from harness.launch.worker_code import link_code
from harness.messages import TIMED
from harness.spec import FrameworkSpec

READY_SECONDS = 120.0  # for imports that take three
ANSWER_SECONDS = 20.0
MEMORY = 4 * 2**30  # bytes that must be available for another zygote, which takes a tenth


class ForkedSupervisor:
    """A supervisor that a zygote has forked, to be used like a subprocess.Popen."""

    def __init__(self, pid: int, stdin: int, report: int) -> None:
        """`stdin`: the writing end of its standard input. `report`: the pipe on which its exit code comes."""
        self.pid, self._report = pid, report
        self.stdin = os.fdopen(stdin, "wb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("supervisor", timeout)
            told = os.read(self._report, 16)  # nothing if the zygote has been killed, too
            os.close(self._report)
            self.returncode = int(told or -signal.SIGKILL)
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


Supervisor: TypeAlias = subprocess.Popen[bytes] | ForkedSupervisor


class Zygote:
    """A process that has imported a framework: harness/launch/zygote.py."""

    def __init__(self, package: str, folder: Path, variables: Mapping[str, str], cores: Sequence[int]) -> None:
        """`variables` and `cores` are what libraries may read when they are imported. Raises OSError if it fails."""
        folder.mkdir(parents=True)
        places = os.pathsep.join([str(link_code(folder / "code", package)), *_callers_places(variables)])
        self._control, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end, (folder / IMPORTS).open("wb") as log, confined(cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.launch.zygote", package, str(its_end.fileno())],
                env={**variables, "PYTHONPATH": places, SUPERVISOR: ROOM_FOR_ID},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[its_end.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone
            )
        try:
            self._answer(READY_SECONDS)
        except BaseException:
            self.close()
            raise

    def fork(self, folder: Path, log: int) -> ForkedSupervisor:
        """Start the supervisor of the launch in a folder. Raises OSError if the zygote is gone."""
        message = json.dumps([str(folder), sorted(os.sched_getaffinity(0))]).encode()
        (its_stdin, stdin), (report, its_report) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._control, [message], [its_stdin, log, its_report])
            pid = int(self._answer(ANSWER_SECONDS))
            os.write(stdin, b"\n")  # a supervisor whose zygote did not answer waits for this, and does nothing
            return ForkedSupervisor(pid, stdin, report)
        except BaseException:
            os.close(stdin)
            os.close(report)
            raise
        finally:
            os.close(its_stdin)
            os.close(its_report)

    def close(self) -> None:
        """End it. Supervisors that it has forked go on."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _answer(self, seconds: float) -> bytes:
        self._control.settimeout(seconds)
        if answer := self._control.recv(64):
            return answer
        raise ConnectionResetError("the zygote is gone")


class Supervisors:
    """The supervisors of a session, and its zygotes. A zygote begins with the first launch that needs it."""

    def __init__(self) -> None:
        self._zygotes: dict[str, Zygote | None] = {}  # None: it could not be started
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # parity phases run side by side

    def start(self, launch: Launch, framework: FrameworkSpec, rank: RankProcess) -> Supervisor:
        """Start the supervisor of a launch. `rank`: one of its ranks."""
        with (launch.folder / "supervisor.log").open("wb") as log:
            if may_fork(launch, framework) and (forked := self._fork(launch, framework, rank, log.fileno())):
                return forked
            return execute(launch.folder, log.fileno())

    def close(self) -> None:
        """End all zygotes."""
        for zygote in filter(None, self._zygotes.values()):
            zygote.close()
        self._zygotes.clear()

    def _fork(self, launch: Launch, framework: FrameworkSpec, rank: RankProcess, log: int) -> ForkedSupervisor | None:
        """Fork the supervisor of a launch from the zygote with its variables. None if there is none."""
        variables = {name: value for name, value in rank.environment.items() if name != framework.compile_cache}
        key = json.dumps([launch.spec.framework, len(rank.cores), variables | {"PYTHONPATH": ""}])
        with self._locks[key]:
            try:
                if key not in self._zygotes and psutil.virtual_memory().available > MEMORY:
                    self._zygotes[key] = None
                    folder = launch.folder.parent / f"zygote-{time.monotonic_ns()}"
                    self._zygotes[key] = Zygote(framework.package, folder, variables, rank.cores)
                zygote = self._zygotes.get(key)
                return zygote.fork(launch.folder, log) if zygote else None
            except OSError:
                if zygote := self._zygotes.get(key):  # it has died: the next launch gets another
                    zygote.close()
                    del self._zygotes[key]
                return None


def execute(folder: Path, log: int) -> subprocess.Popen[bytes]:
    """Start the supervisor of the launch in a folder as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness.launch.supervisor", str(folder)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd=folder / "code",
        start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which then ends the rest
    )


def may_fork(launch: Launch, framework: FrameworkSpec) -> bool:
    """Whether the processes of a launch may be forked: see above."""
    on_cpu = launch.spec.platform == "cpu" and sys.platform == "linux"
    on_one_host = len(launch.place.hosts) == 1
    compared = launch.replicated and launch.phase in TIMED
    return framework.forks and on_cpu and on_one_host and launch.interpreter == sys.executable and not compared


def _callers_places(variables: Mapping[str, str]) -> list[str]:
    """The caller's folders of modules, after that with the links to our code."""
    return variables["PYTHONPATH"].split(os.pathsep)[1:]
