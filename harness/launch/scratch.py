"""A run's scratch folder: goes when the harness does, even by SIGKILL. Golden runs alone may take gigabytes there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_REMOVE = """
import os, shutil, sys, time
sys.stdin.read()  # until the harness ends, in whatever way
for _ in range(30):  # what it has launched takes a moment to end, and may write meanwhile
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(1)
"""


class Scratch:
    """A new folder, and the process that waits to remove it."""

    def __init__(self) -> None:
        # not in the run folder, whose path may hold characters that a rendezvous URL or PYTHONPATH cannot
        self.folder = Path(tempfile.mkdtemp(prefix="likeforlike-"))
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REMOVE, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone
        )

    def remove(self) -> None:
        """Now, and wait for it."""
        self._remover.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)  # nothing is left to do, unless that process was killed
