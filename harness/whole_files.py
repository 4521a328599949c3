"""Files that a reader sees whole or not at all, and that are never written through a link.

A run folder may come from somebody else: a link in it must not lead a report onto another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.tmp")


def write(path: Path, content: bytes, *, durable: bool = False, new: bool = False) -> None:
    """Write a file, in place of the one that has its name. `durable`: wait until it is on disk.

    `new`: of several processes that write it at the same time, only one can. Raises OSError, which names the file. It
    then is as it was before.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")  # nobody can have put a link there
    with naming(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _lock(descriptor)  # while this process lives, nobody takes the file for one that a killed process left
            write_all(descriptor, content)
            if durable:
                os.fsync(descriptor)
            if new:
                _claim(temporary, path)
            else:
                temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def _claim(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError if there is one with that name, whoever wrote it and when."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # this file system has no hard links
        temporary.rename(path)
    else:
        temporary.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a folder. What is being written stays."""
    for entry in folder.iterdir():
        if not _UNFINISHED.fullmatch(entry.name):
            continue
        with contextlib.suppress(OSError):  # it may be finished by now, or somebody else's
            descriptor = os.open(entry, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    entry.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether this process now holds the file's lock, which ends with the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds it, or this file system has no locks
        return False
    return True


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: the system may take a part at a time."""
    while content:
        content = content[os.write(descriptor, content) :]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError in the block names this file: that of a full disk names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
