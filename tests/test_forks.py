"""Forked from a zygote, a supervisor and its ranks are what they are when they are started: nobody tells them apart."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import test_launch
from conftest import FAKES, ROOT, harness, make_machine, make_spec
from test_launch import start_hanging, wait_for
from test_processes import at_work, left, running_still

from harness.cli.terminal import PlainDisplay
from harness.launch import launchers, supervisors
from harness.launch.group import IMPORTS, SUPERVISOR
from harness.launch.launcher import Launch, Outcome
from harness.launch.local import LocalLauncher, end_orphans
from harness.launch.place import Place
from harness.launch.supervisors import ForkedSupervisor, Zygote
from harness.planning.plan import HostsRequest
from harness.reporting.summary import summarize
from harness.results import store
from harness.session.references import References
from harness.spec import registry

pytestmark = pytest.mark.kills

SECONDS = 120
IMPORTED = "import numpy.random; print('imported')\n"
"""A runtime whose import prints a line, and seeds a generator."""


@pytest.fixture
def variables(tmp_path) -> dict[str, str]:
    """The variables of ranks: modules of a test are found in its folder."""
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join(["replaced", str(tmp_path / "modules"), str(ROOT), str(FAKES)])
    return known | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "A_VARIABLE": "a value"}


def write_module(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "modules" / f"{name}.py"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)


@contextlib.contextmanager
def a_zygote(tmp_path, variables, monkeypatch, runtime: str = IMPORTED) -> Iterator[Zygote]:
    """A zygote of a package with this runtime."""
    package = tmp_path / "packages" / "little_impl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "runtime.py").write_text(runtime)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "little_impl", raising=False)  # another test's
    zygote = Zygote("little_impl", tmp_path / "zygote", variables, [min(os.sched_getaffinity(0))])
    try:
        yield zygote
    finally:
        zygote.close()


def write_group(tmp_path, variables, name: str, module: str, *, ranks: int = 1) -> Path:
    """A launch whose ranks run a module."""
    folder = tmp_path / "launches" / name
    (folder / "code").mkdir(parents=True)
    path = variables["PYTHONPATH"].replace("replaced", str(folder / "code"))
    rank = {"command": [sys.executable, "-m", module, str(folder)], "environment": variables | {"PYTHONPATH": path}}
    rank["cores"] = [min(os.sched_getaffinity(0))]
    (folder / "group.json").write_text(
        json.dumps({"ranks": [rank] * ranks, "timeout_seconds": 600, "stall_seconds": 600})
    )
    return folder


def fork(zygote: Zygote, folder: Path) -> ForkedSupervisor:
    with (folder / "supervisor.log").open("wb") as log:
        return zygote.fork(folder, log.fileno())


def outcome(folder: Path) -> dict:
    return json.loads((folder / "outcome.json").read_text())


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


TELL = """
import json, os, resource, signal, sys, threading
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "environment": dict(os.environ), "arguments": sys.argv, "path": sys.path, "folder": os.getcwd(),
    "main": [__name__, __spec__.name, sys.modules["__main__"].__file__ == __file__],
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "threads": [status["Threads"].strip(), threading.active_count()],
    "cores": sorted(os.sched_getaffinity(0)),
    "files": sorted([number, os.readlink(f"/proc/self/fd/{number}")] for number in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{number}")),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "umask": os.umask(0), "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "died_with": status["PPid"].strip() == os.environ["LIKEFORLIKE_SUPERVISOR"],
    "modules": sorted(each for each in sys.modules if each.startswith(("harness.worker", "little"))),
}))
"""


def told(folder: Path) -> dict:
    """What a rank has told, with its own folder and its supervisor's id replaced."""
    first, last = (folder / "rank0.log").read_text().splitlines()
    assert first == "imported"
    found = json.loads(last.replace(str(folder), "FOLDER"))
    assert found["environment"].pop(SUPERVISOR).isdecimal()
    return found


