"""What every process that the harness starts does about its parent, and how a signal is called."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from pathlib import Path


def die_with_parent() -> None:
    """On Linux, ask for SIGKILL when the supervisor dies, even by SIGKILL itself.

    The supervisor's child may be a wrapper script that starts Python as a child of its own. Then the system tells this
    process of the wrapper's death only, and a thread waits for the supervisor's.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    supervisor = os.environ.get("LIKEFORLIKE_SUPERVISOR", "")
    if supervisor == str(os.getppid()):
        return
    if not supervisor.isdecimal() or int(supervisor) not in ancestors():
        # It died while this process was starting, or a wrapper has this process run elsewhere.
        print(  # noqa: T201 -- into this rank's log
            f"the supervisor (process {supervisor}) is no ancestor of this process: a wrapper given as --interpreter "
            "must start Python itself, with its own environment variables, and not through a daemon",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)
    threading.Thread(target=_die_with, args=[int(supervisor)], daemon=True).start()


def ancestors() -> list[int]:
    """The ids of the processes above this one, its parent first."""
    found, process = [], os.getppid()
    while process:
        found.append(process)
        try:
            process = int(stat_fields(process)[1])
        except OSError:  # it has ended
            break
    return found


def stat_fields(pid: int) -> list[str]:
    """What /proc says of a process after its name: the state first, then the parent's id (man 5 proc_pid_stat).

    Raises OSError if there is no such process.
    """
    # The name in parentheses may hold anything, even a parenthesis.
    return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()


def _die_with(supervisor: int) -> None:
    try:
        ended = os.pidfd_open(supervisor)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    except OSError:  # a kernel older than Linux 5.3; the harness then ends what is left
        return
    select.select([ended], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def signal_name(number: int) -> str:
    """The name of a signal; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
