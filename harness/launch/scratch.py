"""A session's scratch folder. It is deleted when the harness ends, even by SIGKILL: it may hold gigabytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_REMOVE = """
import os, shutil, sys, time
sys.stdin.read()  # returns when the harness ends, in whatever way
for _ in range(30):  # the processes that it launched take a moment to end, and may still write
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(1)
"""


class Scratch:
    """A new folder, and a process that waits to remove it."""

    def __init__(self) -> None:
        # Not in the run folder: its path may contain characters that a rendezvous URL or PYTHONPATH cannot.
        self.folder = Path(tempfile.mkdtemp(prefix="likeforlike-"))
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REMOVE, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone
        )

    def remove(self) -> None:
        """Remove the folder now, and wait until it is gone."""
        self._remover.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)  # needed only if that process was killed
