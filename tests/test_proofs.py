"""Parity phases side by side: how many, what is tried alone afterwards, and that none outlives an interruption."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import make_machine, make_session, make_spec, processes_started_here
from refusals import names

from harness.cli.terminal import PlainDisplay
from harness.launch import pool
from harness.launch.launcher import Outcome
from harness.launch.local import core_shares, rotated
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.planning.side_by_side import at_once
from harness.results import store
from harness.session import phase_launches, proving
from harness.spec import registry
from harness.spec.errors import Interrupted

pytestmark = pytest.mark.runs

GIB = 2**30
DONE = Outcome(status="ok", reason="", traceback="", answers=())


@pytest.mark.parametrize(
    ("cells", "devices", "cores", "memory", "expected"),
    [
        (22, 2, 32, 250 * GIB, 6),  # no more, however large the host is
        (3, 2, 32, 250 * GIB, 3),
        (22, 2, 8, 250 * GIB, 2),
        (22, 2, 32, 40 * GIB, 2),
        (22, 8, 8, 8 * GIB, 1),
        (0, 2, 32, 250 * GIB, 1),
    ],
)
def test_as_many_as_the_host_has_room_for(cells, devices, cores, memory, expected):
    specs = [make_spec(platform="gpu", devices=count) for count in [1] * (cells - 1) + [devices] * bool(cells)]
    assert at_once(specs, cores=cores, memory_bytes=memory) == expected


@pytest.mark.parametrize(
    ("cells", "cores", "memory", "expected"), [(22, 2, 24, 2), (22, 32, 250, 6), (1, 2, 24, 1), (22, 8, 7, 1)]
)
def test_on_cpu_devices_as_many_as_there_are_cores(cells, cores, memory, expected):
    specs = [make_spec(devices=2)] * cells
    assert at_once(specs, cores=cores, memory_bytes=memory * GIB) == expected


def test_no_more_at_a_time_than_asked_for_and_each_once():
    inside, most, lock = 0, 0, threading.Lock()

    def launch(spec, stop):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1
        return DONE

    specs = [make_spec(seed=seed) for seed in range(9)]
    found = list(pool.side_by_side(launch, specs, at_once=3, has_time=lambda: True))
    assert most == 3
    assert sorted(spec.seed for spec, _ in found) == list(range(9))


def test_without_time_none_begins():
    assert not list(pool.side_by_side(lambda *_: DONE, [make_spec()], at_once=2, has_time=lambda: False))


def test_an_interruption_stops_those_under_way_and_begins_no_other():
    begun = []

    def launch(spec, stop):
        begun.append(spec.seed)
        if spec.seed:
            assert stop.wait(20)  # as a launch does
        return DONE

    specs = [make_spec(seed=seed) for seed in range(9)]
    with pytest.raises(KeyboardInterrupt):
        for _ in pool.side_by_side(launch, specs, at_once=3, has_time=lambda: True):
            raise KeyboardInterrupt
    assert len(begun) <= 4


def test_phases_that_share_the_cores_begin_with_different_ones():
    cores = (3, 5, 8)
    starts = [rotated(cores, number) for number in range(4)]
    assert starts == [(3, 5, 8), (5, 8, 3), (8, 3, 5), (3, 5, 8)]
    single = [core_shares(start, 1, 1, 2, "cpu") for start in starts]  # a cell on one of the two devices of a plan
    assert single == [[[3]], [[5]], [[8]], [[3]]]


@pytest.fixture
def session(tmp_path, fakes, monkeypatch):
    """A run of the fakes on a host with GPUs; returns its results by strategy, and its launches: strategy, phase and
    whether it shared the GPUs."""
    machine = replace(make_machine(gpus=2), cores=tuple(range(32)))
    launches = []
    launch = phase_launches.launch

    def count(order, *arguments, **known):
        launches.append((order.spec.strategy, order.phase, order.shares))
        return launch(order, *arguments, **known)

    monkeypatch.setattr(phase_launches, "launch", count)
    monkeypatch.setattr(proving, "virtual_memory", lambda: SimpleNamespace(available=250 * GIB))

    def run_session(*strategies):
        plan = make_plan(
            Request(frameworks=("fake",), workloads=("toy",), strategies=strategies, preset="smoke"), machine
        )
        run = make_session(store.Intent(plan=plan, command="", started=""), tmp_path, machine, display=PlainDisplay())
        return {result.spec.strategy: result for result in run.measure_all()}, launches

    return run_session


def test_on_gpus_cells_are_proved_beside_each_other_and_timed_alone(session):
    results, launches = session("single", "replicated")
    assert {result.status for result in results.values()} == {"ok"}
    assert sorted(launches[:2]) == [("replicated", "parity", True), ("single", "parity", True)]
    assert sorted(launches[2:]) == [("replicated", "timing", False), ("single", "timing", False)]


def test_what_fails_beside_others_is_tried_alone_but_a_wrong_result_counts(session, tmp_path):
    results, launches = session("single", "crash_rank1", "wrong_gradient")
    assert {name: result.status for name, result in results.items()} == {
        "single": "ok", "crash_rank1": "crashed", "wrong_gradient": "parity_failed",
    }  # fmt: skip
    alone = [(name, phase) for name, phase, shares in launches if not shares]
    assert alone == [("crash_rank1", "parity"), ("single", "timing")]
    logs = [path.parent for path in (tmp_path / "logs").glob("*crash_rank1*/rank1.log")]
    assert len(logs) == 2  # both say why it failed


def test_a_mistake_in_code_is_not_tried_again(session, monkeypatch):
    """More room does not mend an AttributeError. What other errors mean is not known."""
    monkeypatch.setattr(pool, "MISTAKES", ("ValueError",))  # which crash_rank1 raises
    results, launches = session("single", "crash_rank1")
    assert results["crash_rank1"].status == "crashed"
    assert [launch for launch in launches if not launch[2]] == [("single", "timing", False)]
    assert pool.may_have_lacked_room("killed", None)


def test_a_wrong_result_counts_though_another_rank_is_killed(session):
    results, launches = session("single", "wrong_then_killed")
    wrong = results["wrong_then_killed"]
    assert wrong.status == "parity_failed"  # which neither a try alone nor --resume does again
    names(wrong.reason, "losses", "rank 0", "SIGKILL")
    assert [launch for launch in launches if not launch[2]] == [("single", "timing", False)]


def test_what_cannot_be_removed_is_in_no_second_tries_way(session, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    results, _ = session("single", "crash_rank1")
    assert {name: result.status for name, result in results.items()} == {"single": "ok", "crash_rank1": "crashed"}


def test_a_cut_by_measured_times_has_the_gpus_for_itself():
    gpu = make_spec(platform="gpu", strategy="pipeline", options={"cut": "conv1"})
    framework = registry.framework("torch")
    assert pool.may_share(gpu, framework)
    assert not pool.may_share(replace(gpu, options={"cut": "time"}), framework)


def test_on_cpu_devices_only_what_is_forked_shares_the_cores():
    framework = registry.framework("torch")
    assert pool.may_share(make_spec(), framework)
    assert not pool.may_share(make_spec(hosts=2), framework)
    assert not pool.may_share(make_spec(), replace(framework, forks=False))


class Impatient(PlainDisplay):
    """Ctrl-C as soon as the first cell is proved."""

    def done(self, text, status):
        if status == "ok":
            raise Interrupted(signal.SIGINT)


def test_ctrl_c_ends_all_that_run_beside_each_other(session, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PlainDisplay", Impatient)
    with pytest.raises(Interrupted):
        session("single", "hang_rank1")
    assert [result.status for result in store.read(tmp_path)] == ["pending", "pending"]
    assert not processes_started_here()
