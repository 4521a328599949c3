"""Who may lock a device, whatever became of the one who had it, and whatever lies where the lock should be."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from refusals import names, refused

from harness.machine import device_locks
from harness.machine.device_locks import Holder, lock, this_process
from harness.spec import codec

GPU = "GPU-1fbbfdb5-36a0"
HOLD = """
import sys, time
from pathlib import Path
from harness.machine.device_locks import lock, this_process
taken = lock(sys.argv[1], this_process(Path("/runs/first")))
print("held" if taken.lock else f"not held: {taken}", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(device_locks.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(device_locks, "SECONDS_BETWEEN", 0.001)
    return tmp_path


@pytest.fixture
def me():
    return this_process(Path("/runs/second"))


@pytest.fixture
def holder():
    """A process that holds the lock of GPU, until the test ends or it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, GPU], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_lock_is_held_once_and_given_back(folder, me):
    first = lock(GPU, me)
    assert first.lock is not None
    second = lock(GPU, me)
    assert second.lock is None
    assert second.holder == me
    assert lock("GPU-another", me).lock is not None
    first.lock.release()
    again = lock(GPU, me)
    assert again.lock is not None
    assert again.left_by is None  # it was given back as it should


def test_another_process_is_named(holder, me):
    attempt = lock(GPU, me)
    assert attempt.lock is None
    assert attempt.holder is not None
    assert attempt.holder.pid == holder.pid
    names(str(attempt.holder), f"pid {holder.pid}", me.user, "/runs/first", GPU)


def test_the_lock_of_a_killed_process_is_taken_over_and_its_name_told(holder, me):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    attempt = lock(GPU, me)
    assert attempt.lock is not None
    assert attempt.left_by is not None
    assert attempt.left_by.pid == holder.pid


def test_a_lock_is_not_inherited_by_what_its_holder_starts(me):
    taken = lock(GPU, me).lock
    assert taken is not None
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        taken.release()
        assert lock(GPU, me).lock is not None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("known", "held"),
    [
        ({}, True),
        ({"started": 1}, False),  # its pid is another process's now
        ({"boot": "another"}, False),
        ({"pid": 2**22 + 1}, False),
    ],
)
def test_a_live_holder_counts_where_the_file_system_has_no_locks(folder, me, known, held):
    """On some file systems two hosts or containers do not see each other's locks. Then pid and start tell."""
    first = lock(GPU, me).lock
    assert first is not None
    fcntl.flock(first.descriptor, fcntl.LOCK_UN)
    only_file(folder).write_text(codec.dumps(replace(me, **known)))
    parent = replace(this_process(folder), pid=os.getppid())
    attempt = lock(GPU, parent)
    assert (attempt.lock is None) == held
    os.close(first.descriptor)


def test_every_user_can_open_a_lock_file(folder, me):
    before = os.umask(0o077)
    try:
        lock(GPU, me)
    finally:
        os.umask(before)
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o666


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "fifo", "folder", "forbidden"])
def test_what_is_no_lock_file_is_neither_followed_nor_changed(tmp_path, monkeypatch, me, kind):
    places, victim = tmp_path / "locks", tmp_path / "victim"
    places.mkdir()
    monkeypatch.setenv(device_locks.FOLDER_VARIABLE, str(places))
    path = places / f"likeforlike-{GPU}.lock"
    victim.write_text("precious")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "gone")
    elif kind == "hard link":
        os.link(victim, path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        monkeypatch.setattr(device_locks.os, "open", forbidden)
    attempt = lock(GPU, me)
    assert (attempt.lock, attempt.holder) == (None, None)
    names(attempt.problem, str(path))
    assert victim.read_text() == "precious"
    assert not (tmp_path / "gone").exists()


def forbidden(*_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b'{"pid": "x"}', b"x" * 10**6, b"null"])
def test_a_holder_that_does_not_say_who_it_is_still_holds(folder, me, content):
    first = lock(GPU, me).lock
    assert first is not None
    only_file(folder).write_bytes(content)
    attempt = lock(GPU, me)
    assert attempt.lock is None
    assert attempt.holder == Holder(pid=0)
    first.release()
    assert lock(GPU, me).lock is not None


def test_what_a_holder_says_cannot_change_the_terminal(me):
    said = str(replace(me, command="\x1b[2J\nharness: all is well\udcff" + "x" * 1000, user="\u202eeve", host="other"))
    assert said.isprintable()
    assert len(said) < 500
    names(said, "other")


def test_a_lock_file_that_is_removed_while_it_is_opened_is_made_again(folder, me, monkeypatch):
    flock, removed = fcntl.flock, []

    def removing(*arguments):
        if not removed:
            removed.append(only_file(folder))
            removed[0].unlink()
        return flock(*arguments)

    monkeypatch.setattr(device_locks.fcntl, "flock", removing)
    taken = lock(GPU, me).lock
    assert taken is not None
    assert os.path.samestat(os.fstat(taken.descriptor), only_file(folder).stat())


def test_a_full_disk_costs_the_name_and_not_the_lock(folder, me, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(device_locks.os, "pwrite", full)
    assert lock(GPU, me).lock is not None
    attempt = lock(GPU, me)
    assert attempt.holder == Holder(pid=0)


def test_the_folder_of_locks_must_exist(monkeypatch, me):
    monkeypatch.setenv(device_locks.FOLDER_VARIABLE, "/nonexistent/locks")
    with refused("LIKEFORLIKE_LOCKS=/nonexistent/locks"):
        lock(GPU, me)
