"""Clocks, power and temperature: what is sampled, how it is joined with the timed blocks, and what reports say."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import harness, make_result
from fake_gpus import FakeGpus, arguments
from refusals import names, refused, refused_command

from harness.machine import devices, nvml, telemetry
from harness.machine.gpu_errors import ErrorWatch
from harness.machine.nvml import Sample
from harness.machine.telemetry import Recorder, busy_host
from harness.results import store
from harness.results.rounds import visible_gpus
from harness.session import device_guard
from harness.session.device_guard import DeviceGuard
from harness.spec import Disturbance, Gpu, GpuErrors, GpuTelemetry, GuardMode, HostLoad, Telemetry, Timing, TrialResult


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Makes a machine with these GPUs."""

    def make(*gpus, **about) -> FakeGpus:
        made = FakeGpus(tmp_path, *gpus, **about)
        made.install(monkeypatch)
        return made

    yield make
    devices.machine.cache_clear()


# What NVML says


def test_all_that_a_gpu_says_is_sampled_in_its_unit(fake):
    fake({}, {"sm": 345})
    assert nvml.sample("GPU-0a") == Sample(
        sm_clock_mhz=1755,
        memory_clock_mhz=3201,
        power_watts=645.3,  # at this moment, not the mean of a second
        power_limit_watts=700.0,
        temperature_celsius=61,
        busy_percent=97,
        clock_reasons=0,
        power_violation_ns=7_000_000_000,
        thermal_violation_ns=0,
        energy_millijoules=5_000_000,
    )
    assert nvml.sample("GPU-1a").sm_clock_mhz == 345  # by UUID


ANSWERED_TWICE = {"capped": "capped_field", "hot": "hot_field"}  # violation times have two places
QUESTIONS = {
    "sm": "sm_clock_mhz",
    "hbm": "memory_clock_mhz",
    "power": "power_limit_watts",
    "celsius": "temperature_celsius",
    "busy": "busy_percent",
    "reasons": "clock_reasons",
    "capped": "power_violation_ns",
    "hot": "thermal_violation_ns",
    "energy": "energy_millijoules",
}


@pytest.mark.parametrize("error", ["NotSupported", "FunctionNotFound", "NoPermission", "Unknown"])
@pytest.mark.parametrize(("question", "field"), QUESTIONS.items())
def test_what_a_gpu_or_a_driver_cannot_say_is_none_and_no_error(fake, question, field, error):
    fake({question: error, ANSWERED_TWICE.get(question, question): error})
    found = vars(nvml.sample("GPU-0a"))
    assert [name for name, value in found.items() if value is None] == [field]


@pytest.mark.parametrize("instant", ["FunctionNotFound", None, 0])
def test_a_driver_without_instant_power_says_its_mean(fake, instant):
    gpus = fake({"instant": instant})
    assert nvml.sample("GPU-0a").power_watts == 612.4
    gpus.change(0, drawn="NotSupported")
    assert nvml.sample("GPU-0a").power_watts is None


@pytest.mark.parametrize("error", ["NotSupported", "FunctionNotFound"])
def test_a_driver_without_violation_times_tells_them_as_fields(fake, error):
    gpus = fake({"capped": error, "hot": error, "capped_field": 5, "hot_field": 6})
    found = nvml.sample("GPU-0a")
    assert (found.power_violation_ns, found.thermal_violation_ns) == (5, 6)
    gpus.change(0, hot_field=None)
    found = nvml.sample("GPU-0a")
    assert (found.power_violation_ns, found.thermal_violation_ns) == (5, None)


# Errors of GPUs


def test_errors_of_a_launch_are_those_that_came_while_it_ran(fake):
    gpus = fake({"corrected": 3, "uncorrected": 1, "xids": [13]}, {})
    watch = ErrorWatch(["GPU-0a", "GPU-1a"])
    gpus.change(0, corrected=5, uncorrected=2, xids=[13, 48, 79])
    assert watch.end() == (
        GpuErrors(uuid="GPU-0a", corrected=2, uncorrected=1, xids=(48, 79)),
        GpuErrors(uuid="GPU-1a", corrected=0, uncorrected=0, xids=()),
    )


@pytest.mark.parametrize("question", ["events", "wait"])
@pytest.mark.parametrize(("error", "words"), [("NotSupported", "Not Supported"), ("NoPermission", "Permissions")])
def test_a_driver_that_reports_no_xid_errors_says_why(fake, question, error, words):
    fake({question: error})
    (found,) = ErrorWatch(["GPU-0a"]).end()
    assert (found.uncorrected, found.xids) == (0, None)
    assert words in found.xids_unknown


