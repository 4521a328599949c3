"""A session's scratch folder. It is deleted when the harness ends, even by SIGKILL: it may hold gigabytes.

The process that deletes it also ends what is left of the session's ranks. There is something left only if harness and
supervisor were both killed: processes that a rank had started in sessions of their own. Their environment names the
folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.spec.errors import MachineUnfit

_REMOVE = """
import os, shutil, signal, sys, time
done = sys.stdin.read() == "done"  # returns when the harness ends, in whatever way

def end_ranks():
    for process in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{process}/environ", "rb") as variables:
                if f"TMPDIR={sys.argv[1]}/".encode() in variables.read():
                    os.kill(int(process), signal.SIGKILL)
        except OSError:  # it has ended, or belongs to somebody else
            pass

for attempt in range(30):  # the processes that it launched take a moment to end, and may still write
    if not done and attempt > 2:  # the supervisor has had its time
        end_ranks()
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]) and (done or attempt > 4):
        break
    time.sleep(1)
"""


class Scratch:
    """A new folder, and a process that waits to remove it."""

    def __init__(self) -> None:
        # Not in the run folder: its path may contain characters that a rendezvous URL or PYTHONPATH cannot.
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="likeforlike-"))
        except OSError as error:
            raise MachineUnfit(f"no temporary folder can be made: {error.strerror}; set TMPDIR to another") from error
        try:
            self._remover = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _REMOVE, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone
            )
        except BaseException:  # the system has no room for another process
            self.folder.rmdir()
            raise

    def remove(self) -> None:
        """Remove the folder now, and wait until it is gone."""
        self._remover.communicate(b"done")
        shutil.rmtree(self.folder, ignore_errors=True)  # needed only if that process was killed
