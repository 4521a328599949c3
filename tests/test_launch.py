"""Whatever a rank does, there is a row with the right status and reason, and no process stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from conftest import FAKES, ROOT, TESTS, harness, make_machine, make_spec
from refusals import names

from harness.contract import World
from harness.launch import local, supervisors, worker_code
from harness.launch.group import Ending
from harness.launch.place import HERE, Place, interface, worlds
from harness.machine.devices import gpus_of_launch
from harness.machine.worker_variables import worker_environment
from harness.messages import Answer, draft_file, write
from harness.results import store
from harness.spec import Cause, recorded_variables

pytestmark = pytest.mark.runs


def run_fake(tmp_path, *arguments, framework="fake", devices="2"):
    """One run of fake cells; returns the finished command and its results by strategy."""
    done = harness(
        "run", "--framework", framework, "--workload", "toy", "--devices", devices, "--platform", "cpu",
        "--out", str(tmp_path / "run"), *arguments, cwd=tmp_path, env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    return done, {result.spec.strategy: result for result in store.read(tmp_path / "run")}


def sleepers(seconds, place):
    """Processes that a fake has left, in trials under `place`: they sleep for a telling time."""
    found = psutil.process_iter(["cmdline", "cwd"])
    return [
        p for p in found if p.info["cmdline"] == ["sleep", seconds] and (p.info["cwd"] or "").startswith(str(place))
    ]


def wait_for(condition, seconds=120.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.05)
    return False


def a_world(**changes):
    second_of_two_hosts: dict[str, Any] = {
        "rank": 3,
        "processes": 4,
        "devices": 8,
        "host": 1,
        "hosts": 2,
        "local_rank": 1,
    }
    return World(platform="gpu", cores=1, rendezvous="", **(second_of_two_hosts | changes))


def test_a_rank_knows_its_devices_among_those_of_its_host():
    world = a_world()
    assert (world.local_devices, world.host_devices, world.first_device) == (2, 4, 2)


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 4}, {"host": 2}, {"local_rank": 2}, {"hosts": 3}, {"devices": 6}, {"host": 0, "hosts": 1}],
    ids=str,
)
def test_numbers_of_a_world_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(ValueError):
        a_world(**wrong)


def test_each_rank_gets_a_world_of_its_own():
    found = worlds(make_spec(devices=4), processes=2, cores=1, rendezvous="")
    assert [(world.rank, world.host, world.hosts, world.local_rank) for world in found] == [(0, 0, 1, 0), (1, 0, 1, 1)]
    assert [world.first_device for world in found] == [0, 2]


def test_ranks_are_spread_over_hosts_in_order():
    place = Place(hosts=("a", "b"), addresses=("127.0.0.2", "127.0.0.3"), host=1, rendezvous="tcp://127.0.0.2:1")
    found = worlds(make_spec(devices=4, hosts=2), processes=4, cores=1, rendezvous="", place=place)
    assert [(world.host, world.local_rank) for world in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [world.address for world in found] == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]
    assert list(place.ranks(4)) == [2, 3]
    assert set(place.variables().values()) == {interface("127.0.0.1")}
    assert place.names == ("a", "b") and not HERE.names and not HERE.variables()


def test_good_cells_are_proved_timed_and_reported(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "single,replicated,noisy")
    assert done.returncode == 0, done.stderr
    assert {result.status for result in results.values()} == {"ok"}
    replicated = results["replicated"]
    assert [len(blocks) for blocks in replicated.block_seconds] == [replicated.spec.blocks] * 2
    assert len(replicated.losses) == replicated.spec.curve_steps == len(replicated.golden_losses)
    assert replicated.losses == pytest.approx(replicated.golden_losses, rel=1e-6)  # its inputs are float32
    assert replicated.parity is not None
    assert replicated.parity.groups == 1  # nothing normalizes in this workload
    assert replicated.conditions.environment["OMP_NUM_THREADS"] == str(replicated.conditions.cores)
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"report.md", "results.jsonl", "environment.json", "logs", "throughput-toy-base.png"}
    assert "work" not in names
    assert json.loads((folder / "environment.json").read_text())["frameworks"]["fake"]["versions"]["numpy"]
    assert all(f"| {name} " in (folder / "report.md").read_text() for name in results)


def test_a_framework_that_cannot_be_imported_is_unavailable_and_the_others_run(tmp_path):
    done, _results = run_fake(tmp_path, "--strategy", "single", framework="fake,broken")
    assert done.returncode == 1
    by_framework = {result.spec.framework: result for result in store.read(tmp_path / "run")}
    assert by_framework["fake"].status == "ok"
    assert by_framework["broken"].status == "unavailable"
    names(by_framework["broken"].reason, "libbroken.so.1")


@pytest.mark.parametrize(
    ("strategy", "status", "facts"),
    [
        ("wrong_gradient", "parity_failed", ["first update", "1.0e+00"]),
        ("stale_rank1", "parity_failed", ["parameters"]),
        ("out_of_memory", "oom", ["1 TiB"]),
        ("diverge", "diverged", ["loss nan", "step 2"]),
        ("crash_rank1", "crashed", ["rank 1", "ValueError: planted in rank 1"]),
        ("crash_in_timing", "crashed", ["rank 0", "ValueError: planted | in <timing>"]),
        ("kill_rank1", "killed", ["rank 1", "SIGKILL"]),
    ],
)
def test_each_failure_is_a_row(tmp_path, strategy, status, facts):
    cause = {
        "wrong_gradient": Cause(kind="gate", data={"quantities": ["first update", "losses", "parameters"]}),
        "stale_rank1": Cause(kind="gate", data={"quantities": ["parameters"]}),
        "crash_rank1": Cause(kind="exception", data={"rank": 1, "type": "ValueError"}),
        "kill_rank1": Cause(kind="killed", data={"rank": 1, "signal": "SIGKILL"}),
    }
    kinds = {"out_of_memory": "out_of_memory", "diverge": "loss", "crash_in_timing": "exception"}
    done, results = run_fake(tmp_path, "--strategy", strategy)
    assert done.returncode == 1
    result = results[strategy]
    assert (result.status, result.block_seconds) == (status, ())
    names(result.reason, *facts)
    assert result.cause is not None
    assert result.cause == cause.get(strategy, result.cause)
    assert result.cause.kind == kinds.get(strategy, result.cause.kind)
    if status == "crashed":
        assert "Traceback" in result.traceback
        assert 'raise ValueError("planted' in result.traceback
    assert "Traceback" not in done.stderr
    text = (tmp_path / "run" / "report.md").read_text()
    assert re.search(rf"^\| .*{strategy} .*\| {status} +\| ", text, re.MULTILINE)  # with its reason


def test_whatever_a_strategy_does_to_its_process_and_files_the_others_run(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "leave_early,scribble,single")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert {name: row.status for name, row in results.items()} == {
        "leave_early": "crashed",
        "scribble": "crashed",
        "single": "ok",
    }
    names(results["leave_early"].reason, "rank 0", "exit code 0")
    assert results["leave_early"].cause == Cause(kind="no_answer", data={"rank": 0, "code": 0})
    assert results["leave_early"].block_seconds == ()
    assert list(tmp_path.glob("likeforlike-*")) == []


def test_a_training_that_leaves_early_is_not_taken_for_a_shorter_one(tmp_path):
    """An answer so far, as a training saves it after each epoch, says "ok"."""
    (tmp_path / "launch").mkdir()
    write(tmp_path / "launch" / draft_file(0), Answer(rank=0))
    write(tmp_path / "launch" / "outcome.json", Ending(status="ok"))
    (tmp_path / "launch" / "code").mkdir()
    with (tmp_path / "launch" / "supervisor.log").open("wb") as log:
        supervisor = supervisors.execute(tmp_path / "launch", log.fileno())
    run = local.LocalRun(tmp_path / "launch", supervisor, ranks=range(1), cores=1, timeout=1)
    run.stop()
    assert run.collect().status == "crashed"


def test_every_launch_of_a_failing_cell_gets_its_row_and_none_is_timed(tmp_path):
    done, _ = run_fake(tmp_path, "--strategy", "wrong_gradient,single", "--launches", "5", "--seed", "1")
    assert done.returncode == 1
    results = store.read(tmp_path / "run")
    wrong = [result for result in results if result.spec.strategy == "wrong_gradient"]
    assert sorted(result.spec.launch for result in wrong) == [0, 1, 2, 3, 4]
    assert {result.status for result in wrong} == {"parity_failed"}
    good = [result for result in results if result.spec.strategy == "single"]
    assert [result.status for result in good] == ["ok"] * 5


def test_the_rank_that_failed_first_is_blamed_even_if_another_then_dies_without_a_word(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "abort_after_rank1")
    assert done.returncode == 1
    result = results["abort_after_rank1"]
    assert result.status == "oom"
    names(result.reason, "parity", "rank 1", "MemoryError: planted in rank 1")
    assert "rank 0" not in result.reason
    assert "Traceback" in result.traceback


def test_a_timed_run_that_leaves_the_golden_curve_is_void(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "wrong_when_timed")
    assert done.returncode == 1
    result = results["wrong_when_timed"]
    assert result.parity is not None
    assert result.parity.passed
    assert (result.status, result.block_seconds) == ("diverged", ())
    for timing in result.timings:
        assert timing.losses and not (timing.block_starts or timing.step_seconds or timing.call_seconds)
    names(result.reason, "timed losses", "1e-02")


@pytest.mark.parametrize(("strategy", "asked"), [("without_state", "state()"), ("without_weights", "export()")])
def test_a_program_that_shows_nothing_to_compare_is_not_timed(tmp_path, strategy, asked):
    done, results = run_fake(tmp_path, "--strategy", strategy)
    assert done.returncode == 1
    result = results[strategy]
    assert result.parity is not None
    assert result.parity.passed
    assert (result.status, result.block_seconds) == ("crashed", ())
    names(result.reason, asked, "rank 0")


def test_a_stuck_rank_is_hung_and_says_where(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "hang_rank1", "--timeout", "16")
    assert done.returncode == 1
    assert results["hang_rank1"].status == "hung"
    names(results["hang_rank1"].reason, "rank 1", "'parity step 1/5'", "--timeout 32")
    (log,) = (tmp_path / "run" / "logs").glob("*/rank1.log")
    assert "hang_rank1.py" in log.read_text()  # the stack of the stuck rank


@pytest.mark.slow
def test_out_of_time_while_making_progress_is_a_timeout(tmp_path):
    done, results = run_fake(tmp_path, "--strategy", "slow_when_timed", "--timeout", "12")
    assert done.returncode == 1
    assert results["slow_when_timed"].status == "timeout"  # 20 steps of a second cannot fit
    names(results["slow_when_timed"].reason, "--timeout 24")


def test_children_in_their_own_session_are_ended(tmp_path):
    _done, results = run_fake(tmp_path, "--strategy", "leave_child")
    assert results["leave_child"].status == "ok"
    assert not sleepers("3601", tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything_and_keeps_what_was_measured(tmp_path, number, code):
    process, out = start_hanging(tmp_path, "single,hang_when_timed")
    process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == code
    assert b"Traceback" not in errors
    assert f"run --resume {out}" in errors.decode()
    assert not sleepers("3602", tmp_path)
    results = {result.spec.strategy: result for result in store.read(out)}
    assert {result.status for result in results.values()} == {"pending"}
    assert results["single"].parity is not None  # its proof is kept
    assert (out / "report.md").exists()
    assert not any((tmp_path / "tmp").iterdir())


def test_nothing_outlives_a_killed_harness(tmp_path):
    process, _out = start_hanging(tmp_path, "hang_with_child")
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 4  # supervisor, rank, the rank's child, and who removes the scratch folder
    assert any((tmp_path / "tmp").iterdir())
    process.kill()
    process.wait()
    assert wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in workers))
    assert not sleepers("3602", tmp_path)
    assert not any((tmp_path / "tmp").iterdir())


def start_hanging(tmp_path, strategies):
    out = tmp_path / "run"
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join([str(TESTS.parent), str(FAKES)])
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", "--framework", "fake", "--workload", "toy", "--platform", "cpu",
         "--strategy", strategies, "--out", str(out)],
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert wait_for(lambda: sleepers("3602", tmp_path)), process.communicate(timeout=5)
    return process, out


def test_workers_get_a_scrubbed_environment(monkeypatch, tmp_path):
    for name in ("RANK", "MASTER_ADDR", "WORLD_SIZE", "TF_CONFIG", "SLURM_JOB_ID", "SECRET_TOKEN", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "stale")
    kept = {"NCCL_IB_PKEY": "3", "JAX_DEBUG_KEY_REUSE": "1", "NCCL_NVLS_ENABLE": "0"}
    kept |= {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    for name, value in (kept | {"XLA_FLAGS": "--x"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "own::/opt/x")  # workers have another working directory
    environment = worker_environment(
        gpus=make_machine(gpus=4).gpus[:2], cores=3, own={"JAX_PLATFORMS": "cuda"}, code=tmp_path
    )
    assert not {"RANK", "MASTER_ADDR", "WORLD_SIZE", "TF_CONFIG", "SLURM_JOB_ID", "SECRET_TOKEN"} & environment.keys()
    assert environment.items() >= (kept | {"XLA_FLAGS": "--x", "JAX_PLATFORMS": "cuda"}).items()
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(tmp_path / "own"), "/opt/x"]
    assert {environment[name] for name in environment if name.endswith("NUM_THREADS")} == {"3"}


@pytest.mark.parametrize(
    ("gpus", "devices", "tokens"),
    [(1, 1, "0 0 0"), (2, 1, "0 1 0"), (2, 2, "01 01 01"), (4, 2, "01 23 01"), (3, 2, "01 01 01")],
)
def test_launches_of_a_cell_take_turns_on_the_gpus_of_a_run(gpus, devices, tokens):
    of_run = make_machine(gpus=gpus).gpus
    found = [gpus_of_launch(of_run, devices, launch=launch) for launch in range(3)]
    assert ["".join(gpu.token for gpu in used) for used in found] == tokens.split()
    assert gpus_of_launch((), 2, launch=1) == ()
    with pytest.raises(ValueError):
        gpus_of_launch(of_run, len(of_run) + 1, launch=0)


def test_the_code_that_variables_bring_into_a_worker_is_recorded_without_the_home_folder():
    code = str(ROOT)
    given = {
        "HOME": "/home/me",
        "PYTHONPATH": f"{code}:/home/me/torch:/opt/x:",
        "LD_PRELOAD": "/home/me/malloc.so",
    }
    assert recorded_variables.recorded(given) == {"LD_PRELOAD": "~/malloc.so", "PYTHONPATH": "~/torch:/opt/x"}
    assert recorded_variables.recorded({"HOME": "/", "PYTHONPATH": code, "LD_PRELOAD": ""}) == {}


def test_no_secret_reaches_a_worker_or_a_report(monkeypatch, tmp_path):
    secrets = ("TF_TOKEN_app_terraform_io", "TF_VAR_db_password", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "JAX_SECRET")
    secrets += ("TORCH_APIKEY", "NCCL_DB_PASS", "CUDA_password", "TORCH_ACCESS_KEY_ID")
    for name in secrets:
        monkeypatch.setenv(name, "hunter2")
    environment = worker_environment(gpus=(), cores=1, own={}, code=tmp_path)
    assert not set(secrets) & environment.keys()
    assert "hunter2" not in environment.values()


@pytest.mark.parametrize(
    ("cores", "processes", "devices", "most", "shares"),
    [
        (4, 1, 1, 2, [[0, 1]]),  # single: one device's share, not the whole machine
        (4, 2, 2, 2, [[0, 1], [2, 3]]),
        (4, 1, 2, 2, [[0, 1, 2, 3]]),
        (2, 4, 4, 4, [[0], [1], [0], [1]]),  # more devices than cores: they share
        (2, 1, 4, 4, [[0, 1]]),
        (5, 2, 2, 2, [[0, 1], [2, 3]]),
    ],
)
def test_every_cpu_device_is_an_equal_share_of_the_cores(cores, processes, devices, most, shares):
    assert local.core_shares(tuple(range(cores)), processes, devices, most, "cpu") == shares


def test_gpu_processes_share_all_cores():
    shares = local.core_shares(tuple(range(8)), 2, 2, 4, "gpu")
    assert shares == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(local.core_shares(tuple(range(8)), 1, 1, 4, "gpu")[0]) == 8


@pytest.mark.parametrize("outer_is", ["a package", "a namespace"])
def test_a_plug_in_inside_another_package_is_found_by_workers(tmp_path, monkeypatch, outer_is):
    inner = tmp_path / "installed" / f"corp_{outer_is[2]}" / "impl"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("")
    (inner / "runtime.py").write_text("")
    (tmp_path / "installed" / "unrelated.py").write_text("")
    if outer_is == "a package":
        (inner.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    package = f"{inner.parent.name}.impl"
    folder = worker_code.link_code(tmp_path / "code", package)
    seen = f"import importlib.util, {package}.runtime; print(importlib.util.find_spec('unrelated'))"
    done = subprocess.run(
        [sys.executable, "-c", seen], cwd=tmp_path, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_workers_see_our_code_and_not_our_packages(tmp_path):
    folder = worker_code.link_code(tmp_path / "code", "torch_impl")
    assert sorted(path.name for path in folder.iterdir()) == ["harness", "torch_impl"]
    assert (folder / "harness").resolve() == ROOT / "harness"