@pytest.mark.parametrize("after", ["NotSupported", 2])  # or a reset of the GPU, which sets the count back
def test_a_memory_that_counts_no_errors_is_not_one_without_errors(fake, after):
    gpus = fake({"corrected": "NotSupported"})
    watch = ErrorWatch(["GPU-0a"])
    gpus.change(0, uncorrected=after)
    assert watch.end() == (GpuErrors(uuid="GPU-0a", uncorrected=2 if after == 2 else None, xids=()),)
    gpus.change(0, uncorrected=3)
    watch = ErrorWatch(["GPU-0a"])
    gpus.change(0, uncorrected=0)
    assert watch.end()[0].uncorrected is None


def test_a_gpu_that_is_lost_is_not_one_without_errors(fake):
    fake({"lost": "GpuIsLost"})
    (found,) = ErrorWatch(["GPU-0a"]).end()
    assert (found.corrected, found.uncorrected, found.xids) == (None, None, None)
    assert found.xids_unknown


@pytest.mark.parametrize("error", ["GpuIsLost", "Unknown"])
def test_a_gpu_that_is_lost_says_nothing_and_is_no_error(fake, error):
    fake({"lost": error})
    assert nvml.sample("GPU-0a") == Sample()


# What a launch's record keeps


class Clock:
    """A monotonic clock that stands still until it is set."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def recorded(clock: Clock, *moments: float) -> Recorder:
    """A recorder of one GPU that took a sample at each of these moments."""
    clock.now = moments[0]
    recorder = Recorder(["GPU-0a"])
    for clock.now in moments[1:-1]:
        recorder.sample()
    clock.now = moments[-1]
    recorder.end()
    return recorder


def timing(*starts: float, seconds: float = 2.0) -> Timing:
    return Timing(steps_per_block=2, block_starts=starts, block_seconds=(seconds,) * len(starts))


def test_seconds_count_from_the_first_timed_block_and_the_samples_around_the_blocks_are_kept(fake, clock):
    fake({})
    moments = (100.0, 101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0, 108.0)
    found = recorded(clock, *moments).record([timing(102.5, 104.5), timing(102.4, 104.5, seconds=2.2)])
    assert found.zero == 102.4  # rank 1 began first
    assert found.seconds == (-0.4, 0.6, 1.6, 2.6, 3.6, 4.6)  # until 107, after the end at 106.7
    assert all(len(column) == 6 for name, column in vars(found.gpus[0]).items() if name != "uuid")


@pytest.mark.parametrize("timings", [[], [Timing()], [timing(), Timing(block_seconds=(1.0,))]])
def test_without_timed_blocks_all_samples_are_kept_from_the_first_one_on(fake, clock, timings):
    fake({})
    found = recorded(clock, 100.0, 101.0, 102.0).record(timings)
    assert (found.zero, found.seconds) == (100.0, (0.0, 1.0, 2.0))


def test_counters_count_from_the_first_sample_and_what_was_never_said_takes_no_room(fake, clock):
    gpus = fake({"celsius": "NotSupported"})
    recorder = Recorder(["GPU-0a"])
    gpus.change(0, energy=5_690_250, capped=7_150_000_000, sm="Unknown")
    recorder.end()
    (found,) = recorder.record([]).gpus
    assert found == GpuTelemetry(
        uuid="GPU-0a",
        sm_clock_mhz=(1755, None),
        memory_clock_mhz=(3201, 3201),
        power_watts=(645.3, 645.3),
        power_limit_watts=(700.0, 700.0),
        busy_percent=(97, 97),
        clock_reasons=(0, 0),
        power_violation_ms=(0.0, 150.0),
        thermal_violation_ms=(0.0, 0.0),
        energy_joules=(0.0, 690.2),
    )


def test_a_long_launch_keeps_few_samples_and_its_last_one(fake, clock, monkeypatch):
    fake({})
    monkeypatch.setattr(nvml, "sample", lambda uuid: Sample())
    monkeypatch.setattr(telemetry, "MOST_SAMPLES", 100)
    monkeypatch.setattr(telemetry, "MOST_RECORDED", 20)
    recorder = recorded(clock, *map(float, range(1001)))
    assert len(recorder._samples) <= 101
    found = recorder.record([])
    assert 10 <= len(found.seconds) <= 21
    assert (found.seconds[0], found.seconds[-1]) == (0.0, 1000.0)
    gaps = [later - one for one, later in pairwise(found.seconds)]
    assert len(set(gaps[:-1])) == 1  # up to the last sample


def test_the_load_of_the_host_is_read_at_the_beginning_and_at_the_end(tmp_path, monkeypatch):
    """The time of guests is in that of the user already."""
    (tmp_path / "stat").write_text("cpu  100 200 300 400 500 600 700 800 90 10\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    recorder = Recorder([])
    (tmp_path / "stat").write_text("cpu  100 200 300 400 500 600 700 900 90 10\n")
    recorder.sample()
    recorder.end()
    found = recorder.record([])
    assert (found.seconds, found.gpus) == ((), ())
    assert [(load.cpu_seconds, load.steal_seconds) for load in found.host] == [(36.0, 8.0), (37.0, 9.0)]


@pytest.mark.parametrize("missing", ["stat", "load"])
def test_a_host_that_does_not_tell_its_load_is_no_error(tmp_path, monkeypatch, missing):
    if missing == "stat":
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    else:
        monkeypatch.setattr(os, "getloadavg", lambda: (_ for _ in ()).throw(OSError))
    recorder = Recorder([])
    recorder.end()
    assert recorder.record([]).host == ()


def test_a_busy_host_is_told_of_before_cpu_devices_are_timed(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.9, 0.0, 0.0))
    assert not busy_host()
    monkeypatch.setattr(os, "getloadavg", lambda: (3.1, 0.0, 0.0))
    names(busy_host(), "3.1", "4 cores")


# When samples are taken


GPUS = tuple(Gpu(token=str(index), name="NVIDIA H200", memory_bytes=2**37, uuid=f"GPU-{index}a") for index in range(2))


class Display:
    """A user who is told nothing."""

    def done(self, text: str, status: str) -> None: ...
    def start(self, total: int) -> None: ...
    def phase(self, name: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def close(self) -> None: ...


def sampled(tmp_path, monkeypatch, *, on: bool = True, mode: GuardMode = "refuse", gpus=GPUS) -> Telemetry | None:
    """What a launch of a second on one device records, with a sample every hundredth of a second."""
    monkeypatch.setattr(device_guard, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("LIKEFORLIKE_LOCKS", str(tmp_path))
    guard = DeviceGuard(gpus, mode=mode, telemetry=on, folder=tmp_path, display=Display())
    with guard.held():
        with guard.watching(1, threading.Event()) as watch:
            time.sleep(1.0)
        return watch.telemetry([])


@pytest.mark.parametrize("mode", ["refuse", "off"])
def test_a_launch_is_sampled_on_its_own_gpus_whatever_the_guard_does(fake, tmp_path, monkeypatch, mode):
    fake({}, {})
    found = sampled(tmp_path, monkeypatch, mode=mode)
    assert found is not None
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0a"]
    assert len(found.seconds) == len(found.gpus[0].power_watts) > 3
    assert 0.3 <= found.seconds[-1] - found.seconds[0] < 20
    assert len(found.host) == 2


def test_a_launch_with_an_error_of_a_gpu_is_a_disturbed_one(fake, tmp_path, monkeypatch):
    gpus = fake({}, {})
    monkeypatch.setenv("LIKEFORLIKE_LOCKS", str(tmp_path))
    guard = DeviceGuard(GPUS, mode="refuse", telemetry=True, folder=tmp_path, display=Display())
    with guard.held():
        with guard.watching(2, threading.Event()) as watch:
            gpus.change(0, uncorrected=2, xids=[48, 79, 48])
            gpus.change(1, corrected=9)  # these cost nothing
        found = watch.telemetry([])
        assert found is not None
        assert [(each.uncorrected, each.xids) for each in found.errors] == [(2, (48, 79, 48)), (0, ())]
        assert set(watch.found) == {
            Disturbance(kind="ecc", device="GPU-0a"),
            Disturbance(kind="xid", device="GPU-0a", xid=48),
            Disturbance(kind="xid", device="GPU-0a", xid=79),
        }
        with guard.watching(2, threading.Event()) as watch:  # the next launch is clean
            pass
        assert watch.found == ()


def test_nothing_is_sampled_if_telemetry_is_off(fake, tmp_path, monkeypatch):
    fake({}, {})
    monkeypatch.setattr(nvml, "sample", lambda uuid: pytest.fail("sampled"))
    assert sampled(tmp_path, monkeypatch, on=False) is None


def test_on_cpu_devices_only_the_load_of_the_host_is_recorded(tmp_path, monkeypatch):
    found = sampled(tmp_path, monkeypatch, gpus=())
    assert found is not None
    assert (found.seconds, found.gpus, len(found.host)) == ((), (), 2)


# The commands


def rows(out: Path, *arguments: str, env: dict[str, str]) -> list[TrialResult]:
    """The rows of a run after a command that succeeds."""
    done = harness(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    return store.read(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "mode"), [([], "on"), (["--telemetry", "on"], "on"), (["--telemetry", "off"], "off")]
)
def test_all_launches_of_a_run_are_sampled_or_none_and_resume_keeps_that(tmp_path, flags, mode):
    out, variables = tmp_path / "run", FakeGpus(tmp_path, {}, {}).variables | {"LIKEFORLIKE_LOCKS": str(tmp_path)}
    cells = [*arguments(strategy="single,replicated", devices="2"), *flags, "--out", str(out)]
    first = rows(out, "run", *cells, env=variables)
    path = out / store.RESULTS
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])  # the other launch is still to be made
    for row in (*first, *rows(out, "run", "--resume", str(out), env=variables)):
        assert row.run.telemetry == mode
        assert ("--telemetry off" in row.run.command) == (mode == "off")
        assert (row.telemetry is not None) == (mode == "on")
        if row.telemetry is not None:
            assert [gpu.uuid for gpu in row.telemetry.gpus] == ["GPU-0a", "GPU-1a"][: row.spec.devices]
            assert set(row.telemetry.gpus[0].sm_clock_mhz) == {1755}


@pytest.mark.slow
def test_launches_on_one_of_two_gpus_take_turns_and_each_is_sampled_where_it_runs(tmp_path):
    variables = FakeGpus(tmp_path, {}, {}).variables | {"LIKEFORLIKE_LOCKS": str(tmp_path)}
    cells = [*arguments(strategy="single,replicated", devices="2"), "--launches", "3", "--out", str(tmp_path / "run")]
    used = {"single": [["0"], ["1"], ["0"]], "replicated": [["0", "1"]] * 3}
    for row in rows(tmp_path / "run", "run", *cells, env=variables):
        indices = used[row.spec.strategy][row.spec.launch]
        assert visible_gpus(row) == ",".join(indices)
        assert row.telemetry is not None
        assert [gpu.uuid for gpu in row.telemetry.gpus] == [f"GPU-{index}a" for index in indices]


@pytest.mark.slow
def test_a_run_that_an_earlier_version_planned_goes_on_without_samples(tmp_path):
    out, cells = tmp_path / "run", arguments(strategy="single,replicated", platform="cpu", devices="2")
    first = rows(out, "run", *cells, "--out", str(out), env={})
    assert [row.telemetry and (row.telemetry.gpus, len(row.telemetry.host)) for row in first] == [((), 2)] * 2
    path, planned = out / store.RESULTS, json.loads((out / store.RUN).read_text())
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    del planned["telemetry"]
    (out / store.RUN).write_text(json.dumps(planned))
    found = rows(out, "run", "--resume", str(out), env={})
    assert [(row.run.telemetry, row.telemetry is None) for row in found] == [("on", False), ("off", True)]


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_run_that_goes_on_cannot_change_its_mode(tmp_path, command):
    refused_command(harness(command, "--resume", str(tmp_path), "--telemetry", "on"), "--resume", "--telemetry")


def test_telemetry_has_two_modes(tmp_path):
    done = harness("run", *arguments(platform="cpu"), "--telemetry", "maybe", cwd=tmp_path)
    refused_command(done, "maybe", "on", "off")


# Rows that no launch can have recorded


LOADS = (HostLoad(load=0.5, cpu_seconds=10.0, steal_seconds=1.0), HostLoad(load=0.6, cpu_seconds=20.0, steal_seconds=2))


def test_a_row_with_telemetry_is_read_back(tmp_path):
    gpu = GpuTelemetry(uuid="GPU-a", power_watts=(None, 1.5), clock_reasons=(4, None))
    row = replace(make_result(), telemetry=Telemetry(zero=1.0, seconds=(0.0, 1.0), gpus=(gpu,), host=LOADS))
    store.append(tmp_path, row)
    assert store.read(tmp_path) == [row]
    assert {len(getattr(gpu, item.name)) for item in fields(gpu)} == {0, 2, 5}


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"seconds": (1.0, 0.0)}, "seconds"),
        ({"seconds": (0.0, float("nan"))}, "seconds"),
        ({"zero": float("inf")}, "zero"),
        ({"gpus": (GpuTelemetry(uuid="GPU-a", power_watts=(1.0,)),)}, "column"),
        ({"gpus": (GpuTelemetry(uuid="GPU-a", power_watts=(1.0, float("nan"))),)}, "number"),
        ({"host": (replace(LOADS[0], load=float("nan")),)}, "number"),
        ({"errors": (GpuErrors(uuid="GPU-a", uncorrected=-1),)}, "errors"),
    ],
)
def test_telemetry_that_no_launch_can_have_is_refused(tmp_path, changed: dict[str, Any], fact):
    known = Telemetry(zero=1.0, seconds=(0.0, 1.0))
    store.append(tmp_path, replace(make_result(), telemetry=replace(known, **changed)))
    with refused(str(tmp_path), fact):
        store.read(tmp_path)
