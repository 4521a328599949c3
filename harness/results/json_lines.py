"""Files to which one line is added at a time, each whole or not at all, whatever ends the process."""

from __future__ import annotations

import os
from pathlib import Path


def append(path: Path, content: bytes) -> None:
    """Add one line and wait until it is on disk, so that a later crash cannot lose it."""
    line = content + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    whole = os.fstat(descriptor).st_size
    try:
        while line:  # the system may take a part
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    except BaseException:  # the disk is full: the next line must not continue the part that was written
        os.ftruncate(descriptor, whole)
        raise
    finally:
        os.close(descriptor)


def drop_torn_line(path: Path) -> None:
    """Cut off a torn last line, which the next one would continue. Without any whole line, remove the file."""
    if path.is_file():
        whole = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole[0]) + len(whole[1]))
        if not whole[1]:
            path.unlink()
