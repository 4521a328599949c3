"""A round that was begun on one machine is not completed on another: it is measured anew as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import make_machine, make_result, make_spec

from harness.cli.terminal import PlainDisplay
from harness.machine import machine_record
from harness.planning.matrix import make_plan
from harness.planning.plan import Plan, Planned
from harness.planning.run_request import Request
from harness.results import holds, store
from harness.session import command, measuring
from harness.spec import Cause, Gpu, Hardware, TrainingSpec, TrialResult

HERE = Hardware(boot="here")


def row(strategy="single", launch=0, boot="there", **known) -> TrialResult:
    """A row of a launch that was measured in a hold; with wall_seconds=None, of a trial that was not launched."""
    made = make_result(spec=make_spec(strategy=strategy, launch=launch), **{"wall_seconds": 1.0} | known)
    return replace(made, conditions=replace(made.conditions, hardware=Hardware(boot=boot)))


def not_launched(strategy="single", launch=0, **known) -> TrialResult:
    return replace(row(strategy, launch, status="pending"), ranks=(), wall_seconds=None, **known)


def plan_of(*rows, launches=2, **known) -> Plan:
    return Plan(
        trials=tuple(Planned(spec=replace(row.spec, **known)) for row in rows),
        platform="cpu", preset="smoke", interpreters={}, launches=launches,
    )  # fmt: skip


def aside(*rows, plan=None, here=HERE):
    """The launches that are set aside, by strategy and number."""
    found = holds.set_aside(plan or plan_of(*rows), rows, here)
    return {(each.spec.strategy, each.spec.launch) for each in found.rows}, list(found.counts.values())


def test_only_a_round_that_is_not_complete_is_set_aside():
    rows = [row(), row("ddp"), row(launch=1), not_launched("ddp", 1)]
    assert aside(*rows) == ({("single", 1)}, [1])
    assert aside(*rows[:3], plan=plan_of(*rows)) == ({("single", 1)}, [1])
    assert aside(*rows[:2], row(launch=1, boot="here"), rows[3]) == (set(), [])
    assert aside(*rows[:3]) == (set(), [])


@pytest.mark.parametrize(
    ("status", "wall_seconds", "complete"),
    [
        ("ok", 1.0, True),
        ("crashed", 1.0, True),
        ("timeout", 9.0, True),
        ("killed", 1.0, True),  # by itself
        ("killed", None, False),  # with the session
        ("pending", 1.0, False),  # ended when the time was up
        ("parity_failed", None, True),  # it is never launched
    ],
)
def test_a_launch_that_ended_by_itself_completes_its_round(status, wall_seconds, complete):
    other = replace(row("ddp", status=status), wall_seconds=wall_seconds, ranks=())
    assert aside(row(), other)[0] == (set() if complete else {("single", 0)})


def test_other_gpus_are_another_hold():
    gpus = (Gpu(token="0", name="H200", memory_bytes=1, uuid="GPU-1"),)
    rows = [row(boot="here"), not_launched("ddp")]
    assert aside(*rows) == (set(), [])
    assert aside(*rows, here=replace(HERE, gpus=gpus)) == ({("single", 0)}, [1])


def test_single_launches_and_trainings_are_kept():
    rows = [row(), not_launched("ddp")]
    assert aside(*rows, plan=plan_of(*rows, launches=1)) == (set(), [])
    training = TrainingSpec(epochs=1, target_accuracy=1.0)
    trained = [replace(each, spec=replace(each.spec, training=training)) for each in rows]
    assert aside(*trained) == (set(), [])


def test_rows_that_were_set_aside_are_counted_on():
    rows = [row(set_aside=2), not_launched("ddp", set_aside=1)]
    assert aside(*rows) == ({("single", 0)}, [3, 1])


@pytest.fixture
def interrupted(tmp_path, fakes, monkeypatch):
    """A run of two cells and two rounds, of which the last launch is missing; resumes it in the hold of this boot."""
    monkeypatch.setattr(command, "machine", make_machine)
    request = Request(
        frameworks=("fake",), workloads=("toy",), strategies=("single", "replicated"), platform="cpu", launches=2
    )
    plan = make_plan(request, make_machine())

    def resume(boot) -> list[TrialResult]:
        monkeypatch.setattr(machine_record, "boot", lambda: boot)
        return command.resume_run(tmp_path / "run", {}, display=PlainDisplay()).results

    monkeypatch.setattr(machine_record, "boot", lambda: "there")
    command.start_run(plan, ["run"], out=tmp_path / "run", data=None, display=PlainDisplay())
    results = tmp_path / "run" / store.RESULTS
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:-1]))
    return resume


def told(rows):
    """Of each row, in the order in which they were planned: the round, the hold and the rows that were set aside."""
    return sorted((row.spec.launch, row.conditions.hardware.boot, row.set_aside) for row in rows)


@pytest.mark.runs
def test_in_the_same_hold_only_what_is_missing_is_measured(tmp_path, interrupted):
    rows = interrupted("there")
    assert told(rows) == [(0, "there", 0), (0, "there", 0), (1, "there", 0), (1, "there", 0)]
    assert len((tmp_path / "run" / store.RESULTS).read_bytes().splitlines()) == 4


@pytest.mark.slow
def test_in_another_hold_the_round_is_measured_anew_and_every_row_stays(tmp_path, interrupted):
    results = tmp_path / "run" / store.RESULTS
    before = results.read_bytes()
    rows = interrupted("here")
    assert {row.status for row in rows} == {"ok"}
    assert told(rows) == [(0, "there", 0), (0, "there", 0), (1, "here", 0), (1, "here", 1)]
    assert told(store.read(tmp_path / "run")) == told(rows)
    assert results.read_bytes().startswith(before)


@pytest.mark.slow
def test_a_session_that_is_killed_leaves_no_rows_of_two_holds_in_a_round(tmp_path, interrupted, monkeypatch):
    class Killed(BaseException):
        pass

    def measure(session, spec):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(measuring.Session, "_measure", measure)
        patch.setattr(measuring.Session, "_give_up", lambda *_, **__: None)
        with pytest.raises(Killed):
            interrupted("here")
    rows = [row for row in store.read(tmp_path / "run") if row.spec.launch == 1]
    assert [(row.status, row.cause, row.set_aside) for row in rows] == [("pending", Cause(kind="not_begun"), 1)]
    assert told(interrupted("here"))[2:] == [(1, "here", 0), (1, "here", 1)]
