"""results.jsonl: written line by line, read back exactly, and robust against what crashes leave."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, harness, make_machine, make_result, make_spec
from refusals import refused

from harness import checkpoints, messages
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.results import proof_store, run_folders, store
from harness.spec import TrialResult
from harness.spec.errors import MachineUnfit, UsageError


def test_round_trip(tmp_path):
    results = [make_result(), TrialResult(spec=make_spec(strategy="ddp", devices=2), status="skipped", reason="why")]
    for result in results:
        store.append(tmp_path, result)
    assert store.read(tmp_path) == results
    assert store.read(tmp_path / "results.jsonl") == results


def test_what_is_not_finite_survives_in_valid_json(tmp_path):
    store.append(tmp_path, make_result(status="parity_failed", losses=(1.0, math.nan, math.inf), parity_error=math.inf))
    line = (tmp_path / "results.jsonl").read_text()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (back,) = store.read(tmp_path)
    assert math.isnan(back.losses[1])
    assert back.losses[2] == math.inf
    assert back.parity is not None
    assert not back.parity.passed


def test_proofs_that_cannot_be_read_are_made_again(tmp_path):
    proof_store.append(tmp_path, proof_store.Proof(result=make_result(), code="c", data="d"))
    path = tmp_path / proof_store.PROOFS
    path.write_bytes(b'{"a": 1}\nnot JSON\n' + path.read_bytes() + b'{"torn')
    assert list(proof_store.read(tmp_path)) == [make_spec().computation]


def test_a_torn_last_line_is_passed_over(tmp_path):
    store.append(tmp_path, make_result())
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    assert len(store.read(tmp_path)) == 1
    for command in ("report", "show", "check", "verify"):
        done = harness(command, str(tmp_path))
        assert done.returncode in (0, 5) and "results.jsonl" in done.stderr  # which line is missing


def test_a_damaged_first_line_is_told_by_what_lies_beside_it(tmp_path):
    """A file that begins with other text is hardly a run's, unless it lies beside run.json."""
    (tmp_path / "results.jsonl").write_text("not JSON\n")
    with refused("line 1", "folder"):
        store.read(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with refused("line 1", "--resume"):
        store.read(tmp_path)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    store.append(tmp_path, make_result())
    write, room = os.write, iter([50, 0])

    def full(descriptor, line):
        if not (taken := next(room)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, line[:taken])

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space") as error:
        patched.setattr(os, "write", full)
        store.append(tmp_path, make_result())
    assert error.value.filename == str(tmp_path / "results.jsonl")
    store.append(tmp_path, make_result(spec=make_spec(launch=1)))  # there is room again
    assert [result.spec.launch for result in store.read(tmp_path)] == [0, 1]


def test_a_row_is_on_disk_when_it_has_been_written(tmp_path, monkeypatch):
    path, synced = tmp_path / "results.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((file_of(descriptor), path.read_bytes())))
    for launch in range(2):
        store.append(tmp_path, make_result(spec=make_spec(launch=launch)))
        assert synced == [(path, path.read_bytes())]  # all of the line was there, and nothing came after
        synced.clear()


def test_a_trial_that_was_tried_again_has_one_row(tmp_path):
    for launch, status in ((0, "killed"), (1, "ok"), (0, "ok")):
        store.append(tmp_path, make_result(spec=make_spec(launch=launch), status=status))
    assert [(each.spec.launch, each.status) for each in store.read(tmp_path)] == [(0, "ok"), (1, "ok")]


def test_a_run_that_goes_on_writes_no_row_onto_a_torn_one(tmp_path, fakes):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu", launches=2)
    plan = make_plan(request, make_machine())
    store.write_intent(tmp_path, store.Intent(plan=plan, command="", started=""))
    first, second = (make_result(spec=trial.spec) for trial in plan.trials)
    path = tmp_path / "results.jsonl"
    store.append(tmp_path, first)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    assert store.read_intent(tmp_path)[1] == [first]
    store.append(tmp_path, second)
    assert store.read(tmp_path) == [first, second]


@pytest.mark.parametrize("write", [store.write_json, messages.write])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, write):
    path = tmp_path / "answer.json"
    write(path, {"status": "ok"})
    before = path.read_text()

    take, room = os.write, iter([5, 0])

    def full(descriptor, content):
        if not (taken := next(room)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return take(descriptor, content[:taken])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as error:
        write(path, {"status": "crashed"})
    assert error.value.filename == str(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]  # and nothing of the part


def test_what_a_killed_process_left_half_written_is_removed_when_a_run_goes_on(tmp_path):
    (tmp_path / store.RUN).write_text("{}", encoding="utf-8")
    code = """
import os, pathlib, signal, sys
from harness import whole_files
whole_files.write_all = lambda *_: os.kill(os.getpid(), getattr(signal, sys.argv[2]))
whole_files.write(pathlib.Path(sys.argv[1]) / "environment.json", b"{}")
"""
    run = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run([*run, "SIGKILL"], cwd=ROOT)
    (left,) = set(tmp_path.iterdir()) - {tmp_path / store.RUN}
    with subprocess.Popen([*run, "SIGSTOP"], cwd=ROOT) as writing:
        os.waitid(os.P_PID, writing.pid, os.WSTOPPED | os.WNOWAIT)
        (being_written,) = set(tmp_path.iterdir()) - {tmp_path / store.RUN, left}
        for name in (".hidden.tmp", "0123456789abcdef.tmp"):
            (tmp_path / name).touch()
        with store.held(tmp_path):
            assert not left.exists()
            assert being_written.exists()
            assert (tmp_path / ".hidden.tmp").exists()
            assert (tmp_path / "0123456789abcdef.tmp").exists()
        writing.kill()


@pytest.mark.parametrize("write", [store.write_json, messages.write])
def test_a_file_is_never_written_through_a_link(tmp_path, write):
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "answer.json"
    path.symlink_to("victim")
    write(path, {"status": "ok"})
    assert not path.is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_row_is_never_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "results.jsonl"
    path.symlink_to("victim")
    with pytest.raises(OSError) as error:
        store.append(tmp_path, make_result())
    assert error.value.filename == str(path)
    assert (tmp_path / "victim").read_text() == "precious"


def test_of_two_runs_that_begin_in_one_folder_at_once_one_goes_on(tmp_path):
    request = Request(frameworks=("torch",), workloads=("toy",), strategies=("single",), platform="cpu")
    intent = store.Intent(plan=make_plan(request, make_machine()), command="first", started="")
    known = {"root": tmp_path, "slug": "toy", "now": datetime(2026, 1, 1)}
    folders = [run_folders.create_run_folder(tmp_path / "out", **known) for _ in range(2)]  # both find it empty
    store.write_intent(folders[0], intent)
    with refused(f"--out {folders[1]}"):
        store.write_intent(folders[1], replace(intent, command="second"))
    assert json.loads((tmp_path / "out" / store.RUN).read_text())["command"] == "first"
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_file()] == [store.RUN]


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path, **_: False)  # as where both look before either has made it
    known = {"root": tmp_path / "reports", "slug": "toy", "now": datetime(2026, 1, 1)}
    folders = [run_folders.create_run_folder(None, **known) for _ in range(3)]
    assert [path.name for path in folders] == [f"20260101-000000-toy{number}" for number in ("", "-2", "-3")]


