"""Imports a framework once, and is forked for each launch: into a supervisor, which is forked into the ranks.

    python -m harness.launch.zygote PACKAGE SOCKET

The framework is imported and not started, and this process computes nothing: it has one thread and no device. It says
"ready" on the socket, or ends if an import has left more than modules. A message then holds a launch's folder and the
cores of its supervisor, with three file descriptors: the supervisor's standard input, its log, and a pipe for its exit
code. The answer is the supervisor's process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from harness.launch import supervisor
from harness.launch.group import IMPORTS, ROOM_FOR_ID, SUPERVISOR
from harness.spec.processes import stat_fields


def main() -> None:
    package, number = sys.argv[1:]
    control = socket.socket(fileno=int(number))
    importlib.import_module(f"{package}.runtime")
    importlib.import_module("harness.worker.main")
    del sys.modules["harness.worker.main"]  # each rank runs it as its main module
    sys.stdout.flush()  # else every rank would print the same
    ctypes.CDLL(None).fflush(None)
    if not is_clean(control):
        sys.exit(f"cannot be forked: {package}.runtime starts a thread or opens a file when it is imported")
    control.send(b"ready")
    serve(control)
    os._exit(0)


def is_clean(control: socket.socket) -> bool:
    """Whether this process has no thread, no child and no open file that a fork would miss or share."""
    if os.fork() == 0:  # OpenBLAS ends its idle threads before a fork, and starts them when they are needed
        os._exit(0)
    os.wait()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # an error where there is none
        return False
    known = {"0", "1", "2", str(control.fileno())}
    opened = [entry for entry in Path("/proc/self/fd").iterdir() if entry.exists() and entry.name not in known]
    return not opened and len([*Path("/proc/self/task").iterdir()]) == 1


def serve(control: socket.socket) -> None:
    """Fork a supervisor for each message, and report its exit code. Returns when the harness has closed its end."""
    running: dict[int, tuple[int, int]] = {}  # by a descriptor of the process: its id, and the pipe for its code
    while True:
        for ready in select.select([control, *running], [], [])[0]:
            if isinstance(ready, socket.socket):
                message, descriptors, _, _ = socket.recv_fds(control, 2**16, 3)
                if not message:
                    return
                pid = os.fork()
                if pid == 0:
                    folder, cores = json.loads(message)
                    leave_after(partial(supervise, Path(folder), cores, descriptors))
                *closed, report = descriptors
                running[os.pidfd_open(pid)] = pid, report
                control.send(str(pid).encode())
            else:
                pid, report = running.pop(ready)
                with contextlib.suppress(OSError):  # the harness has given up
                    os.write(report, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                closed = [ready, report]
            for descriptor in closed:
                os.close(descriptor)


def leave_after(work: Callable[[], None]) -> NoReturn:
    """End this process after a call, with the exit code that the interpreter would give it."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        sys.stderr.write(f"{error.code}\n" * isinstance(error.code, str))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def supervise(folder: Path, cores: list[int], descriptors: list[int]) -> None:
    """In a fork: be the supervisor of a launch. It begins when the harness has learned its id."""
    stdin, log, report = descriptors
    os.setsid()
    take_over(stdin, log, log, report)  # the pipe closes with this process, if the zygote should end earlier
    os.sched_setaffinity(0, cores)
    show_supervisor()
    imported = Imported.here()
    os.chdir(folder / "code")
    if os.read(0, 1):
        supervisor.run(folder, partial(fork_rank, imported=imported))


@dataclass(frozen=True)
class Imported:
    """What the imports have left that a rank needs to know: their output, the folder of their code, and variables."""

    output: bytes
    code: str
    variables: dict[str, str]

    @classmethod
    def here(cls) -> Imported:
        """What they have left in this process, which works in the zygote's folder."""
        given = {variable.partition(b"=")[0] for variable in Path("/proc/self/environ").read_bytes().split(b"\0")}
        added = {name: value for name, value in os.environ.items() if name.encode() not in given}
        return cls(Path(IMPORTS).read_bytes(), str(Path.cwd() / "code"), added)


class ForkedRank:
    """A rank that was forked."""

    def __init__(self, pid: int) -> None:
        self._pid, self._code = pid, None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code


def fork_rank(
    command: Sequence[str], variables: dict[str, str], folder: Path, log: IO[bytes], *, imported: Imported
) -> ForkedRank:
    """Start a rank in a fork of the supervisor."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)  # the supervisor's handlers are not the rank's
    pid = os.fork()
    if pid == 0:
        log.write(imported.output)
        log.flush()
        leave_after(partial(be_rank, command, variables, folder, log.fileno(), imported))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
    return ForkedRank(pid)


def be_rank(command: Sequence[str], variables: dict[str, str], folder: Path, log: int, imported: Imported) -> None:
    """Be what `command` would be in a process of its own: in its session, streams, variables, paths and handlers."""
    for number in supervisor.SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
    os.setsid()
    os.chdir(folder)
    take_over(os.open(os.devnull, os.O_RDONLY), log, log)
    os.environ.clear()
    os.environ.update(imported.variables | variables)
    sys.path[:] = [str(folder / "code") if place == imported.code else place for place in sys.path]
    sys.path[0] = str(folder)
    np.random.seed()  # it was seeded at its import; Python's own generator sees to itself
    sys.argv[1:] = command[3:]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)


def take_over(*descriptors: int) -> None:
    """Make these the descriptors 0, 1 and so on, and close all others."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for entry in [*Path("/proc/self/fd").iterdir()]:
        if int(entry.name) >= len(descriptors):
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(entry.name))


def show_supervisor() -> None:
    """Write this process's id into the variables that the system shows of it and of what is forked from it.

    The harness finds by them what a killed supervisor has left.
    """
    start, end = (int(field) for field in stat_fields(os.getpid())[47:49])  # env_start, env_end
    block = (ctypes.c_char * (end - start)).from_address(start)
    ids = (ROOM_FOR_ID, str(os.getpid()).zfill(len(ROOM_FOR_ID)))
    before, after = (f"\0{SUPERVISOR}={value}\0".encode() for value in ids)
    where = block.raw.index(before)
    block[where : where + len(after)] = after


if __name__ == "__main__":
    main()