def test_a_forked_rank_has_what_a_started_one_has(tmp_path, variables, monkeypatch):
    imports = "import numpy, little_impl.runtime, harness.worker.main, sys; del sys.modules['harness.worker.main']\n"
    write_module(tmp_path, "forked", TELL)
    write_module(tmp_path, "started", imports + TELL)
    fresh = write_group(tmp_path, variables | {"A": "b"}, "fresh", "started")
    here = write_group(tmp_path, variables | {"A": "b"}, "forked", "forked")
    with a_zygote(tmp_path, variables | {"ITS_OWN": "x"}, monkeypatch) as zygote:
        assert fork(zygote, here).wait(SECONDS) == 0
    group = json.loads((fresh / "group.json").read_text())
    group["ranks"][0]["environment"]["PYTHONPATH"] += os.pathsep + str(tmp_path / "packages")
    (fresh / "group.json").write_text(json.dumps(group))
    command = [sys.executable, "-m", "harness.launch.supervisor", str(fresh)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as supervisor:
        assert supervisor.wait(SECONDS) == 0
    assert outcome(here) == outcome(fresh)
    one, other = told(here), told(fresh)
    for found in (one, other):
        found["environment"].pop("PYTHONPATH")
        found["path"] = [place for place in found["path"] if place != str(tmp_path / "packages")]
        found["arguments"][0] = Path(found["arguments"][0]).parent.name
        found["main"].remove({id(one): "forked", id(other): "started"}[id(found)])
    assert one == other
    assert one["died_with"]


VANDAL = """
import os, resource, signal, sys, numpy
numpy.random.seed(1)
numpy.vandal = os.vandal = True
os.environ.clear()
os.umask(0o77)
sys.path.clear()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.closerange(0, 64)
os._exit(0)
"""


def test_what_a_rank_does_to_itself_the_next_one_does_not_see(tmp_path, variables, monkeypatch):
    write_module(tmp_path, "tell", TELL + "\nimport numpy\nassert not hasattr(numpy, 'vandal')")
    write_module(tmp_path, "vandal", VANDAL)
    found = []
    with a_zygote(tmp_path, variables, monkeypatch) as zygote:
        for name, module in (("before", "tell"), ("vandal", "vandal"), ("after", "tell")):
            folder = write_group(tmp_path, variables, name, module)
            assert fork(zygote, folder).wait(SECONDS) == 0
            assert outcome(folder)["status"] == "ok", outcome(folder)
            found += [told(folder)] if module == "tell" else []
    assert found[0] == found[1]


def test_forked_ranks_draw_different_numbers(tmp_path, variables, monkeypatch):
    drawn = "import random, numpy; print(random.random()); print(numpy.random.random(), flush=True)"
    write_module(tmp_path, "draw", drawn)
    folder = write_group(tmp_path, variables, "two", "draw", ranks=2)
    with a_zygote(tmp_path, variables, monkeypatch) as zygote:
        assert fork(zygote, folder).wait(SECONDS) == 0
    one, other = ((folder / f"rank{rank}.log").read_text().splitlines()[1:] for rank in range(2))
    assert len({*one, *other}) == 4


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "killed", "SIGTERM"),
        ("sys.exit(3)", "crashed", "exit code 3"),
        ("sys.exit('a reason')", "crashed", "a reason"),
        ("raise ValueError('planted')", "crashed", "ValueError: planted"),
        ("sys.exit()", "ok", ""),
        ("pass", "ok", ""),
    ],
)
def test_however_a_forked_rank_ends_it_is_seen(tmp_path, variables, monkeypatch, end, status, says):
    write_module(tmp_path, "ends", f"import os, signal, sys\n{end}\n")
    folder = write_group(tmp_path, variables, "it", "ends")
    with a_zygote(tmp_path, variables, monkeypatch) as zygote:
        assert fork(zygote, folder).wait(SECONDS) == 0
    assert outcome(folder)["status"] == status
    assert says in outcome(folder)["reason"]


WAIT = """
import os, sys, time
from harness.spec.processes import die_with_parent
die_with_parent()
if os.fork() == 0:  # a daemon that never begins another program
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
else:
    os.wait()
time.sleep(3606)
"""


@contextlib.contextmanager
def waiting(tmp_path, variables, monkeypatch) -> Iterator[tuple[Zygote, ForkedSupervisor]]:
    """A zygote and the supervisor of a rank that waits, and has made a daemon."""
    write_module(tmp_path, "wait", WAIT)
    folder = write_group(tmp_path, variables, "it", "wait")
    try:
        with a_zygote(tmp_path, variables, monkeypatch) as zygote:
            supervisor = fork(zygote, folder)
            assert wait_for(lambda: len(at_work(folder)) == 3, SECONDS), at_work(folder)
            yield zygote, supervisor
    finally:
        for process in at_work(tmp_path):
            with contextlib.suppress(psutil.Error):
                process.kill()


def test_a_forked_supervisor_whose_standard_input_closes_ends_all(tmp_path, variables, monkeypatch):
    with waiting(tmp_path, variables, monkeypatch) as (_, supervisor):
        assert supervisor.poll() is None
        supervisor.stdin.close()
        assert supervisor.wait(SECONDS) == 0
        assert left(tmp_path / "launches") == []
    assert outcome(tmp_path / "launches" / "it")["status"] == "killed"


