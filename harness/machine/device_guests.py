"""Runs that measure on a device although another run holds its lock, so that the holder learns of them, too.

Each of them shares an flock on a second file of the device, and writes into it who it is. The system gives the lock
back however a run ends. The time of the file's last change says when the last of them came.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from harness.machine import device_locks
from harness.machine.device_locks import Holder


@dataclass(frozen=True, kw_only=True)
class Guests:
    """What can be seen of them at one moment. `came`: when the last one came, in nanoseconds since 1970, or 0."""

    here: bool = False
    came: int = 0
    last: Holder | None = None


@dataclass(frozen=True, kw_only=True)
class Stay:
    """This process as a guest."""

    descriptor: int

    def end(self) -> None:
        """Leave. The file stays: to remove it would hide the guests that come later."""
        os.close(self.descriptor)


def join(device: str, me: Holder) -> Stay | None:
    """Become a guest on a device: the UUID of a GPU, or "cpu". None if that cannot be said here."""
    try:
        descriptor = device_locks.open_file(_path(device))
    except OSError:
        return None
    for _ in range(device_locks.ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # the holder is looking who is here, which takes microseconds
            time.sleep(device_locks.SECONDS_BETWEEN)
            continue
        device_locks.write_holder(descriptor, me)
        return Stay(descriptor=descriptor)
    os.close(descriptor)
    return None


def seen(device: str) -> Guests:
    """The guests on a device whose lock this process holds."""
    try:
        descriptor = os.open(_path(device), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there has never been one
        return Guests()
    try:
        came, last = os.fstat(descriptor).st_mtime_ns, device_locks.read_holder(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Guests(here=True, came=came, last=last)
        return Guests(came=came, last=last)
    except OSError:  # it is no file
        return Guests()
    finally:
        os.close(descriptor)


def _path(device: str) -> Path:
    return device_locks.path_of(device).with_suffix(".guests")
