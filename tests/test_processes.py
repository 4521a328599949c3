"""What ends processes, each mechanism by itself: that one goes missing must not hide behind the others.

The harness starts a supervisor, which starts ranks, which may start anything. The supervisor ends all when its standard
input closes; as a subreaper it finds those whose parents are gone; ranks die with the supervisor; what these leave the
harness ends; and a process of its own waits to remove the scratch folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import FAKES, ROOT, make_machine, make_session, processes_started_here
from refusals import names, refused
from test_launch import wait_for

from harness.launch import golden_pool, logs, scratch
from harness.launch.supervisor import PAUSE_SECONDS
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.results import store

pytestmark = pytest.mark.kills

SECONDS = 120  # that long a process may take to end or begin, however busy the machine is
SLEEP = ["sleep", "3605"]


def at_work(place: Path) -> list[psutil.Process]:
    """All processes that work in a folder or below it: what a test has started there, whoever their parents are now."""
    found = psutil.process_iter(["cwd", "cmdline"])
    return [process for process in found if (process.info["cwd"] or "").startswith(str(place))]


def words(processes: list[psutil.Process]) -> list[str]:
    return [" ".join(process.info["cmdline"] or ())[:200] for process in processes]


def left(place: Path) -> list[str]:
    """The commands of those that are still at work after a while."""
    wait_for(lambda: not at_work(place), SECONDS)
    return words(at_work(place))


@pytest.fixture(autouse=True)
def nothing_outlives_a_test(tmp_path):
    yield
    for process in at_work(tmp_path):
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def supervised(folder: Path, *commands: list[str], **known) -> Iterator[subprocess.Popen]:
    """A supervisor over these commands as its ranks."""
    ranks = [{"command": command, "environment": dict(os.environ), "cores": []} for command in commands]
    (folder / "group.json").write_text(json.dumps({"ranks": ranks, "timeout_seconds": 600, "stall_seconds": 600}))
    command = [sys.executable, "-m", "harness.launch.supervisor", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, **known) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(folder: Path) -> dict:
    return json.loads((folder / "outcome.json").read_text())


def has_ended(process: subprocess.Popen) -> bool:
    return wait_for(lambda: process.poll() is not None, SECONDS)


def test_a_supervisor_whose_standard_input_closes_ends_its_ranks(tmp_path):
    with supervised(tmp_path, SLEEP, SLEEP) as supervisor:
        assert wait_for(lambda: words(at_work(tmp_path)) == ["sleep 3605"] * 2, SECONDS)
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        assert has_ended(supervisor)
        assert left(tmp_path) == []
    found = outcome(tmp_path)
    assert (found["status"], found["traceback"]) == ("killed", "")
    assert "harness" in found["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_supervisor_that_gets_a_signal_ends_its_ranks(tmp_path, number):
    with supervised(tmp_path, SLEEP) as supervisor:
        assert wait_for(lambda: at_work(tmp_path), SECONDS)
        supervisor.send_signal(number)
        assert has_ended(supervisor)
        assert left(tmp_path) == []


def test_what_holds_out_against_sigterm_is_killed(tmp_path):
    stubborn = ["sh", "-c", "trap '' TERM; sleep 3605 & echo begun; wait"]  # children of the shell ignore it, too
    with supervised(tmp_path, stubborn) as supervisor:
        assert wait_for(lambda: len(at_work(tmp_path)) == 2, SECONDS)
        supervisor.terminate()
        assert has_ended(supervisor)
        assert left(tmp_path) == []


def test_a_process_whose_parent_is_gone_is_found_in_its_own_session(tmp_path):
    orphan = f"import subprocess; subprocess.Popen({SLEEP}, start_new_session=True)"
    with supervised(tmp_path, [sys.executable, "-c", orphan]) as supervisor:
        assert has_ended(supervisor)
        assert left(tmp_path) == []
    assert outcome(tmp_path)["status"] == "ok"


def test_the_rank_that_ends_first_is_blamed_where_none_could_answer(tmp_path):
    later = ["sh", "-c", "until [ -e gone ]; do sleep 0.02; done; sleep 0.5; exit 3"]
    with supervised(tmp_path, later, ["sh", "-c", "touch gone; exit 4"]) as supervisor:
        assert has_ended(supervisor)
    assert outcome(tmp_path)["reason"].startswith("rank 1: exit code 4")


LATE = """
import json, sys, time
failed = time.monotonic()
open("begun", "w").close()
time.sleep(0.1)  # as an error takes that passes through many frames, or prints a long traceback
answer = {"rank": 1, "status": "oom", "reason": "no memory", "traceback": "", "ended": failed}
open("rank1.json", "w").write(json.dumps(answer))
sys.exit(1)
"""


def test_a_rank_that_failed_first_may_take_a_moment_to_say_so(tmp_path):
    then_dies = ["sh", "-c", "until [ -e begun ]; do sleep 0.02; done; kill -ABRT $$"]
    with supervised(tmp_path, then_dies, [sys.executable, "-c", LATE]) as supervisor:
        assert has_ended(supervisor)
    assert outcome(tmp_path)["reason"] == "rank 1: no memory"


def test_a_killed_rank_is_named_with_its_signal(tmp_path):
    with supervised(tmp_path, SLEEP, ["sh", "-c", "kill -9 $$"]) as supervisor:
        assert has_ended(supervisor)
        assert left(tmp_path) == []
    assert outcome(tmp_path)["status"] == "killed"
    names(outcome(tmp_path)["reason"], "rank 1", "SIGKILL", "memory")


def test_an_outcome_is_there_whole_or_not_at_all(tmp_path):
    def no_room():  # of this many bytes a file can be written, as on a disk that fills up
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    talkative = ["sh", "-c", f"echo {'x' * 90}; exit 3"]
    with supervised(tmp_path, talkative, preexec_fn=no_room) as supervisor:
        assert has_ended(supervisor)
    assert supervisor.returncode == 1
    assert not (tmp_path / "outcome.json").exists()


def test_a_worker_whose_supervisor_died_before_it_began_does_nothing(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pass
    variables = os.environ | {"LIKEFORLIKE_SUPERVISOR": str(gone.pid)}
    command = [sys.executable, "-m", "harness.worker.main", str(tmp_path), "--rank", "0"]
    done = subprocess.run(command, cwd=ROOT, env=variables, stderr=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 1
    assert not (tmp_path / "rank0.json").exists()


WRAPPED = f"""
import sys
sys.path.insert(0, "{ROOT}")
from harness.spec.processes import die_with_parent
die_with_parent()
import time
open("begun", "w").close()
time.sleep(3605)
"""


def test_a_rank_below_a_wrapper_that_stays_dies_with_the_supervisor(tmp_path):
    """As `conda run` does, or a script that loads modules first: Python is the child of a child."""
    python = f"{shlex.quote(sys.executable)} -c '{WRAPPED}'"
    with supervised(tmp_path, ["sh", "-c", f"sh -c {shlex.quote(python + '; exit')}; exit"]) as supervisor:
        assert wait_for(lambda: (tmp_path / "begun").exists(), SECONDS), (tmp_path / "rank0.log").read_text()
        (rank,) = (process for process in at_work(tmp_path) if process.info["cmdline"][:1] == [sys.executable])
        supervisor.kill()
        assert wait_for(lambda: not running_still(rank), SECONDS)


def test_a_process_that_is_handed_elsewhere_says_why_it_does_not_begin(tmp_path):
    elsewhere = [sys.executable, "-c", WRAPPED]
    with supervised(tmp_path, ["env", "LIKEFORLIKE_SUPERVISOR=999999999", *elsewhere]) as supervisor:
        assert has_ended(supervisor)
    names(outcome(tmp_path)["reason"], "supervisor", "--interpreter")


def test_a_rank_that_a_real_time_signal_ends_is_named_with_its_number(tmp_path):
    with supervised(tmp_path, ["sh", "-c", "kill -40 $$"]) as supervisor:
        assert has_ended(supervisor)
    assert outcome(tmp_path)["status"] == "killed"
    names(outcome(tmp_path)["reason"], "signal 40")


TALKATIVE = """
import sys, time
print("the first line")
for _ in range(60):
    print("x" * 2**20)
