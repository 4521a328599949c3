"""Two runs never share a device unseen, and neither do a run and a program of somebody else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pytest
from conftest import harness
from fake_gpus import FakeGpus, arguments
from refusals import names, refused, refused_command

from harness.machine import device_locks, nvml
from harness.machine.nvml import GpuProcess, Reading
from harness.results import store
from harness.session import device_guard
from harness.session.device_guard import DeviceGuard, Watch
from harness.spec import Cause, Disturbance, Gpu, GuardMode
from harness.spec.disturbances import DisturbanceKind, in_words
from harness.spec.errors import MachineUnfit

pytestmark = pytest.mark.runs

GPUS = tuple(Gpu(token=str(index), name="NVIDIA H200", memory_bytes=2**37, uuid=f"GPU-{index}a") for index in range(2))
GIB = 2**30
ME, STRANGER, HIDDEN = os.getpid(), os.getppid(), 2**22 + 7


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv(device_locks.FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(device_guard, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(device_guard, "CONFIRM_SECONDS", 0.01)
    return folder


class Display:
    """Keeps what a user is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def done(self, text: str, status: str) -> None:
        self.told.append((status, text))

    def start(self, total: int) -> None: ...
    def phase(self, name: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def readings(monkeypatch) -> dict[str, Reading]:
    """What NVML says of each GPU; may be changed at any time."""
    found = {gpu.uuid: Reading(processes=(), memory_used=0) for gpu in GPUS}
    monkeypatch.setattr(nvml, "read", found.__getitem__)
    monkeypatch.setattr(nvml, "opened", lambda: memoryview(b""))  # any context manager
    return found


def guard(mode: GuardMode = "refuse", *, gpus=GPUS, cpu=False) -> DeviceGuard:
    return DeviceGuard(gpus, cpu=cpu, mode=mode, folder=Path("/runs/this"), display=Display())


def told(of: DeviceGuard) -> list[tuple[str, str]]:
    assert isinstance(of._display, Display)
    return of._display.told


def other_run(device: str) -> device_locks.DeviceLock:
    """Lock a device as another run."""
    taken = device_locks.lock(device, device_locks.this_process(Path("/runs/other"))).lock
    assert taken is not None
    return taken


# Locks


def test_a_second_run_is_refused_before_it_does_anything(readings):
    with guard().held():
        second = guard(gpus=GPUS[1:])
        facts = ("GPU 1", "NVIDIA H200", str(ME), "/runs/this", "--device-guard warn")
        with refused(*facts, kind=MachineUnfit), second.held():
            pytest.fail("begun")
        assert not told(second)
    with second.held():
        pass


def test_no_lock_is_kept_by_a_run_that_was_refused(readings):
    taken = other_run("GPU-1a")
    with pytest.raises(MachineUnfit):
        guard().__class__.held(guard()).__enter__()
    with guard(gpus=GPUS[:1]).held():
        pass
    taken.release()


def test_a_second_run_that_only_warns_is_marked_until_the_first_ends(readings):
    taken, second = other_run("GPU-1a"), guard("warn")
    with second.held():
        ((status, text),) = told(second)
        assert status == "warning"
        names(text, "GPU 1", str(ME), "/runs/other")
        with second.watching(1, threading.Event()) as watch:
            pass
        assert watch.found == ()  # this launch was on the other GPU
        with second.watching(1, threading.Event(), launch=1) as watch:  # and the next one's turn is on this one
            pass
        assert watch.found == (Disturbance(kind="session", device="GPU-1a", pid=ME),)
        with second.watching(2, threading.Event()) as watch:
            pass
        assert watch.found == (Disturbance(kind="session", device="GPU-1a", pid=ME),)
        taken.release()
        with second.watching(2, threading.Event()) as watch:
            pass
        assert watch.found == ()
        with pytest.raises(MachineUnfit), guard().held():  # the lock is its own now
            pass


def test_two_runs_on_cpu_devices_are_marked(readings):
    taken, second = other_run("cpu"), guard("warn", gpus=(), cpu=True)
    with second.held(), second.watching(2, threading.Event()) as watch:
        pass
    assert watch.found == (Disturbance(kind="session", device="cpu", pid=ME),)
    with refused(str(ME), kind=MachineUnfit), guard("refuse", gpus=(), cpu=True).held():
        pass
    taken.release()


def watched(of: DeviceGuard) -> tuple[Disturbance, ...]:
    """What disturbs a launch that does nothing."""
    with of.watching(2, threading.Event()) as watch:
        pass
    return watch.found


def test_the_run_that_holds_a_device_sees_who_measures_beside_it(readings):
    marked = (Disturbance(kind="session", device="cpu", pid=ME),)
    first, second, third = (guard("warn", gpus=(), cpu=True) for _ in range(3))
    with first.held():
        assert watched(first) == ()
        with second.held():
            with third.held():
                assert [watched(each) for each in (first, second, third)] == [marked] * 3
            assert watched(first) == marked
        assert watched(first) == ()
        with refused(kind=MachineUnfit), guard("refuse", gpus=(), cpu=True).held():
            pass
        assert watched(first) == ()  # one that is refused measures nothing


def test_a_run_that_comes_and_goes_beside_a_launch_is_seen(readings):
    first = guard("warn", gpus=(), cpu=True)
    with first.held(), first.watching(2, threading.Event()) as watch, guard("warn", gpus=(), cpu=True).held():
        pass
    assert watch.found == (Disturbance(kind="session", device="cpu", pid=ME),)


def test_a_guest_that_gets_the_lock_is_a_guest_no_longer(readings):
    first, second = guard("warn", gpus=(), cpu=True), guard("warn", gpus=(), cpu=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(first.held())
        with second.held():
            stack.close()
            assert watched(second) == ()


def test_where_no_guest_can_say_so_nobody_is_stopped(readings, locks):
    (locks / "likeforlike-cpu.guests").mkdir()
    first, second = guard("warn", gpus=(), cpu=True), guard("warn", gpus=(), cpu=True)
    with first.held(), second.held():
        assert watched(first) == ()


def test_a_guard_that_is_off_says_nothing_and_is_still_seen_by_others(readings):
    readings["GPU-0a"] = Reading(processes=(GpuProcess(pid=STRANGER, kind="compute"),), lost=True, throttled=True)
    silent = guard("off")
    with silent.held(), silent.watching(2, threading.Event()) as watch:
        with pytest.raises(MachineUnfit), guard("refuse", gpus=GPUS[1:]).held():
            pass
        another = guard("off")
        with another.held():
            assert not told(another)
    assert (watch.found, told(silent)) == ((), [])


def test_a_lock_that_cannot_be_had_is_told_and_stops_nobody(readings, locks):
    (locks / "likeforlike-GPU-0a.lock").mkdir()
    with (this := guard()).held():
        ((status, text),) = told(this)
    assert status == "warning"
    names(text, "GPU 0", "likeforlike-GPU-0a.lock")


# Other processes


def process(pid: int, kind: Literal["compute", "graphics"] = "compute", memory: int | None = 3 * GIB) -> GpuProcess:
    return GpuProcess(pid=pid, kind=kind, memory_bytes=memory)


@pytest.mark.parametrize(
    ("reading", "facts"),
    [
        (Reading(processes=(process(STRANGER),)), ["GPU 1", str(STRANGER), "3.0 GiB"]),
        (Reading(processes=(process(STRANGER, memory=None),)), ["GPU 1", str(STRANGER)]),
        (Reading(processes=(process(HIDDEN),)), ["GPU 1", str(HIDDEN), "3.0 GiB"]),
        (Reading(processes=(process(2**32 - 1),)), ["GPU 1", "3.0 GiB"]),
        (Reading(processes=(), memory_used=60 * GIB), ["GPU 1", "60.0 GiB"]),  # in another container
        (Reading(processes=None, memory_used=60 * GIB), ["GPU 1", "60.0 GiB"]),
    ],
)
def test_a_program_that_computes_on_a_gpu_is_named(readings, reading, facts):
    readings["GPU-1a"] = reading
    with refused(*facts, "--device-guard warn", kind=MachineUnfit), guard().held():
        pass
    with guard(gpus=GPUS[:1]).held():  # it is on a GPU that this run does not use
        pass
    with (this := guard("warn")).held():
        ((status, text),) = told(this)
        assert status == "warning"
        names(text, *facts)
        with this.watching(2, threading.Event()) as watch:
            pass
        (found,) = watch.found
        assert found.device == "GPU-1a"


@pytest.mark.parametrize(
    "reading",
    [
        Reading(),  # NVML says nothing
        Reading(processes=(), memory_used=100 * 2**20),
        Reading(processes=(), memory_used=0, throttled=True),  # by what was there before
    ],
)
def test_an_idle_gpu_is_nobodys(readings, reading):
    readings["GPU-0a"] = reading
    with (this := guard()).held():
        pass
    assert not told(this)


def test_a_display_refuses_no_run_and_is_told_with_each_launch(readings):
    readings["GPU-0a"] = Reading(processes=(process(STRANGER, "graphics"),), memory_used=4 * GIB)
    with (this := guard()).held(), this.watching(1, threading.Event()) as watch:
        pass
    (found,) = watch.found
    assert (found.kind, found.pid, bool(found.name)) == ("graphics", STRANGER, True)


def test_a_program_that_comes_and_goes_in_a_launch_is_seen(readings):
    with (this := guard()).held():
        with this.watching(2, threading.Event()) as watch:
            readings["GPU-1a"] = Reading(processes=(process(STRANGER),))
            wait_until(lambda: watch.found)
            readings["GPU-1a"] = Reading(processes=())
            assert not told(this)  # nothing is printed while a launch is timed
        (found,) = watch.found
        assert (found.kind, found.device, found.pid) == ("compute", "GPU-1a", STRANGER)
        ((status, text),) = told(this)
        assert status == "warning"
        names(text, "GPU 1", str(STRANGER))
        with this.watching(2, threading.Event()) as watch:  # the next launch is clean
            pass
        assert watch.found == ()


def test_our_own_processes_are_nobody_else(readings):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as worker:
        ours = Reading(processes=(process(worker.pid), process(ME)), memory_used=60 * GIB)
        with (this := guard()).held(), this.watching(2, threading.Event()) as watch:
            readings["GPU-0a"] = ours
            wait_until(lambda: worker.pid in watch._ours)
            worker.kill()
            worker.wait()
            readings["GPU-0a"] = replace(ours, memory_used=0)  # a process that has ended is listed for a moment
    assert watch.found == ()


def test_where_processes_have_the_numbers_of_the_host_our_own_are_not_blamed(readings):
    """In some containers NVML lists our workers by numbers that we cannot know."""
    busy = Reading(processes=(process(HIDDEN),), memory_used=3 * GIB)
    with (this := guard("warn")).held():
        with this.watching(1, threading.Event()) as watch:
            readings["GPU-0a"] = busy
            time.sleep(0.1)
            readings["GPU-0a"] = Reading(processes=(), memory_used=0)
        assert watch.found == ()
        with this.watching(1, threading.Event()) as watch:
            readings["GPU-0a"] = busy
        (found,) = watch.found  # it is there although ours have ended
        assert found.pid == HIDDEN


def test_what_is_listed_for_a_moment_only_is_nobody(readings, monkeypatch):
    answers = [Reading(processes=(process(HIDDEN),), memory_used=GIB), Reading(processes=(), memory_used=0)]
    monkeypatch.setattr(nvml, "read", lambda uuid: answers.pop(0))
    (watch := Watch(GPUS[:1])).look(launched=False)
    assert (watch.found, answers) == ((), [])


def test_lowered_clocks_are_told(readings):
    with (this := guard()).held(), this.watching(1, threading.Event()) as watch:
        readings["GPU-0a"] = Reading(processes=(), memory_used=0, throttled=True)
    assert watch.found == (Disturbance(kind="throttled", device="GPU-0a"),)
    names(told(this)[0][1], "GPU 0")


def test_a_lost_gpu_ends_the_launch_at_once(readings):
    stop = threading.Event()
    facts = ("GPU 1", "lost", "run --resume /runs/this")
    with refused(*facts, kind=MachineUnfit), (this := guard()).held(), this.watching(2, stop):
        readings["GPU-1a"] = Reading(lost=True)
        assert stop.wait(10)


def test_words_name_the_device_as_cuda_does():
    for kind in get_args(DisturbanceKind):
        names(in_words(Disturbance(kind=kind, device="GPU-1a", pid=7), GPUS), "GPU 1")
    names(in_words(Disturbance(kind="xid", device="GPU-1a", xid=79), GPUS), "79")
    names(in_words(Disturbance(kind="compute", device="GPU-9", pid=7, name="x"), GPUS), "GPU-9", "7", "x")


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The commands


def environment(gpus: FakeGpus, locks: Path) -> dict[str, str]:
    return gpus.variables | {device_locks.FOLDER_VARIABLE: str(locks)}


def begin(out: Path, variables: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """A run in the background, whose parity phase is over."""
    command = [sys.executable, "-m", "harness", "run", *arguments(strategy="hang_when_timed"), *more, "--out", str(out)]
    run = subprocess.Popen(
        command, env=os.environ | variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_until(lambda: (out / "proofs.jsonl").exists() or run.poll() is not None)
    return run


@pytest.mark.slow
def test_a_second_run_names_the_first_and_leaves_nothing(tmp_path, locks):
    gpus, first, second = FakeGpus(tmp_path, {}, {}), tmp_path / "first", tmp_path / "second"
    running = begin(first, environment(gpus, locks))
    try:
        done = harness("run", *arguments(), "--out", str(second), env=environment(gpus, locks))
        facts = ["GPU 0", f"pid {running.pid}", str(first), "--device-guard warn"]
        refused_command(done, *facts, code=3)
        assert not second.exists()
        done = harness("run", *arguments(), "--out", str(second), env=environment(gpus, locks) | {
            "CUDA_VISIBLE_DEVICES": "1"
        })  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert running.poll() is None
        running.send_signal(signal.SIGKILL)
        running.wait()
        done = harness("run", *arguments(), "--out", str(tmp_path / "third"), env=environment(gpus, locks))
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if "GPU 0" in line]
        names(line, str(running.pid))
    finally:
        running.kill()
        running.communicate()


@pytest.mark.slow
def test_a_lost_gpu_ends_the_run_and_resume_goes_on(tmp_path, locks):
    gpus, out = FakeGpus(tmp_path, {}), tmp_path / "run"
    running = begin(out, environment(gpus, locks))
    began = time.monotonic()
    gpus.change(0, lost="GpuIsLost")
    _, said = running.communicate(timeout=60)
    assert running.returncode == 3, said
    names(said.strip().splitlines()[-1], "GPU 0", "lost", f"run --resume {out}")
    assert "Traceback" not in said
    assert time.monotonic() - began < 60  # and not the limit of a launch that hangs
    (row,) = store.read(out)
    assert (row.status, row.cause) == ("killed", Cause(kind="device_lost"))
    names(row.reason, "GPU 0", "lost")
    refused_command(harness("run", "--resume", str(out), env=environment(gpus, locks)), "GPU 0", "lost", code=3)
    gpus.change(0, lost="")
    kept = json.loads((out / store.RUN).read_text())
    (out / store.RUN).write_text(json.dumps(kept).replace("hang_when_timed", "single"))
    done = harness("run", "--resume", str(out), env=environment(gpus, locks))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["refuse", "warn", "off"])
def test_a_program_on_the_gpu_and_what_each_mode_makes_of_it(tmp_path, locks, mode):
    gpus, out = FakeGpus(tmp_path, {"compute": [[STRANGER, 3 * GIB]]}), tmp_path / "run"
    done = harness("run", *arguments(), "--device-guard", mode, "--out", str(out), env=environment(gpus, locks))
    if mode == "refuse":
        refused_command(done, "GPU 0", str(STRANGER), "3.0 GiB", code=3)
        assert not out.exists()
        return
    assert done.returncode == 0, done.stderr
    (row,) = store.read(out)
    report = (out / "report.md").read_text()
    assert row.run.device_guard == mode
    assert bool(row.conditions.disturbances) == (mode == "warn")
    assert (f"process {STRANGER} (" in report) == (mode == "warn")
    assert (f"process {STRANGER} (" in done.stderr) == (mode == "warn")


def test_a_run_on_cpu_devices_beside_another_is_told_of_it(tmp_path, locks):
    taken, out = other_run("cpu"), tmp_path / "run"
    variables = {device_locks.FOLDER_VARIABLE: str(locks)}
    cpu = arguments(platform="cpu")
    done = harness("run", *cpu, "--out", str(out), env=variables)
    assert done.returncode == 0, done.stderr
    (row,) = store.read(out)
    assert row.conditions.disturbances == (Disturbance(kind="session", device="cpu", pid=ME),)
    assert row.run.device_guard == "warn"
    refused_command(harness("run", *cpu, "--device-guard", "refuse", env=variables), str(ME), code=3)
    taken.release()


def test_the_guard_has_three_modes(tmp_path):
    done = harness("run", *arguments(platform="cpu"), "--device-guard", "maybe", cwd=tmp_path)
    refused_command(done, "maybe", "refuse", "warn", "off")
    assert not re.search("report", " ".join(path.name for path in tmp_path.iterdir()))
