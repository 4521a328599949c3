"""One lock per device, so that no two runs measure on the same GPU without knowing of each other.

A lock is an flock on a file in /tmp that every user can open. The system releases it however its holder ends. The file
says who holds it. A holder that ended as it should leaves the file empty; one that was killed leaves its name behind,
and the next run takes the lock over.

A lock holds between all processes that see the same file: of all users of the machine, but not of containers with a
/tmp of their own. For those, LIKEFORLIKE_LOCKS names a folder that they share.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import shlex
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.machine import machine_record
from harness.spec import codec
from harness.spec.errors import UsageError
from harness.spec.processes import stat_fields
from harness.spec.text import printable

FOLDER_VARIABLE, FOLDER = "LIKEFORLIKE_LOCKS", Path("/tmp")
LARGEST = 65536  # bytes of a lock file that are read: anybody can write to it
ATTEMPTS, SECONDS_BETWEEN = 10, 0.05


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock. Process ids are used again: the start of the process tells two with the same id apart."""

    pid: int
    started: int = 0  # clock ticks from the start of the machine to that of the process
    boot: str = ""  # identifies the uptime of the machine that `started` counts from
    host: str = ""
    user: str = ""
    command: str = ""
    folder: str = ""  # of the run
    since: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "a process that did not say who it is"
        elsewhere = "" if self.host == socket.gethostname() else f" on {_shown(self.host)}"
        where = f", in {_shown(self.folder)}" if self.folder else ""
        who = f"pid {self.pid} of {_shown(self.user)}{elsewhere} since {_shown(self.since)}"
        return f"{who} ({_shown(self.command)}{where})"


@dataclass(frozen=True, kw_only=True)
class DeviceLock:
    """A lock that this process holds."""

    descriptor: int
    path: Path

    def refresh(self) -> None:
        """Mark the file as used: some systems remove files of /tmp that are ten days old."""
        os.utime(self.descriptor)

    def release(self) -> None:
        """Give the lock back. The empty file stays: to remove it would let two processes lock two files."""
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What came of trying to lock a device: a lock; or else who holds it, or why no lock is possible here."""

    lock: DeviceLock | None = None
    holder: Holder | None = None
    left_by: Holder | None = None  # who had the lock, and ended without giving it back
    problem: str = ""


def this_process(folder: Path) -> Holder:
    """What other runs are told of this one."""
    pid = os.getpid()
    return Holder(
        pid=pid,
        started=_start_of(pid) or 0,
        boot=machine_record.boot(),
        host=socket.gethostname(),
        user=_user(),
        command=shlex.join(["harness", *sys.argv[1:]]),
        folder=str(folder),
        since=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    )


def lock_folder() -> Path:
    """Where lock files are. Raises UsageError for a variable that names no folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if not chosen:
        return FOLDER
    if not Path(chosen).is_dir():
        raise UsageError(f"{FOLDER_VARIABLE}={chosen}: is not a folder; name one that all users can write")
    return Path(chosen)


def path_of(device: str) -> Path:
    """The lock file of a device."""
    return lock_folder() / f"likeforlike-{re.sub('[^A-Za-z0-9-]', '_', device)}.lock"


def lock(device: str, me: Holder) -> Attempt:
    """Try to lock a device: the UUID of a GPU, or "cpu". Does not wait."""
    path = path_of(device)
    problem = "is removed again and again"
    for _ in range(ATTEMPTS):
        try:
            if attempt := _lock(path, me):
                return attempt
        except PermissionError as error:  # another user may have just made the file, and is about to open it to all
            problem = error.strerror
        except OSError as error:
            return Attempt(problem=f"{path}: {error.strerror}")
        time.sleep(SECONDS_BETWEEN)
    return Attempt(problem=f"{path}: {problem}")


def _lock(path: Path, me: Holder) -> Attempt | None:
    """One attempt; None if the file was removed meanwhile."""
    descriptor = open_file(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Attempt(holder=_holder_of(descriptor))
        if not _is(path, descriptor):
            return None
        before = read_holder(descriptor)
        if before and _is_alive(before) and before.pid != me.pid:
            return Attempt(holder=before)  # on file systems where locks of other hosts or containers do not hold
        write_holder(descriptor, me)
        taken = DeviceLock(descriptor=os.dup(descriptor), path=path)  # shares the lock with the one closed below
        return Attempt(lock=taken, left_by=before)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> int:
    """Open a file of all users, or make it. Follows no links.

    Raises OSError, also for what is no file of its own: a hostile user could have put it there to have it overwritten.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return _create(path, flags)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a file of its own")
    return descriptor


def _create(path: Path, flags: int) -> int:
    """Make a lock file that all users may open. One that another process makes first is opened."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return open_file(path)
    os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _is(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to this file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_holder(descriptor: int, holder: Holder) -> None:
    """Write who it is into a file, in place of who was there."""
    os.ftruncate(descriptor, 0)
    try:
        os.pwrite(descriptor, codec.dumps(holder).encode(errors="replace"), 0)
    except OSError:  # the disk is full: the lock holds all the same
        os.ftruncate(descriptor, 0)


def read_holder(descriptor: int) -> Holder | None:
    """Who the file names; None if it names nobody."""
    try:
        return codec.loads(Holder, os.pread(descriptor, LARGEST, 0).decode())
    except (ValueError, RecursionError):
        return None


def _holder_of(descriptor: int, wait: Callable[[float], None] = time.sleep) -> Holder:
    """Who holds the lock of this file. Its holder locks it before it writes: wait for that, but not for long."""
    for _ in range(ATTEMPTS):
        if found := read_holder(descriptor):
            return found
        wait(SECONDS_BETWEEN)
    return Holder(pid=0)


def _is_alive(holder: Holder) -> bool:
    return bool(holder.started) and holder.boot == machine_record.boot() and _start_of(holder.pid) == holder.started


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if there is no such process.

    Not psutil's: that is a time of day, and another one after the clock was set.
    """
    try:
        return int(stat_fields(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under an id without a name
        return f"user {os.getuid()}"


def _shown(text: str) -> str:
    """Text of another user's, for a terminal: short, and without control characters."""
    shown = printable(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