print("the last line", flush=True)
time.sleep(3605)
"""


def test_of_a_long_log_the_disk_holds_the_first_and_the_last_part(tmp_path):
    log = tmp_path / "rank0.log"
    with supervised(tmp_path, [sys.executable, "-c", TALKATIVE]):
        assert wait_for(lambda: log.exists() and log.stat().st_size > 60 * 2**20, SECONDS)
        most = logs.FIRST_BYTES + logs.LAST_BYTES + logs.SLACK_BYTES
        assert wait_for(lambda: log.stat().st_blocks * 512 <= most, SECONDS)
    logs.keep(log, tmp_path / "kept")
    assert (tmp_path / "kept").stat().st_size < logs.FIRST_BYTES + logs.LAST_BYTES + 200
    kept = (tmp_path / "kept").read_bytes()
    assert kept.startswith(b"the first line\n")
    assert kept.endswith(b"\nthe last line\n")
    (cut,) = (line.decode() for line in kept.splitlines() if b"left out" in line)
    names(cut, f"{log.stat().st_size - logs.FIRST_BYTES - logs.LAST_BYTES:,} bytes")
    assert b"\0" not in kept
    assert logs.last_line(log) == "the last line"


def test_a_short_log_is_kept_whole(tmp_path):
    (tmp_path / "log").write_bytes(b"one\ntwo\n\n")
    logs.keep(tmp_path / "log", tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == b"one\ntwo\n\n"
    assert logs.last_line(tmp_path / "log") == "two"


@contextlib.contextmanager
def hanging(tmp_path: Path, strategy: str = "hang_with_child") -> Iterator[dict[str, psutil.Process]]:
    """A run that hangs in a rank with a child in a session of its own: its processes, by what they are."""
    (tmp_path / "tmp").mkdir()
    arguments = ["--framework", "fake", "--workload", "toy", "--platform", "cpu", "--strategy", strategy]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "run", *arguments, "--out", str(tmp_path / "run")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}", "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert wait_for(lambda: any("sleep 3602" in each for each in words(at_work(tmp_path))), SECONDS)
            marks = {
                "harness": "-m harness run", "supervisor": "-m harness.launch.supervisor",
                "rank": "-m harness.worker.main", "child": "sleep 3602", "watcher of the scratch folder": "-I -S -c",
            }  # fmt: skip
            found = {}
            for name, part in marks.items():
                (found[name],) = (p for p in at_work(tmp_path) if part in " ".join(p.info["cmdline"]))
            assert len(at_work(tmp_path)) == len(found)
            yield found
        finally:
            process.kill()


ENDS_THE_RUN = {  # and how its row says so
    "supervisor": ("killed", "supervisor"),
    "rank": ("killed", "SIGKILL"),
}


@pytest.mark.parametrize("victim", ["harness", "supervisor", "rank", "child", "watcher of the scratch folder"])
def test_nothing_is_left_after_sigkill(tmp_path, victim):
    with hanging(tmp_path) as processes:
        processes[victim].kill()
        if victim not in ("harness", *ENDS_THE_RUN):
            assert wait_for(lambda: not running_still(processes[victim]), SECONDS)
            processes["harness"].send_signal(signal.SIGINT)
        assert left(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    with store.held(tmp_path / "run"):  # nobody holds it any more
        pass
    if victim != "harness":
        (result,) = store.read(tmp_path / "run")
        status, reason = ENDS_THE_RUN.get(victim, ("pending", "SIGINT"))
        assert result.status == status
        assert reason in result.reason


def test_nothing_is_left_where_harness_and_supervisor_are_killed_together(tmp_path):
    with hanging(tmp_path) as processes:
        processes["supervisor"].suspend()  # it can end nobody now
        processes["harness"].kill()
        processes["supervisor"].kill()
        assert left(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_run_whose_terminal_is_closed_ends_as_interrupted_and_keeps_all_rows(tmp_path):
    outer, inner = os.openpty()
    os.set_blocking(outer, False)
    (tmp_path / "tmp").mkdir()

    def hangs():
        with contextlib.suppress(BlockingIOError):
            os.read(outer, 2**16)  # else the terminal's buffer is soon full
        return any("sleep 3602" in each for each in words(at_work(tmp_path)))

    def in_terminal():
        os.setsid()
        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

    arguments = ["--framework", "fake", "--workload", "toy", "--platform", "cpu", "--strategy"]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "run", *arguments, "hang_with_child,single", "--out", str(tmp_path / "run")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}", "TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        preexec_fn=in_terminal,
    ) as process:
        os.close(inner)
        try:
            assert wait_for(hangs, SECONDS)
            os.close(outer)
            assert has_ended(process)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGHUP
    assert left(tmp_path) == []
    rows = {result.spec.strategy: result for result in store.read(tmp_path / "run")}
    assert {name: row.status for name, row in rows.items()} == {"hang_with_child": "pending", "single": "pending"}
    assert all("SIGHUP" in row.reason for row in rows.values())
    assert (tmp_path / "run" / "report.md").is_file()


def test_a_run_holds_its_folder_as_long_as_it_lasts(tmp_path):
    with hanging(tmp_path), refused("--resume", str(tmp_path / "run")), store.held(tmp_path / "run"):
        pass


def test_ranks_die_with_their_supervisor_whatever_the_harness_does(tmp_path):
    with hanging(tmp_path) as processes:
        processes["harness"].suspend()  # it can end nobody now
        processes["supervisor"].kill()
        assert wait_for(lambda: not running_still(processes["rank"]), SECONDS)
        processes["harness"].resume()
        assert left(tmp_path) == []


@pytest.mark.parametrize(("victim", "seconds"), [("rank", 0.1), ("supervisor", 1.5 * PAUSE_SECONDS)])
def test_a_launch_that_was_stopped_while_it_was_timed_has_no_times(tmp_path, victim, seconds):
    with hanging(tmp_path, "hang_when_timed") as processes:
        processes[victim].suspend()
        time.sleep(seconds)
        processes[victim].resume()
        assert left(tmp_path) == []
    (result,) = store.read(tmp_path / "run")
    assert result.status == "killed"
    names(result.reason, "--resume", "times")
    assert not any(timing.block_seconds for timing in result.timings)


def test_a_proof_that_was_stopped_meanwhile_goes_on(tmp_path):
    waits = [sys.executable, "-c", "import time; time.sleep(1)"]
    with supervised(tmp_path, waits) as supervisor:
        assert wait_for(lambda: at_work(tmp_path), SECONDS)
        supervisor.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * PAUSE_SECONDS)
        supervisor.send_signal(signal.SIGCONT)
        assert has_ended(supervisor)
    assert outcome(tmp_path)["status"] == "ok"


def running_still(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_nothing_is_left_of_a_golden_run_that_is_killed(tmp_path, fakes, monkeypatch):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    started, start = [], golden_pool.start

    def killed(run, threads):
        started.append(start(run, threads))
        started[-1].kill()
        return started[-1]

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(golden_pool, "start", killed)
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    intent = store.Intent(plan=make_plan(request, make_machine()), command="", started="")
    results = make_session(intent, tmp_path).measure_all()
    assert [result.status for result in results] == ["killed"]
    assert "cannot be computed: ended by SIGKILL" in results[0].reason
    assert started and all(process.returncode == -signal.SIGKILL for process in started)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not processes_started_here()
