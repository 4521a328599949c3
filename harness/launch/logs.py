"""Logs of ranks: bounded, whatever a rank prints. Of a long one, the first and the last part are kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

FIRST_BYTES = LAST_BYTES = 2 * 2**20
SLACK_BYTES = 16 * 2**20  # that much more may lie on the disk before it is freed
_PUNCH_HOLE_KEEP_SIZE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def free_middle(log: Path) -> None:
    """Free the disk space of what a growing log will not keep. A no-op for a short log.

    The file keeps its size, with a hole in it, so the process that writes it need not know. File systems without holes
    keep everything.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # the log itself is gone
        found = log.stat()
        hole = found.st_size - LAST_BYTES - FIRST_BYTES
        if hole > 0 and found.st_blocks * 512 > FIRST_BYTES + LAST_BYTES + SLACK_BYTES:
            with log.open("r+b") as file:
                fallocate = ctypes.CDLL(None).fallocate
                fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
                fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, FIRST_BYTES, hole)


def keep(log: Path, copy: Path) -> None:
    """Copy a log. A long one is cut: a line in its middle says how much was left out."""
    with log.open("rb") as source, copy.open("wb") as target:
        size = os.fstat(source.fileno()).st_size
        if size <= FIRST_BYTES + LAST_BYTES:
            target.write(source.read(size))
            return
        target.write(source.read(FIRST_BYTES))
        left_out = size - FIRST_BYTES - LAST_BYTES
        target.write(f"\n[likeforlike: {left_out:,} bytes of this log were left out here]\n".encode())
        source.seek(size - LAST_BYTES)
        target.write(source.read(LAST_BYTES))


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, or its end if that is long."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2**16))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "(empty)"