def test_a_forked_supervisor_that_gets_a_signal_ends_all(tmp_path, variables, monkeypatch):
    with waiting(tmp_path, variables, monkeypatch) as (_, supervisor):
        os.kill(supervisor.pid, signal.SIGTERM)
        assert supervisor.wait(SECONDS) == 1
        assert left(tmp_path / "launches") == []


def test_of_a_forked_supervisor_that_is_killed_nothing_is_left(tmp_path, variables, monkeypatch):
    with waiting(tmp_path, variables, monkeypatch) as (_, supervisor):
        supervisor.kill()
        assert supervisor.wait(SECONDS) == -signal.SIGKILL
        assert wait_for(lambda: len(at_work(tmp_path / "launches")) == 1, SECONDS)  # the rank has died with it
        end_orphans(supervisor.pid)
        assert left(tmp_path / "launches") == []


def test_a_launch_outlives_its_zygote(tmp_path, variables, monkeypatch):
    with waiting(tmp_path, variables, monkeypatch) as (zygote, supervisor):
        zygote.close()
        time.sleep(0.2)
        assert supervisor.poll() is None
        supervisor.stdin.close()
        assert wait_for(lambda: supervisor.poll() is not None, SECONDS)
        assert outcome(tmp_path / "launches" / "it")["status"] == "killed"
        assert left(tmp_path / "launches") == []
        with pytest.raises(OSError):
            fork(zygote, write_group(tmp_path, variables, "another", "wait"))


def test_a_forked_supervisor_may_use_all_cores(tmp_path, variables, monkeypatch):
    with waiting(tmp_path, variables, monkeypatch) as (_, supervisor):
        assert os.sched_getaffinity(supervisor.pid) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    "runtime",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=[3606], daemon=True).start()",
        "kept = open('/dev/null')",
        "import subprocess; kept = subprocess.Popen(['sleep', '20'])",
        "raise ImportError('planted')",
        "import os; os._exit(0)",
    ],
)
def test_imports_that_leave_more_than_modules_are_not_forked(tmp_path, variables, monkeypatch, runtime):
    with pytest.raises(OSError), a_zygote(tmp_path, variables, monkeypatch, runtime):
        pass
    assert (tmp_path / "zygote" / IMPORTS).exists()


def a_launch(tmp_path: Path, **known) -> Launch:
    spec = make_spec(framework="fake", **known)
    references = References(tmp_path, data=None, display=PlainDisplay())
    references.prepare(spec)
    return Launch(
        spec=spec, phase="timing", interpreter=sys.executable, inputs=references.inputs_of(spec).train,
        folder=tmp_path / f"launch-{time.monotonic_ns()}", replicated=False,
    )  # fmt: skip


@pytest.fixture
def forking(fakes, monkeypatch):
    """The fake framework forks, also if its manifest was read before, without the variable that says so."""
    known = registry.framework
    monkeypatch.setenv("FAKE_FORKS", "1")

    framework = functools.lru_cache(lambda name: replace(known(name), forks=True))  # others clear its cache
    monkeypatch.setattr(registry, "framework", framework)


def test_a_zygote_that_has_died_is_replaced(tmp_path, forking):
    launcher, forked = LocalLauncher(make_machine()), []

    def run() -> Outcome:
        running = launcher.start(a_launch(tmp_path))
        forked.append(isinstance(running._supervisor, ForkedSupervisor))
        assert wait_for(running.poll, SECONDS)
        running.stop()
        return running.collect()

    try:
        outcomes = [run(), run()]
        (zygote,) = (each for each in psutil.Process().children() if "harness.launch.zygote" in each.cmdline())
        zygote.kill()
        assert wait_for(lambda: zygote.status() == psutil.STATUS_ZOMBIE, SECONDS)
        outcomes += [run(), run()]
    finally:
        launcher.close()
    assert [each.status for each in outcomes] == ["ok"] * 4, outcomes
    assert forked == [True, True, False, True]
    assert not [each for each in psutil.Process().children() if "harness.launch.zygote" in each.cmdline()]


def test_a_run_ends_its_zygotes(tmp_path, forking):
    def zygotes() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if "harness.launch.zygote" in each.cmdline()]

    with launchers.opened(HostsRequest(), make_machine(), frameworks=["fake"]) as launcher:
        running = launcher.start(a_launch(tmp_path))
        assert wait_for(running.poll, SECONDS)
        running.stop()
        assert zygotes()
    assert not zygotes()