@pytest.mark.parametrize("name", store.WRITTEN_IN_PLACE)
def test_a_run_does_not_go_on_through_a_link(tmp_path, name):
    (tmp_path / "victim").write_text("precious, without an end of line")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / store.RUN).write_text("{}")
    (tmp_path / "run" / name).symlink_to("../victim")
    with refused(name, "link"), store.held(tmp_path / "run"):
        pass
    assert (tmp_path / "victim").read_text() == "precious, without an end of line"


@pytest.mark.parametrize("name", store.WRITTEN_IN_PLACE)
def test_a_run_that_could_not_be_written_does_not_go_on(tmp_path, name):
    (tmp_path / store.RUN).write_text("{}")
    (tmp_path / name).touch() if "." not in name else (tmp_path / name).mkdir()
    with refused(f"--resume {tmp_path}", name), store.held(tmp_path):
        pass


def test_a_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, synced = checkpoints.path_of(tmp_path, "cell", 0, 1), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((file_of(descriptor), path.exists())))
    checkpoints.save(path, {"model/w": np.zeros(3)}, {"epoch": 1})
    assert synced == [(path.with_suffix(".tmp"), False), (path.parent, True)]


def file_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_proofs_that_cannot_be_read_are_passed_over(tmp_path):
    for name in ("one", "two"):
        result = make_result(spec=make_spec(workload=name))
        proof_store.append(tmp_path, proof_store.Proof(result=result, code="c", data="d"))
    path = tmp_path / proof_store.PROOFS
    old, good = path.read_text().splitlines(keepends=True)
    path.write_text(old.replace('"reason"', '"was_called_otherwise"') + "not json\n" + good + good[:50])
    assert [proof.result.spec.workload for proof in proof_store.read(tmp_path).values()] == ["two"]
    assert path.read_text().endswith(good)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", []),
        (b"{}\n", ["line 1"]),
        (b"[]\n", ["line 1"]),
        (b"[1,2]\n", ["line 1", "[1, 2]", "object"]),
        (b"\xff\xfe{\x00}\x00\n", ["line 1", "JSON"]),
        (b"not json\n", ["line 1"]),
        (b"\xff\xfe\n", ["line 1"]),
        (b'{"schema_version": 99}\n', ["99", "2"]),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, content, facts):
    (tmp_path / "results.jsonl").write_bytes(content)
    with refused(str(tmp_path / "results.jsonl"), *facts):
        store.read(tmp_path)


def test_a_row_in_the_middle_that_is_none_is_named_with_what_to_do(tmp_path):
    store.append(tmp_path, make_result())
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + b"{}\n")
    with refused(str(path), "line 2", "--resume"):
        store.read(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path):
    with refused(str(tmp_path), "results.jsonl"):
        store.read(tmp_path)


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "results.jsonl")
    with pytest.raises(OSError, match=r"results\.jsonl"):
        store.append(tmp_path, make_result())
    os.mkfifo(tmp_path / "run.json")
    with refused(f"--resume {tmp_path}", "run.json"), store.held(tmp_path):
        pass


def test_run_folders(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    folder = run_folders.create_run_folder(None, root=tmp_path, slug="Mnist CNN/2", now=now)
    assert folder.name == "20260102-030405-mnist-cnn-2"
    chosen = run_folders.create_run_folder(tmp_path / "new" / "one", root=tmp_path, slug="x", now=now)
    assert chosen == tmp_path / "new" / "one"
    # A kill before run.json is written leaves an empty folder for logs.
    assert run_folders.create_run_folder(chosen, root=tmp_path, slug="x", now=now) == chosen
    with refused(f"--out {chosen}"):
        run_folders.create_folder(chosen)
    (chosen / "logs" / "log").touch()
    with refused(f"--out {chosen}"):
        run_folders.create_run_folder(chosen, root=tmp_path, slug="x", now=now)
    (tmp_path / "file").write_text("")
    with pytest.raises((UsageError, MachineUnfit)):
        run_folders.create_run_folder(tmp_path / "file" / "below", root=tmp_path, slug="x", now=now)
