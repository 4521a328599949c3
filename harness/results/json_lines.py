"""Files to which one line is added at a time, each whole or not at all, whatever ends the process."""

from __future__ import annotations

import os
from pathlib import Path

from harness.whole_files import naming, write_all


def append(path: Path, content: bytes) -> None:
    """Add one line and wait until it is on disk, so that a later crash cannot lose it.

    Raises OSError, which names the file: also if it is a link, which may lead out of the run's folder, or a pipe, for
    whose reader it would wait without an end.
    """
    with naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        whole = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, content + b"\n")
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