def test_launches_over_several_hosts_have_processes_of_their_own(tmp_path, forking):
    framework = registry.framework("fake")
    here = replace(a_launch(tmp_path, devices=2), phase="parity")
    one, two = Place(hosts=("a",), addresses=("10.0.0.1",)), Place(hosts=("a", "b"), addresses=("10.0.0.1", "10.0.0.2"))
    assert supervisors.may_fork(here, framework)
    assert supervisors.may_fork(replace(here, place=one), framework)
    assert not any(supervisors.may_fork(replace(here, place=replace(two, host=host)), framework) for host in (0, 1))


def test_times_that_are_compared_and_other_interpreters_have_processes_of_their_own(tmp_path, forking):
    once, framework = a_launch(tmp_path), registry.framework("fake")
    assert supervisors.may_fork(once, framework)
    assert supervisors.may_fork(replace(once, phase="parity", replicated=True), framework)
    assert not supervisors.may_fork(replace(once, replicated=True), framework)
    assert not supervisors.may_fork(replace(once, interpreter="/usr/bin/python3"), framework)
    assert not supervisors.may_fork(replace(once, spec=replace(once.spec, platform="gpu")), framework)
    assert not supervisors.may_fork(once, replace(framework, forks=False))


@pytest.mark.parametrize("victim", ["harness", "zygote", "supervisor", "rank"])
def test_nothing_is_left_of_a_forked_run_after_sigkill(tmp_path, monkeypatch, victim):
    monkeypatch.setenv("FAKE_FORKS", "1")
    process, out = start_hanging(tmp_path, "hang_with_child")
    found = {"harness": psutil.Process(process.pid)}
    (found["zygote"],) = (each for each in children_of(process.pid) if "harness.launch.zygote" in each.cmdline())
    (found["supervisor"],) = found["zygote"].children()
    (found["rank"],) = found["supervisor"].children()
    everything = found["harness"].children(recursive=True)
    found[victim].kill()
    if victim == "zygote":
        time.sleep(0.5)
        assert process.poll() is None  # the launch goes on
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert wait_for(lambda: not any(running_still(each) for each in everything), SECONDS)
    assert list((tmp_path / "tmp").iterdir()) == []
    if victim != "harness":
        (result,) = store.read(out)
        says = {"zygote": "SIGINT", "supervisor": "supervisor", "rank": "SIGKILL"}
        status = "pending" if victim == "zygote" else "killed"  # Ctrl-C leaves what has not failed to --resume
        assert (result.status, says[victim] in result.reason) == (status, True), result.reason


@pytest.mark.parametrize(
    "test",
    [
        *(
            partial(test_launch.test_each_failure_is_a_row, strategy=strategy, status=status, facts=facts)
            for strategy, status, facts in (
                ("crash_rank1", "crashed", ["ValueError: planted in rank 1"]),
                ("crash_in_timing", "crashed", ["rank 0", "ValueError: planted"]),
                ("kill_rank1", "killed", ["rank 1", "SIGKILL"]),
            )
        ),
        test_launch.test_whatever_a_strategy_does_to_its_process_and_files_the_others_run,
        test_launch.test_a_stuck_rank_is_hung_and_says_where,
        test_launch.test_children_in_their_own_session_are_ended,
        partial(test_launch.test_a_signal_ends_everything_and_keeps_what_was_measured, number=signal.SIGTERM, code=143),
    ],
    ids=lambda test: getattr(test, "func", test).__name__ + "-".join(map(str, getattr(test, "keywords", {}).values())),
)
def test_a_forked_launch_is_launched_like_any_other(tmp_path, monkeypatch, test):
    monkeypatch.setenv("FAKE_FORKS", "1")
    test(tmp_path)


def test_a_forked_launch_and_a_started_one_record_the_same_variables_and_how_they_began(tmp_path, monkeypatch):
    """Those that importing the framework sets included; else one would be proved again for the other."""
    monkeypatch.setenv("FAKE_FORKS", "1")
    known = ("run", "--framework", "fake", "--workload", "toy", "--strategy", "single", "--platform", "cpu")
    for launches in ("1", "2"):
        done = harness(*known, "--launches", launches, "--out", str(tmp_path / launches))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("parity of") == 1
    (forked,), started = (store.read(tmp_path / launches) for launches in ("1", "2"))
    assert forked.conditions.environment["JAX_SET_BY_ITS_IMPORT"] == "1"
    assert [row.conditions.environment for row in started] == 2 * [forked.conditions.environment]
    assert (forked.conditions.start_method, {row.conditions.start_method for row in started}) == ("fork", {"spawn"})
    assert [len(cell.launches) for cell in summarize([forked, *started])] == [1, 2]  # never one row
    assert "| fork " in (tmp_path / "1" / "report.md").read_text()
    assert "| fork " not in (tmp_path / "2" / "report.md").read_text()
