"""A run in several sessions: what fits into a budget, what is kept, what is done again."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import FAKES, ROOT, harness, make_machine, make_result, make_session, make_spec
from refusals import names, refused, refused_command

from harness import reporting, workloads
from harness.cli.app import exit_code
from harness.cli.terminal import PlainDisplay
from harness.datasets import Batches
from harness.gate import runs
from harness.launch import golden_pool, worker_code
from harness.launch.interrupts import install_signal_handlers
from harness.machine import devices, machine_record
from harness.planning.launch_order import interleave
from harness.planning.matrix import make_plan, plan_cells
from harness.planning.plan import Plan
from harness.planning.resume import as_here, check_machine
from harness.planning.run_request import Request, TrainingRequest
from harness.results import json_lines, proof_store, store
from harness.session import budget, command, environment, measuring, phase_launches, proofs, references, rounds
from harness.spec import Cause, Gpu, Hardware, registry
from harness.spec.errors import Interrupted, MachineUnfit, UsageError
from harness.worker import after_blocks

pytestmark = pytest.mark.runs


def test_what_does_not_fit_is_pending_and_the_next_sitting_goes_on(tmp_path):
    out = tmp_path / "run"
    arguments = ["--framework", "fake", "--strategy", "single,replicated", "--workload", "classifier"]
    arguments += ["--platform", "cpu", "--epochs", "2", "--seeds", "4"]
    done = harness("train", *arguments, "--budget-minutes", "0.04", "--out", str(out))
    assert done.returncode == 0, done.stderr
    first = store.read(out)
    assert len(first) == 8
    assert {result.status for result in first} <= {"ok", "pending"}
    assert any(result.status == "pending" for result in first)
    left = sum(result.status == "pending" for result in first)
    assert re.findall(r"(\d) of 8\b", (out / "report.md").read_text()) == [str(left)]
    assert f"run --resume {out}" in done.stdout
    done = harness("run", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert "--resume" not in done.stdout
    second = store.read(out)
    assert [result.status for result in second] == ["ok"] * 8
    before = {(r.spec.cell, r.spec.launch): r.epochs for r in first if r.status == "ok"}
    after = {(r.spec.cell, r.spec.launch): r.epochs for r in second}
    assert all(after[key] == epochs for key, epochs in before.items())  # what was measured is not measured again
    assert not re.search(r"\d of 8\b|pending", (out / "report.md").read_text())
    assert len({result.run.started for result in second}) == 1


def test_train_does_not_go_on_with_a_run_that_trains_nothing(tmp_path, fakes):
    plan = make_plan(Request(frameworks=("fake",), strategies=("single",), platform="cpu"), make_machine())
    store.write_intent(tmp_path, store.Intent(plan=plan, command="", started=""))
    refused_command(harness("train", "--resume", str(tmp_path)), "--resume", f"run --resume {tmp_path}")
    assert not (tmp_path / store.RESULTS).exists()


def test_a_run_that_goes_on_keeps_the_rows_that_it_has(tmp_path):
    out = tmp_path / "run"
    arguments = ("--framework", "fake", "--strategy", "single,replicated", "--workload", "toy", "--platform", "cpu")
    assert harness("run", *arguments, "--out", str(out)).returncode == 0
    path = out / store.RESULTS
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first)
    assert harness("run", "--resume", str(out)).returncode == 0
    rows = path.read_bytes().splitlines(keepends=True)
    assert len(rows) == 2
    assert rows[0] == first
    assert rows[1] != second  # its times are others
    assert [result.status for result in store.read(out)] == ["ok"] * 2
    again = harness("run", "--resume", str(out))
    assert again.returncode == 0 and path.read_bytes().splitlines(keepends=True) == rows
    assert "note:" in again.stderr and "ok:" not in again.stderr


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon"])
def test_a_budget_is_a_time(value, tmp_path):
    done = harness("run", "--framework", "fake", "--budget-minutes", value, cwd=tmp_path)
    refused_command(done, "--budget-minutes")


@pytest.mark.parametrize(("options", "devices"), [({}, (2, 12)), ({"split_size": ("5",)}, (2,))])
def test_every_planned_cell_is_known_when_it_is_resumed(tmp_path, options, devices):
    """Defaults that were filled in, and options that were removed because another one was chosen, are no reason to
    refuse a run."""
    request = Request(workloads=("all",), platform="cpu", options=options, devices=devices)
    store.write_intent(tmp_path, store.Intent(plan=make_plan(request, make_machine()), command="", started=""))
    assert store.read_intent(tmp_path)[1] == []


@pytest.mark.parametrize(
    ("before", "after", "facts"),
    [
        ('"strategy": "single"', '"strategy": "gone"', ["fake gone", "toy base"]),
        ('"framework": "fake"', '"framework": "gone"', ["gone single", "toy base"]),
        ('"workload": "toy"', '"workload": "gone"', ["fake single", "gone base"]),
        ('"size": "base"', '"size": "gone"', ["fake single", "toy gone"]),
        ('"options": {}', '"options": {"gone": 1}', ["fake single", "toy base"]),
        ('"settings": {}', '"settings": {"gone": true}', ["fake single", "toy base"]),
        ('"schema_version": 2', '"schema_version": 99', ["99", "2"]),
        ('"schema_version": 2', '"schema_version": 1', ["1", "2"]),
    ],
)
def test_a_run_of_another_version_is_refused_and_not_ruined(tmp_path, fakes, before, after, facts):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    store.write_intent(tmp_path, store.Intent(plan=make_plan(request, make_machine()), command="", started=""))
    assert store.read_intent(tmp_path)[1] == []
    path = tmp_path / store.RUN
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with refused("--resume", *facts):
        store.read_intent(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"NCCL_DEBUG": "\udcff"}])
def test_text_that_is_not_utf_8_costs_no_row(tmp_path, variables):
    flags = ("--workload", "toy", "--platform", "cpu", "--devices", "1", "--strategy", "odd_message,single")
    done = harness("run", "--framework", "fake", *flags, "--out", str(tmp_path / "run"), env=variables)
    assert done.returncode == 1, done.stderr
    odd, single = store.read(tmp_path / "run")
    assert (odd.status, single.status) == ("crashed", "ok")
    assert r"\udcff" in odd.reason
    assert single.conditions.environment.get("NCCL_DEBUG") == (r"\udcff" if variables else None)
    assert r"\udcff" in (tmp_path / "run" / "report.md").read_text("utf-8")
    done = harness("run", "--resume", str(tmp_path / "run"), env=variables)
    assert done.returncode == 1, done.stderr
    assert store.read(tmp_path / "run") == [odd, single]


RUN_SINGLE = ("run", "--framework", "fake", "--workload", "toy", "--strategy", "single", "--platform", "cpu")


def test_broken_metadata_of_other_packages_cost_nothing(tmp_path):
    for name in ("broken-1", "unreadable-1", "numpy-9"):  # that of an interrupted installation is empty
        (tmp_path / "site" / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "unreadable-1.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    path = os.pathsep.join([str(ROOT), str(FAKES), str(tmp_path / "site")])
    out = tmp_path / "run"
    done = harness(*RUN_SINGLE, "--out", str(out), env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert (out / "report.md").is_file()
    known = json.loads((out / "environment.json").read_text("utf-8"))["harness_packages"]
    assert "numpy" in known and "broken" not in known


def a_run(folder, monkeypatch, launches=2):
    """A run of the fake framework in this process, and where it was."""
    monkeypatch.setattr(command, "machine", make_machine)
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    plan = make_plan(replace(request, launches=launches), make_machine())
    return command.start_run(plan, ["run"], out=folder, data=None, display=PlainDisplay())


def test_on_a_full_disk_rows_are_kept_and_the_user_knows_how_to_go_on(tmp_path, fakes, monkeypatch):
    out, written = tmp_path / "run", []
    take = json_lines.append

    def full(path, content):
        if path.name == store.RESULTS and len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        take(path, content)
        written.extend([path] * (path.name == store.RESULTS))

    with monkeypatch.context() as patched:
        patched.setattr(json_lines, "append", full)
        with refused(str(out / store.RESULTS), "No space", f"--resume {out}", kind=MachineUnfit):
            a_run(out, monkeypatch)
    assert [row.status for row in store.read(out)] == ["ok"]
    assert (out / "report.md").is_file()
    assert not list(tmp_path.rglob("*.tmp"))
    finished = command.resume_run(out, {}, display=PlainDisplay())
    assert [row.status for row in finished.results] == ["ok", "ok"]


def test_ctrl_c_before_the_session_leaves_nothing_behind(tmp_path, fakes, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "Session", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a_run(tmp_path / "run", monkeypatch)
    assert not (tmp_path / "run").exists()


def test_every_planned_trial_has_a_row_after_an_interruption_before_the_first(tmp_path, fakes, monkeypatch):
    def interrupted(*_, **__):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(measuring.References, "compute", interrupted)
    monkeypatch.setattr(command, "machine", make_machine)
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single", "replicated"), platform="cpu")
    plan = make_plan(replace(request, devices=(1, 2)), make_machine())
    assert {trial.status for trial in plan.trials} == {"planned", "skipped"}
    with pytest.raises(Interrupted):
        command.start_run(plan, ["run"], out=tmp_path / "run", data=None, display=PlainDisplay())
    rows = store.read(tmp_path / "run")
    assert sorted(row.spec.cell for row in rows) == sorted(trial.spec.cell for trial in plan.trials)
    assert {row.status for row in rows} == {"pending", "skipped"}
    assert {row.cause.kind for row in rows if row.cause and row.status == "pending"} == {"interrupted"}
    kept, _ = store.read_intent(tmp_path / "run", {})
    assert len(kept.plan.runnable()) == sum(row.status == "pending" for row in rows)  # which --resume runs


def test_a_new_run_without_a_cell_that_can_run_is_not_said_to_be_done(tmp_path, fakes, capsys):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    plan = make_plan(request, make_machine())
    gone = tuple(replace(trial, status="unavailable", reason="gone") for trial in plan.trials)
    intent = store.Intent(plan=replace(plan, trials=gone), command="", started="")
    (row,) = make_session(intent, tmp_path).measure_all()
    assert row.status == "unavailable"
    said = capsys.readouterr().err
    assert "no cell" in said and "left" not in said


def test_what_is_published_names_no_home_directory(tmp_path, fakes, monkeypatch):
    home = tmp_path / "someone"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(command, "machine", make_machine)
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("odd_message",), platform="cpu")
    plan = make_plan(request, make_machine())
    said = ["run", "--compile-cache", str(home / "cache"), "--option", f"x={home}else"]
    command.start_run(plan, said, out=home / "run", data=None, display=PlainDisplay())
    (row,) = {row.run.command for row in store.read(home / "run")}
    assert row == f"python -m harness run --compile-cache ~/cache --option x={home}else"
    for name in ("environment.json", "report.md", "results.jsonl"):
        assert f"{home}/" not in (home / "run" / name).read_text("utf-8"), name


def test_what_keeps_environment_json_from_being_written_costs_no_report(tmp_path, fakes, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(environment.locks, "installed", lambda: [][0])
    with pytest.raises(IndexError):  # as any fault of ours, it is seen
        a_run(out, monkeypatch, launches=1)
    assert (out / "report.md").is_file()
    assert len(store.read(out)) == 1


def test_what_keeps_a_report_from_being_written_does_not_hide_an_interruption(tmp_path, fakes, monkeypatch):
    def interrupted(*_):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(measuring.Session, "_prove_and_measure", interrupted)
    monkeypatch.setattr(command.reporting, "write", lambda *_: [][0])
    with pytest.raises(Interrupted) as error:
        a_run(tmp_path / "run", monkeypatch)
    assert error.value.folder == str(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_the_report_is_told_how_to_write_it(tmp_path, fakes, monkeypatch, capfd, number):
    out = tmp_path / "run"
    monkeypatch.setattr(command.reporting, "write", lambda *_: signal.raise_signal(number))
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as error:
        a_run(out, monkeypatch, launches=1)
    assert signal.getsignal(number) == handler
    assert [row.status for row in store.read(out)] == ["ok"] and not (out / "report.md").exists()
    capfd.readouterr()
    assert exit_code(error.value) == 128 + number
    names(capfd.readouterr().err, f"python -m harness report {out}")


def test_two_sittings_at_a_time_are_refused(tmp_path, fakes):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    store.write_intent(tmp_path, store.Intent(plan=make_plan(request, make_machine()), command="", started=""))
    (tmp_path / store.RESULTS).write_text("half a line")
    with store.held(tmp_path):
        done = harness("run", "--resume", str(tmp_path))
        refused_command(done, f"--resume {tmp_path}")
    assert (tmp_path / store.RESULTS).read_text() == "half a line"


@pytest.mark.slow
def test_a_run_goes_on_under_a_python_that_is_here(tmp_path):
    out = tmp_path / "run"
    done = harness("run", "--framework", "fake", "--workload", "toy", "--strategy", "single", "--out", str(out))
    assert done.returncode == 0, done.stderr
    kept = json.loads((out / store.RUN).read_text())
    kept["plan"]["interpreters"] = {"fake": "/gone/python"}
    (out / store.RUN).write_text(json.dumps(kept))
    (out / store.RESULTS).unlink()
    resume = ("run", "--resume", str(out))
    for arguments, facts in [
        ((), ["--interpreter fake=/gone/python"]),
        (("--interpreter", f"gone={sys.executable}"), ["--interpreter 'gone'", "torch, jax, tf"]),
    ]:
        refused_command(harness(*resume, *arguments), *facts)
    assert not (out / store.RESULTS).exists()
    done = harness(*resume, "--interpreter", f"fake={sys.executable}")
    assert done.returncode == 0, done.stderr
    assert [result.status for result in store.read(out)] == ["ok"]


@pytest.mark.slow
def test_code_that_only_a_folder_names_is_not_run(tmp_path, fakes):
    """The folder may come from somebody else, who could have it run anything."""
    victim, python = tmp_path / "victim", tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntouch {victim}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    out, cache = tmp_path / "run", tmp_path / "cache"
    trials = make_plan(Request(frameworks=("fake",), workloads=("toy",), strategies=("single",)), make_machine()).trials
    plan = Plan(
        trials=trials, platform="cpu", preset="smoke", interpreters={"fake": str(python)}, compile_cache=str(cache)
    )
    out.mkdir()
    machine = machine_record.hardware(devices.machine())
    store.write_intent(out, store.Intent(plan=plan, command="", started="", machine=machine))
    resume, trusted = ("run", "--resume", str(out)), ("--interpreter", f"fake={python}")
    refused_command(harness(*resume), "--interpreter fake", str(python), f"--compile-cache {cache}")
    refused_command(harness(*resume, *trusted, "--compile-cache", str(tmp_path)), f"--compile-cache {cache}")
    assert not victim.exists()
    done = harness(*resume, *trusted, "--compile-cache", str(tmp_path / "run" / ".." / "cache"))
    assert done.returncode == 0, done.stderr
    assert victim.exists()


@pytest.fixture
def session(tmp_path, fakes, monkeypatch):
    """One session of a small run in the same folder, by code and on samples of these digests; returns the phases that
    were launched, and before them those for which something golden was computed."""
    plan = make_plan(
        Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu"), make_machine()
    )
    intent = store.Intent(plan=plan, command="", started="")
    done = []
    local, compute = phase_launches.launch, runs.compute
    monkeypatch.setattr(
        phase_launches, "launch", lambda order, *a, **k: (done.append(order.phase), local(order, *a, **k))[1]
    )
    monkeypatch.setattr(
        runs, "compute", lambda run, *a, **k: (done.append(f"golden {run.phase}"), compute(run, *a, **k))[1]
    )

    def run_session(code="abc", samples=1):
        done.clear()
        monkeypatch.setattr(proofs, "code_digest", lambda framework, workload: code)
        monkeypatch.setattr(references, "digest", lambda arrays: str(samples))
        results = make_session(intent, tmp_path).measure_all()
        assert [result.status for result in results] == ["ok"]
        return list(done)

    return run_session


def test_a_twin_shares_the_proof_and_has_rows_of_its_own(tmp_path, fakes, monkeypatch):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu", launches=2)
    plan = plan_cells(request, make_machine())
    (single,) = plan.trials
    both = (single, replace(single, spec=replace(single.spec, twin=True)))
    intent = store.Intent(plan=replace(plan, trials=interleave(both, 2)), command="", started="now")
    phases, local = [], phase_launches.launch
    monkeypatch.setattr(
        phase_launches, "launch", lambda order, *a, **k: (phases.append(order.phase), local(order, *a, **k))[1]
    )
    results = make_session(intent, tmp_path).measure_all()
    assert [result.status for result in results] == ["ok"] * 4
    assert phases == ["parity", *["timing"] * 4]
    reporting.write(tmp_path, store.read(tmp_path))
    assert "A/A twin" in (tmp_path / "report.md").read_text()
    assert len(list((tmp_path / "logs").glob("*-twin-launch*"))) == 2


class Terminating(PlainDisplay):
    """SIGTERM as soon as one row says that a result is wrong."""

    def done(self, text, status):
        if status == "parity_failed":
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_wrong_result_counts_for_all_launches_though_a_signal_comes(tmp_path, fakes):
    request = Request(
        frameworks=("fake",), workloads=("toy",), strategies=("wrong_gradient",), platform="cpu", launches=3
    )
    intent = store.Intent(plan=make_plan(request, make_machine()), command="", started="")
    restore = install_signal_handlers()
    try:
        with pytest.raises(Interrupted):
            make_session(intent, tmp_path, display=Terminating()).measure_all()
    finally:
        restore()
    assert [result.status for result in store.read(tmp_path)] == ["parity_failed"] * 3


def set_clock(monkeypatch, seconds):
    """Lets sessions measure time by this function."""
    clock = SimpleNamespace(monotonic=seconds, monotonic_ns=time.monotonic_ns)
    for module in (budget, phase_launches):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.parametrize(("seconds", "phases"), [(50, ["parity"]), (100, ["parity"]), (150, ["parity", "timing"])])
def test_the_first_launch_of_a_phase_is_taken_to_last_as_long_as_those_of_others(
    tmp_path, fakes, monkeypatch, seconds, phases
):
    plan = make_plan(
        Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu"), make_machine()
    )
    now, begun, local = [0.0], [], phase_launches.launch

    def last(order, *arguments, **known):
        begun.append(order.phase)
        now[0] += 60
        return local(order, *arguments, **known)

    monkeypatch.setattr(phase_launches, "launch", last)
    set_clock(monkeypatch, lambda: now[0])
    intent = store.Intent(plan=plan, command="", started="")
    run = make_session(intent, tmp_path, budget_seconds=seconds)
    (result,) = run.measure_all()
    assert begun == phases
    assert result.status == ("ok" if "timing" in phases else "pending")


@pytest.mark.slow
def test_a_round_begins_if_it_fits_and_one_that_never_fits_goes_cell_by_cell(tmp_path, fakes, monkeypatch):
    known = {"frameworks": ("fake",), "workloads": ("toy",), "strategies": ("single", "replicated"), "platform": "cpu"}
    plan = make_plan(Request(**known, launches=2), make_machine())
    now, local = [0.0], phase_launches.launch

    def last(order, *arguments, **known):
        now[0] += 100 if (order.spec.strategy, order.phase) == ("single", "timing") else 10
        return local(order, *arguments, **known)

    monkeypatch.setattr(phase_launches, "launch", last)
    set_clock(monkeypatch, lambda: now[0])
    intent = store.Intent(plan=plan, command="", started="")

    def measured(seconds, finished=()):
        """The rows of a session of so many seconds that were measured, and the seconds that each of them took."""
        run = make_session(intent, tmp_path, budget_seconds=seconds, finished=finished)
        rows = [row for row in run.measure_all() if row.status == "ok"]
        return rows, {(row.spec.strategy, row.spec.launch): row.wall_seconds for row in rows}

    first = {("single", 0): 100, ("replicated", 0): 10}
    # two proofs of 10 s and the first round end after 130 s; the second round would take 110 s
    assert measured(225)[1] == first
    rows, found = measured(245)
    assert found == first | {("single", 1): 100, ("replicated", 1): 10}
    # how long they take is known from the first session, and 60 s are too few for any round
    left = [row for row in rows if row.spec.launch == 0]
    assert measured(60, left)[1] == first | {("replicated", 1): 10}
    assert measured(111, left)[1] == found


class Told(PlainDisplay):
    def __init__(self):
        super().__init__()
        self.notes = []

    def done(self, text, status):
        self.notes += [text] if status == "note" else []


@pytest.mark.parametrize(
    ("launches", "seconds", "at_most", "known", "begun", "told"),
    [
        (3, math.inf, math.inf, {}, [0, 1, 2], []),
        (3, 100.0, 100.0, {}, [0, 1, 2], []),  # nothing is known, and no time passes
        (3, 45.0, 45.0, {"ddp": 10.0, "fsdp": 30.0}, [0], ["0.7", "0.8", "0 more"]),
        (3, 90.0, 90.0, {"ddp": 10.0}, [0, 1, 2], ["0.3", "1.5", "2 more"]),  # the unknown cell as the known one
        (3, 30.0, 90.0, {"ddp": 10.0, "fsdp": 30.0}, [], ["0.7", "0.5"]),  # a later session has more time
        (3, 30.0, 40.0, {"ddp": 10.0, "fsdp": 30.0}, [0], ["0.7", "0.5"]),
        (1, 30.0, 90.0, {"ddp": 10.0, "fsdp": 30.0}, [0], ["0.7", "0.5"]),
    ],
)
def test_rounds_begin_as_the_budget_allows_and_are_told(monkeypatch, launches, seconds, at_most, known, begun, told):
    now = [0.0]
    set_clock(monkeypatch, lambda: now[0])
    trials = [make_spec(strategy=name, launch=launch) for launch in range(launches) for name in ("ddp", "fsdp")]
    earlier = [
        make_result(spec=make_spec(strategy=name), wall_seconds=longest * share)
        for name, longest in known.items()
        for share in (0.5, 1.0)
    ]
    proved: Any = SimpleNamespace(get=lambda spec: make_result(spec=spec))
    display = Told()
    this = rounds.Rounds(budget.Budget(seconds, earlier), proved, launches=launches, at_most=at_most, display=display)
    found = []
    for trials_of_round in this.that_fit(trials):
        assert {spec.strategy for spec in trials_of_round} == {"ddp", "fsdp"}
        found.append(trials_of_round[0].launch)
        now[0] += sum(known.values()) if len(known) == 2 else 0.0
    assert found == begun
    assert len(display.notes) == launches
    names(display.notes[0], f"1 of {launches}", *told)


def test_a_round_is_expected_to_take_as_long_as_the_last_one_of_its_session():
    first, later = (make_spec(launch=launch) for launch in range(2))
    this = budget.Budget(1000, [make_result(spec=first, wall_seconds=300)])
    assert this.expected([later, later]) == 600
    this.record("timing", later, 1.0, succeeded=False)  # a crash says nothing about a launch that works
    assert this.expected([later]) == 300
    this.record("timing", first, 400.0, succeeded=True)
    this.record("timing", later, 60.0, succeeded=True)  # it found what the one before it had compiled
    assert this.expected([later, make_spec(strategy="fsdp")]) == 60 + 60


def test_another_machine_is_named_with_what_it_has():
    gpu = Gpu(token="0", name="NVIDIA H200", memory_bytes=1)
    two, four = (Hardware(gpus=(gpu,) * count, driver="580", cores=8) for count in (2, 4))
    with refused("--resume", "gpus", "NVIDIA H200, NVIDIA H200", "CUDA_VISIBLE_DEVICES") as error:
        check_machine(two, four)
    assert str(error.value).count("NVIDIA H200") == 2 + 4
    with refused("--resume", "driver", "580", "590") as error:
        check_machine(two, replace(two, driver="590"))
    assert "CUDA_VISIBLE_DEVICES" not in str(error.value)
    check_machine(two, two)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["slow_when_timed", "hang_when_timed"])
def test_what_does_not_end_in_time_is_ended_and_then_comes_last(tmp_path, fakes, strategy):
    request = Request(
        frameworks=("fake",), workloads=("toy",), strategies=("single", strategy), platform="cpu", launches=2
    )
    plans = (make_plan(replace(request, seed=seed), make_machine()) for seed in range(10))
    # the first launch of single, then one that would take minutes
    plan = next(plan for plan in plans if [trial.spec.strategy for trial in plan.trials[:2]] == ["single", strategy])
    intent = store.Intent(plan=plan, command="", started="")
    store.write_intent(tmp_path, intent)
    results = make_session(intent, tmp_path, budget_seconds=15).measure_all()
    found = {(result.spec.strategy, result.spec.launch): (result.status, result.cause) for result in results}
    assert found["single", 0] == ("ok", None)
    assert found[strategy, 0] == ("pending", Cause(kind="cut_short"))
    assert found["single", 1] == found[strategy, 1] == ("pending", Cause(kind="not_begun"))
    intent, kept = store.read_intent(tmp_path)
    after = as_here(intent.plan, kept, store.cut_short(tmp_path)).trials
    assert (after[-1].spec.strategy, after[-1].spec.launch) == (strategy, 0)
    assert {(trial.spec.cell, trial.spec.launch) for trial in after} == {
        (trial.spec.cell, trial.spec.launch) for trial in plan.trials
    }


def test_golden_runs_are_ended_when_the_time_is_over(tmp_path, fakes, monkeypatch):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu", launches=2)
    plan, begun = make_plan(request, make_machine()), []

    def start(run, threads):
        begun.append(run)
        return subprocess.Popen(["sleep", "600"])

    monkeypatch.setattr(golden_pool, "start", start)
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    intent = store.Intent(plan=plan, command="", started="")
    results = make_session(intent, tmp_path, budget_seconds=1).measure_all()
    assert begun
    assert [(result.status, result.cause) for result in results] == [("pending", Cause(kind="not_begun"))] * 2


def test_a_framework_that_comes_back_is_measured_when_the_run_goes_on(tmp_path, fakes):
    request = Request(
        frameworks=("fake", "broken"), workloads=("toy",), strategies=("single",), platform="cpu", launches=3
    )
    plan = make_plan(request, make_machine())
    away = [trial for trial in plan.trials if trial.spec.framework == "fake" and trial.spec.launch == 0]
    gone = replace(away[0], status="unavailable", reason="not installed")
    others = [trial for trial in plan.trials if trial.spec.framework != "fake"]
    before = replace(plan, trials=(gone, *others))
    after = as_here(before, [])
    back = [trial for trial in after.trials if trial.spec.framework == "fake"]
    assert [(trial.status, trial.spec.launch) for trial in back] == [("planned", 0), ("planned", 1), ("planned", 2)]
    assert [trial for trial in after.trials if trial not in back] == others
    assert before.most_devices() == after.most_devices() == max(trial.spec.devices for trial in plan.trials)
    # one of its launches is done by now: the others are still to come, also in a run.json of before `launches`
    again = as_here(replace(before, launches=1), [make_result(spec=back[0].spec)])
    assert {trial.spec.launch for trial in again.trials if trial.spec.framework == "fake"} == {0, 1, 2}
    store.write_intent(tmp_path, store.Intent(plan=before, command="", started=""))
    store.append(tmp_path, make_result(spec=gone.spec, status="unavailable"))
    assert store.read_intent(tmp_path)[1] == []  # found unavailable when it was started, it is tried again


def test_what_was_never_here_does_not_stop_a_run_from_going_on(tmp_path, fakes, monkeypatch):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu", launches=2)
    plan = make_plan(request, make_machine())
    first, second = plan.trials
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter, beside: "no fake here")
    without = replace(plan, trials=(replace(first, status="unavailable", reason="not installed"),))
    assert as_here(without, []) == without
    assert as_here(plan, [make_result(spec=trial.spec) for trial in plan.trials]) == plan  # nothing is left to do
    with refused("--resume", "--interpreter fake=PATH"):
        as_here(plan, [make_result(spec=first.spec)])
    assert second.spec.launch == 1

    def broken(spec, interpreter, beside):
        raise UsageError("broken: fake=/gone/python")

    monkeypatch.setattr(registry, "missing", broken)
    assert as_here(without, []) == without
    with refused("fake=/gone/python"):
        as_here(plan, [])


def test_checkpoints_need_their_module_when_a_training_goes_on(fakes, monkeypatch):
    training = TrainingRequest(save_every=1, epochs=1)
    request = Request(
        frameworks=("fake",), workloads=("classifier",), strategies=("single",), platform="cpu", training=training
    )
    plan, asked = make_plan(request, make_machine()), []
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter, beside: asked.append(beside) or "")
    as_here(plan, [])
    assert asked == [("safetensors",)]


def test_without_a_golden_run_its_cells_have_their_rows_and_others_are_measured(tmp_path, fakes, monkeypatch):
    request = Request(frameworks=("fake",), workloads=("toy", "classifier"), strategies=("single",), platform="cpu")
    plan = make_plan(replace(request, launches=2), make_machine())
    start = golden_pool.start

    def killed(run, threads):
        if run.spec.workload == "toy":
            run.folder.mkdir(exist_ok=True)
            (run.folder / "log").write_text("")
            return subprocess.Popen(["sh", "-c", "kill -9 $$"])
        return start(run, threads)

    monkeypatch.setattr(golden_pool, "start", killed)
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    intent = store.Intent(plan=plan, command="", started="")
    results = make_session(intent, tmp_path).measure_all()
    assert len(results) == 4
    assert {(result.spec.workload, result.status) for result in results} == {("toy", "killed"), ("classifier", "ok")}
    for result in results:
        if result.status == "killed":
            names(result.reason, "toy base", "SIGKILL")


GOLDEN = ["golden parity", "golden timing"]


def test_a_proof_is_kept_for_the_very_same_code_and_samples_alone(session, capsys):
    assert session("abc") == [*GOLDEN, "parity", "timing"]
    assert session("abc") == ["golden timing", "timing"]  # and what is not proved needs no reference
    assert "changed" not in capsys.readouterr().err
    assert session("def") == [*GOLDEN, "parity", "timing"]
    assert "code changed" in capsys.readouterr().err
    assert session("def", samples=2) == [*GOLDEN, "parity", "timing"]
    assert "samples changed" in capsys.readouterr().err
    assert session("def", samples=2) == ["golden timing", "timing"]


def test_a_proof_is_made_again_on_other_samples_and_kept_on_the_same(tmp_path, fakes, monkeypatch):
    """As above, with the real digests: one number of one sample is another."""
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    plan, local, toy = make_plan(request, make_machine()), phase_launches.launch, workloads.sizes("toy")
    phases = []
    monkeypatch.setattr(
        phase_launches, "launch", lambda order, *a, **k: (phases.append(order.phase), local(order, *a, **k))[1]
    )

    def run_session(change=0.0):
        def load(split, source):
            arrays = own.load(split, source)
            arrays["x"][7, 3] += change
            return arrays

        own = toy["base"]
        with monkeypatch.context() as patched:
            patched.setitem(toy, "base", replace(own, load=load))
            intent = store.Intent(plan=plan, command="", started="")
            (result,) = make_session(intent, tmp_path).measure_all()
        assert result.status == "ok"
        done = list(phases)
        phases.clear()
        return done

    assert run_session() == ["parity", "timing"]
    assert run_session() == ["timing"]
    assert run_session(change=1e-9) == ["parity", "timing"]


def test_every_sample_counts_in_the_key_of_a_proof():
    def of(**changed):
        known = {"x": np.arange(12.0).reshape(4, 3), "y": np.arange(4)} | changed
        return Batches(known, seed=0, transform=np.asarray).digest()

    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    assert of() == of(x=x.copy(), y=y.copy())
    others = [{"x": x + np.eye(4, 3) * 1e-9}, {"y": y[::-1]}, {"x": x[::-1]}, {"x": x[::-1], "y": y[::-1]}]
    assert of() not in [of(**other) for other in others]


def test_the_code_of_a_plug_in_counts_too(tmp_path, fakes, monkeypatch):
    folder = tmp_path / "mine"
    shutil.copytree(FAKES / "fake_impl", folder)
    own = registry.package_folder
    monkeypatch.setattr(registry, "package_folder", lambda name: folder if name == "fake_impl" else own(name))
    before = worker_code.code_digest("fake")
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__" / "runtime.pyc").write_text("compiled")
    assert worker_code.code_digest("fake") == before
    for change in ("strategies/single.py", "new.py"):
        (folder / change).write_text("pass")
        assert worker_code.code_digest("fake") != before
        before = worker_code.code_digest("fake")
    assert worker_code.code_digest("fake") != worker_code.code_digest("torch")


def test_other_versions_are_proved_again(session, tmp_path, capsys):
    session()
    path = tmp_path / proof_store.PROOFS
    path.write_text(path.read_text().replace('"numpy":"', '"numpy":"0.'))
    capsys.readouterr()
    assert session() == ["golden timing", "timing", "golden parity", "parity"]
    earlier, again = (line for line in capsys.readouterr().err.splitlines() if ": parity of toy" in line)
    assert "earlier session" in earlier
    assert "again" in again and "numpy" in again
    assert "1/2]" in earlier and "2/2]" in again  # one that is repeated counts once
    assert session() == ["golden timing", "timing"]
    (earlier,) = (line for line in capsys.readouterr().err.splitlines() if ": parity of toy" in line)
    assert "earlier session" in earlier


def test_under_other_variables_it_is_proved_again(session, monkeypatch):
    session()
    monkeypatch.setenv("XLA_FLAGS", "--xla_allow_excess_precision=false")
    assert session() == ["golden timing", "timing", "golden parity", "parity"]
    assert session() == ["golden timing", "timing"]


def test_variables_that_share_gpus_make_no_other_proof(fakes, monkeypatch):
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    timed = make_result(spec=make_spec(framework="jax"), environment={"XLA_FLAGS": "--a"})
    spec = make_spec(framework="jax")
    proof = make_result(spec=spec, environment={"XLA_FLAGS": "--a"} | shared)
    assert proofs.changed_since(proof, timed) == []
    elsewhere = make_result(spec=spec, environment={"XLA_FLAGS": "--a", "CUDA_VISIBLE_DEVICES": "1"} | shared)
    assert proofs.changed_since(elsewhere, timed) == []
    assert proofs.changed_since(make_result(spec=spec, environment=shared), timed) == ["XLA_FLAGS"]
    edited = replace(timed, conditions=replace(timed.conditions, code="edited"))
    assert proofs.changed_since(proof, edited) == ["code"]


def test_the_longest_launch_is_remembered_though_two_end_at_once():
    long_one_is_recorded, short_one_has_read = threading.Event(), threading.Event()

    class Slow(dict):
        def get(self, *arguments):
            found = super().get(*arguments)
            if threading.current_thread() is short:
                short_one_has_read.set()
                long_one_is_recorded.wait(0.5)  # with a lock it cannot be
            return found

    session_budget = budget.Budget(3.0)
    session_budget._longest = Slow()
    short = threading.Thread(target=lambda: session_budget.record("timing", make_spec(), 1.0, succeeded=True))
    short.start()
    short_one_has_read.wait(5)
    session_budget.record("timing", make_spec(), 5.0, succeeded=True)
    long_one_is_recorded.set()
    short.join()
    assert not session_budget.allows("timing")  # 5 s are expected, and 3 s are left


def test_a_row_says_what_each_check_of_the_timed_program_cost(tmp_path, fakes, monkeypatch):
    a_run(tmp_path / "run", monkeypatch, launches=1)
    (row,) = store.read(tmp_path / "run")
    (timing,) = row.timings
    inspected = {each.__name__.replace("_", " ") for each in after_blocks.INSPECTIONS}
    assert timing.check_seconds.keys() == {"watched block", *inspected, "replayed block"}
    assert all(seconds >= 0 for seconds in timing.check_seconds.values())
