"""Two hosts: agents on two loopback addresses, which share no files: the same proof, and nothing left."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import FAKES, ROOT, harness, make_machine, make_spec
from refusals import names, refused, refused_command
from test_launch import wait_for

from harness.launch import launchers, links, wire
from harness.launch.wire import Lost, Refused, Wire, prove
from harness.machine.devices import cores
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.reporting import summary
from harness.reporting.tables import result_table
from harness.results import store
from harness.session.device_references import float64_twin
from harness.spec import Cause, TrialResult
from harness.spec.errors import MachineUnfit
from harness.verification.comparison import verify

pytestmark = pytest.mark.slow

HOSTS = {"n1": "127.0.0.2", "n2": "127.0.0.3"}
AGENT = "harness.launch.host_agent"
COMMAND = re.compile(r"^on (\S+), run: (.*)$", re.MULTILINE)
SECONDS = 60  # that long a process may take to end or begin, however busy the machine is


class TwoHosts:
    """A run over two hosts, and the agents that a user would start there. Each has a folder of its own in `place`."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.place, self.out, self.agents = place, place / "run", {}
        self.errors = place / "errors"
        self.begin(
            "--platform", "cpu", "--workload", "toy", "--out", str(self.out),
            "--launcher", "manual", "--hosts", ",".join(HOSTS), "--head", "127.0.0.1", *arguments,
        )  # fmt: skip

    def begin(self, *arguments: str) -> None:
        """Start the harness, and wait until it has printed a command for each host."""
        self.run = self.start("head", [sys.executable, "-m", "harness", "run", *arguments], log=self.errors)
        assert wait_for(lambda: len(self.commands) == 2 or self.run.poll() is not None, SECONDS)

    @property
    def commands(self) -> dict[str, str]:
        """What the run has printed for each host."""
        return dict(COMMAND.findall(self.errors.read_text()))

    def start(self, name: str, command: list[str], *, log: Path, **variables: str) -> subprocess.Popen:
        folder = self.place / f"tmp-{name}"
        folder.mkdir(exist_ok=True)
        path = os.pathsep.join(map(str, (ROOT, FAKES)))
        environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)} | variables
        with log.open("w") as errors:
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=errors, stderr=errors)

    def join(self, host: str, *program: str, **changed: str) -> subprocess.Popen:
        """Start the agent of a host by the printed command, with another program or variables if they are given."""
        words = shlex.split(self.commands[host])
        (token,) = [word for word in words if word.startswith("LIKEFORLIKE_")]
        name, _, value = token.partition("=")
        flags = [*words[words.index(AGENT) + 1 :], "--address", HOSTS[host]]
        command = [sys.executable, *(program or ("-m", AGENT)), *flags]
        variables = {name: value} | changed
        self.agents[host] = self.start(host, command, log=self.place / f"agent-{host}", **variables)
        return self.agents[host]

    def said(self, host: str) -> str:
        return (self.place / f"agent-{host}").read_text()

    def end(self) -> int:
        """Wait for the run and its agents; returns the run's exit code."""
        code = self.run.wait(10 * SECONDS)
        for agent in self.agents.values():
            agent.wait(SECONDS)
        return code

    def rows(self) -> dict[str, TrialResult]:
        return {row.spec.strategy: row for row in store.read(self.out)}

    def left(self) -> list[str]:
        """What is left after a while: processes below the place, and files of the hosts."""

        def found() -> list[str]:
            processes = psutil.process_iter(["cwd", "cmdline"])
            at_work = [p for p in processes if (p.info["cwd"] or "").startswith(str(self.place))]
            return [str(p.info["cmdline"]) for p in at_work] + [str(p) for p in self.place.glob("tmp-*/*")]

        wait_for(lambda: not found(), SECONDS)
        return found()


@pytest.fixture
def two_hosts(tmp_path):
    started: list[TwoHosts] = []

    def begin(*arguments: str) -> TwoHosts:
        started.append(TwoHosts(tmp_path, *arguments))
        return started[-1]

    yield begin
    for each in started:
        for process in (each.run, *each.agents.values()):
            process.kill()
            process.wait()
        assert not each.left()


def losses_of_one_host(tmp_path: Path, *arguments: str) -> dict[str, TrialResult]:
    out = tmp_path / "alone"
    done = harness("run", "--platform", "cpu", "--workload", "toy", "--out", str(out), *arguments, timeout=580)
    assert done.returncode == 0, done.stderr
    return {row.spec.strategy: row for row in store.read(out)}


def test_two_hosts_give_the_losses_of_one_and_rows_name_them(tmp_path, two_hosts):
    arguments = ("--framework", "fake", "--strategy", "single,replicated", "--devices", "4")
    hosts = two_hosts(*arguments)
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 0, hosts.errors.read_text()
    rows, alone = hosts.rows(), losses_of_one_host(tmp_path, *arguments)
    assert [rank.host for rank in rows["replicated"].ranks] == ["n1", "n1", "n2", "n2"]
    assert [rank.host for rank in rows["single"].ranks] == ["n1"]
    assert [rank.host for rank in alone["replicated"].ranks] == [""] * 4
    for name, row in rows.items():
        assert row.status == "ok" and row.losses == alone[name].losses
    assert (rows["replicated"].spec.hosts, rows["replicated"].telemetry) == (2, None)
    assert {row.conditions.cores for row in rows.values()} == {max(1, len(cores()) // 2)}  # two devices on each host
    logs = {path.name for path in (hosts.out / "logs").glob("*replicated*/*")}
    assert logs >= {"rank0.log", "rank3.log", "supervisor-n1.log", "supervisor-n2.log"}
    assert {agent.returncode for agent in hosts.agents.values()} == {0}
    (link,) = rows["replicated"].run.links
    assert (link.source, link.target) == ("n1", "n2")
    assert 0 < link.round_trip_seconds < SECONDS and link.bytes_per_second > 0
    assert not alone["replicated"].run.links
    assert str(link) in (hosts.out / "report.md").read_text("utf-8")
    assert not hosts.left()


def test_one_run_measures_cells_within_a_host_and_across(two_hosts):
    strategies = "single,replicated"
    hosts = two_hosts("--framework", "fake", "--strategy", strategies, "--devices", "2", "--spread", "2,1")
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 0, hosts.errors.read_text()
    rows = {(row.spec.strategy, row.spec.hosts): row for row in store.read(hosts.out)}
    assert {key: [rank.host for rank in row.ranks] for key, row in rows.items()} == {
        ("single", 1): ["n1"],
        ("replicated", 1): ["n1", "n1"],
        ("replicated", 2): ["n1", "n2"],
    }
    assert len({row.losses for row in rows.values() if row.spec.devices == 2}) == 1
    assert {row.conditions.cores for row in rows.values()} == {max(1, len(cores()) // 2)}
    table = result_table.table(summary.summarize(list(rows.values())))
    assert (table.values("hosts").count(1), table.values("hosts").count(2)) == (2, 1)
    titles = [cell.title for cell in summary.summarize(list(rows.values()))]
    assert len(set(titles)) == 3
    found, _ = verify(hosts.out)
    assert not found.differences and not found.not_verified


@pytest.mark.frameworks
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("framework", "strategies"),
    [
        ("torch", "ddp"),
        ("jax", "multi_process,jit_sharding,fsdp"),
        ("tf", "multi_worker_mirrored"),
    ],
)
def test_each_framework_trains_over_two_hosts_as_on_one(tmp_path, two_hosts, framework, strategies):
    arguments = ("--framework", framework, "--strategy", strategies, "--devices", "4")
    hosts = two_hosts(*arguments)
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 0, hosts.errors.read_text()
    rows, alone = hosts.rows(), losses_of_one_host(tmp_path, *arguments)
    assert set(rows) == set(strategies.split(","))
    for name, row in rows.items():
        assert row.status == alone[name].status == "ok"
        assert [rank.host for rank in row.ranks] == ["n1", "n1", "n2", "n2"]
        assert row.losses == pytest.approx(alone[name].losses, rel=1e-6)


@pytest.mark.frameworks
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", [(), ("--optimizer", "adam")], ids=str)
def test_asynchronous_updates_over_two_hosts_pass_the_gate(two_hosts, options):
    """Which rank comes when differs from run to run: the gate repeats what happened."""
    hosts = two_hosts("--framework", "torch", "--strategy", "async_sgd", "--devices", "4", *options)
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 0, hosts.errors.read_text()
    row = hosts.rows()["async_sgd"]
    assert row.status == "ok" and row.parity is not None and row.parity.passed
    assert [rank.host for rank in row.ranks] == ["n1", "n1", "n2", "n2"]
    assert not hosts.left()


@pytest.mark.frameworks
def test_a_store_keeps_what_is_written_under_its_lock(tmp_path, monkeypatch):
    import torch
    import torch.distributed as dist

    from torch_impl import shared_store

    monkeypatch.setattr(shared_store, "PIECE", 100)
    job: Any = SimpleNamespace(world=SimpleNamespace(rank=0, address="127.0.0.1"))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        store = shared_store.SharedStore(job)
        kernels = torch.arange(72.0).view(2, 4, 3, 3).to(memory_format=torch.channels_last)
        weights, counter = store.tensor(kernels), store.tensor(torch.zeros(1, dtype=torch.int64))
        # a fused optimizer reads parameters and gradients in the order in which they lie, and gradients are contiguous
        assert weights.is_contiguous() and torch.equal(weights, kernels)
        for turn in (1, 2):
            with store.lock():
                weights.mul_(2)
                counter.add_(1)
            weights.zero_()
            counter.zero_()
            store.version = 0  # as on a rank that has seen none of it
            store.refresh()
            assert torch.equal(weights, 2**turn * kernels) and counter.item() == turn
    finally:
        dist.destroy_process_group()


def test_a_rank_that_fails_on_one_host_ends_the_launch_on_both_and_the_run_goes_on(two_hosts):
    hosts = two_hosts("--framework", "fake", "--strategy", "crash_rank1,kill_rank1,replicated", "--devices", "2")
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 1
    rows = hosts.rows()
    assert {name: row.status for name, row in rows.items()} == {
        "crash_rank1": "crashed", "kill_rank1": "killed", "replicated": "ok",
    }  # fmt: skip
    assert rows["crash_rank1"].cause == Cause(kind="exception", data={"rank": 1, "type": "ValueError"})
    assert rows["kill_rank1"].cause == Cause(kind="killed", data={"rank": 1, "signal": "SIGKILL"})
    names(rows["crash_rank1"].reason, "n2", "rank 1")


TAKEN = "import {agent} as agent; agent.free_ports = lambda address, count: [{port}] * count; agent.main()"


def test_a_port_that_somebody_takes_before_the_ranks_is_a_row_with_the_reason(two_hosts):
    hosts = two_hosts("--framework", "fake", "--strategy", "replicated", "--devices", "2")
    with socket.create_server((HOSTS["n1"], 0)) as other:
        hosts.join("n1", "-c", TAKEN.format(agent=AGENT, port=other.getsockname()[1]))
        hosts.join("n2")
        assert hosts.end() == 1
    row = hosts.rows()["replicated"]
    assert row.status == "crashed"
    names(row.reason, "n1", "OSError")


def test_hosts_that_do_not_reach_each_other_are_refused_before_anything_is_measured(two_hosts):
    hosts = two_hosts("--framework", "fake", "--strategy", "replicated", "--devices", "2")
    hosts.join("n1", "-c", UNREACHED.format(agent=AGENT))
    hosts.join("n2")
    assert hosts.end() == 3
    names(hosts.errors.read_text().strip().splitlines()[-1], "n1", "n2", "127.0.0.3", "--address")
    assert not hosts.out.exists()


UNREACHED = """
import {agent} as agent
agent.links.measured = lambda address, port: agent.socket.create_connection((address, 1))
agent.main()
"""


@pytest.mark.parametrize("size", [0, 1, 2**20 + 1, 3 * 2**20])
def test_a_message_of_any_length_is_answered_once_it_is_there(size):
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=links.answer, args=(server.dup(),))
        thread.start()
        with socket.create_connection(server.getsockname()) as connection:
            assert links._seconds(connection, size) > 0
            assert links._seconds(connection, 0) > 0
    thread.join()


def test_a_slow_link_is_measured_by_one_short_message(monkeypatch):
    """Two kinds of seconds are known: of an empty message, and of the bytes of a longer one."""
    monkeypatch.setattr(links, "_seconds", lambda connection, size: 0.01 + size / 2**20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert links.measured(*server.getsockname()) == (0.01, pytest.approx(2**20))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_host_that_is_lost_is_named_in_its_row_and_the_run_can_go_on(two_hosts, how):
    hosts = two_hosts("--framework", "fake", "--strategy", "hang_rank1,replicated", "--devices", "2")
    for host in HOSTS:
        hosts.join(host)
    assert wait_for(lambda: any("hang_rank1" in path.read_text() for path in orders(hosts, "n2")), SECONDS)
    hosts.agents["n2"].send_signal(how)
    assert hosts.end() == 3
    assert hosts.agents["n1"].returncode == 0
    rows = hosts.rows()
    lost = [row for row in rows.values() if row.cause == Cause(kind="host_lost", data={"host": "n2"})]
    assert lost and {row.status for row in rows.values()} <= {"killed", "ok"}
    names(lost[0].reason, "n2")
    assert not hosts.left()


def test_a_run_that_has_lost_a_host_goes_on_with_resume(two_hosts):
    """With new agents on both hosts. The launch that was lost is made again."""
    hosts = two_hosts("--framework", "fake", "--strategy", "hang_rank1,replicated", "--devices", "2", "--timeout", "40")
    for host in HOSTS:
        hosts.join(host)
    assert wait_for(lambda: any("hang_rank1" in path.read_text() for path in orders(hosts, "n2")), SECONDS)
    hosts.agents["n2"].kill()
    assert hosts.end() == 3
    assert hosts.rows()["hang_rank1"].cause == Cause(kind="host_lost", data={"host": "n2"})
    hosts.begin("--resume", str(hosts.out))
    for host in HOSTS:
        hosts.join(host)
    assert hosts.end() == 1, hosts.errors.read_text()
    rows = hosts.rows()
    assert {name: row.status for name, row in rows.items()} == {"hang_rank1": "hung", "replicated": "ok"}
    assert [rank.host for rank in rows["replicated"].ranks] == ["n1", "n2"]
    assert not hosts.left()


def orders(hosts: TwoHosts, host: str) -> list[Path]:
    return list(hosts.place.glob(f"tmp-{host}/*/launch-*/order.json"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_on_any_host_when_the_harness_has_gone(two_hosts, how):
    hosts = two_hosts("--framework", "fake", "--strategy", "hang_with_child,hang_rank1", "--devices", "2")
    for host in HOSTS:
        hosts.join(host)
    assert wait_for(lambda: any(orders(hosts, host) for host in HOSTS), SECONDS)
    hosts.run.send_signal(how)
    assert hosts.end() == (-how if how == signal.SIGKILL else 128 + how)
    if how == signal.SIGKILL:
        assert {agent.returncode for agent in hosts.agents.values()} == {3}
        for host in HOSTS:
            assert len(hosts.said(host).splitlines()) == 2
        shutil.rmtree(hosts.place / "tmp-head")  # of the harness, whose remover the tests of processes look at
    assert not hosts.left()


def test_a_wrong_token_an_unknown_name_and_a_name_given_twice_are_refused_and_the_run_waits_on(two_hosts):
    hosts = two_hosts("--framework", "fake", "--strategy", "replicated", "--devices", "2")
    stranger = hosts.join("n1", LIKEFORLIKE_TOKEN="guessed")
    assert stranger.wait(SECONDS) == 2
    names(hosts.said("n1"), "token")
    hosts.join("n1")
    assert wait_for(lambda: "127.0.0.2" in hosts.said("n1"), SECONDS)
    first = hosts.agents["n1"]
    again = hosts.join("n1")
    assert again.wait(SECONDS) == 2
    names(hosts.said("n1"), "n1", "n2")
    hosts.agents["first"] = first
    hosts.join("n2")
    assert hosts.end() == 0


def test_a_host_with_other_code_is_refused_before_anything_is_measured(tmp_path, two_hosts):
    hosts = two_hosts("--framework", "fake", "--strategy", "replicated", "--devices", "2")
    other = tmp_path / "other"
    for name, origin in (("harness", ROOT / "harness"), ("fake_impl", FAKES / "fake_impl")):
        shutil.copytree(origin, other / name, ignore=shutil.ignore_patterns("__pycache__"))
    for info in FAKES.glob("*.dist-info"):
        shutil.copytree(info, other / info.name)
    shutil.copytree(FAKES / "broken_impl", other / "broken_impl")
    with (other / "fake_impl" / "runtime.py").open("a") as file:
        file.write("# edited\n")
    agent = hosts.join("n2", PYTHONPATH=str(other))
    assert hosts.end() == 3
    assert agent.returncode == 2
    names(hosts.said("n2"), "n2", "fake")
    names(hosts.errors.read_text().strip().splitlines()[-1], "n2", "fake")
    assert not hosts.out.exists()


def test_dry_run_prints_a_command_for_each_host_and_starts_nothing(tmp_path):
    known = ("--platform", "cpu", "--launcher", "manual", "--hosts", "a,b", "--head", "10.0.0.1:29400", "--dry-run")
    done = harness("run", *known, "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and not (tmp_path / "run").exists()
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2
    for host, line in zip(("a", "b"), lines, strict=True):
        names(line, "harness.launch.host_agent", "--head 10.0.0.1:29400", f"--host {host}")


SRUN = """
import os, subprocess, sys
flags, command = sys.argv[1:sys.argv.index("bash")], sys.argv[sys.argv.index("bash"):]
hosts = flags[flags.index("--nodelist") + 1].split(",")
if "n9" in hosts:
    sys.exit("srun: error: Unable to create step: n9 is down")
agents = [subprocess.Popen(command, env=os.environ | {"SLURMD_NODENAME": host}) for host in hosts]
sys.exit(max(agent.wait() for agent in agents))
"""


@pytest.mark.parametrize(("hosts", "code"), [("n1,n2", 0), ("n1,n9", 3)])
def test_slurm_starts_the_agents_by_srun_and_says_why_it_cannot(tmp_path, hosts, code):
    """By a script in its place, which does what srun would."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f"#!{sys.executable}\n{SRUN}")
    srun.chmod(0o755)
    known = ("--framework", "fake", "--strategy", "replicated", "--devices", "2", "--workload", "toy")
    done = harness(
        "run", *known, "--platform", "cpu", "--launcher", "slurm", "--hosts", hosts, "--head", "127.0.0.1",
        "--out", str(tmp_path / "run"), env={"PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    if code:
        names(done.stderr.strip().splitlines()[-1], "n9", "srun")
        return
    (row,) = store.read(tmp_path / "run")
    assert [rank.host for rank in row.ranks] == ["n1", "n2"]
    assert row.status == "ok"


@pytest.mark.parametrize(
    ("asked", "inside", "chosen"),
    [(2, {}, ["n3", "n1"]), (2, {"SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n2"}, ["n2", "n1"])],
    ids=["outside", "inside"],
)
def test_slurm_chooses_idle_nodes_or_those_of_the_allocation(tmp_path, monkeypatch, asked, inside, chosen):
    for program, said in {"scontrol": "n1 n2 n3", "sinfo": "n3 n1 n3"}.items():
        path = tmp_path / program
        path.write_text(f"#!/bin/sh\nprintf '%s\\n' {said}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("SLURM_JOB_NODELIST", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in inside.items():
        monkeypatch.setenv(name, value)
    assert list(launchers.starter("slurm").nodes(asked)) == chosen
    with pytest.raises(MachineUnfit) as error:
        launchers.starter("slurm").nodes(4)
    names(str(error.value), "--hosts 4")


def test_hosts_without_names_come_to_the_manual_adapter_by_a_defect_alone():
    """Planning refuses a number of hosts with this adapter, and nothing else does."""
    with pytest.raises(AssertionError):
        launchers.starter("manual").nodes(2)


def test_without_slurm_no_node_can_be_chosen(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MachineUnfit) as error:
        launchers.starter("slurm").nodes(2)
    names(str(error.value), "--hosts 2", "sinfo")


def test_ray_chooses_nodes_of_its_cluster(tmp_path, monkeypatch):
    for name, text in RAY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ray", "ray.util"):  # what is imported from here is gone with the test
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    assert list(launchers.starter("ray").nodes(2)) == ["n2", "n1"]
    with pytest.raises(MachineUnfit) as error:
        launchers.starter("ray").nodes(3)
    names(str(error.value), "--hosts 3", "n1", "n2")


RAY = {
    "ray/__init__.py": """
from concurrent.futures import Future, ThreadPoolExecutor, wait as wait_for
from types import SimpleNamespace
threads, exceptions = ThreadPoolExecutor(), SimpleNamespace(GetTimeoutError=TimeoutError)
def init(address, log_to_driver):
    if address.startswith("nowhere"):
        raise ConnectionError(f"no cluster at {address}")
def is_initialized():
    return True
def nodes():
    return [{"NodeManagerAddress": n, "Alive": n != "n9", "Resources": {"CPU": 2.0}} for n in ("n1", "n2", "n9")]
class remote:
    def __init__(self, function):
        self.function = function
    def options(self, **known):
        assert known["num_gpus"] == 0 and known["max_retries"] == 0
        return self
    def remote(self, *given):
        return threads.submit(self.function, *given)
def get(task, timeout=None):
    return task.result(timeout)
def wait(tasks, num_returns, timeout):
    done, left = wait_for(tasks, timeout)
    return [*done][:num_returns], [*left]
def shutdown():
    pass
""",
    "ray/util/__init__.py": """
from concurrent.futures import Future
from types import SimpleNamespace
def placement_group(bundles, strategy):
    ready = Future()
    ready.set_result(None)
    assert strategy == "STRICT_SPREAD"
    return SimpleNamespace(bundle_specs=bundles, ready=lambda: ready)
def remove_placement_group(group):
    pass
def get_node_ip_address():
    return "n2"
""",
    "ray/util/scheduling_strategies.py": """
def PlacementGroupSchedulingStrategy(group, placement_group_bundle_index):
    return group.bundle_specs[placement_group_bundle_index]
""",
}


@pytest.mark.parametrize(
    ("hosts", "cluster", "code", "facts"),
    [
        ("n1,n2", "127.0.0.1", 0, ()),
        ("n1,n9", "127.0.0.1", 3, ("--hosts n9", "n1, n2")),
        ("n1,n2", "nowhere:1", 3, ("nowhere:1", "RAY_ADDRESS")),
    ],
)
def test_ray_starts_the_agents_as_tasks_and_says_why_it_cannot(tmp_path, hosts, cluster, code, facts):
    """By a module in its place, whose nodes are threads."""
    for name, text in RAY.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    known = ("--framework", "fake", "--strategy", "replicated", "--devices", "2", "--workload", "toy")
    places = os.pathsep.join(map(str, (ROOT, FAKES, tmp_path / "modules")))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = cluster if ":" in cluster else f"{cluster}:{listening.getsockname()[1]}"
        done = harness(
            "run", *known, "--platform", "cpu", "--launcher", "ray", "--hosts", hosts, "--head", "127.0.0.1",
            "--out", str(tmp_path / "run"), env={"PYTHONPATH": places, "RAY_ADDRESS": address},
        )  # fmt: skip
    assert done.returncode == code, done.stderr
    if code:
        names(done.stderr.strip().splitlines()[-1], *facts)
        return
    (row,) = store.read(tmp_path / "run")
    assert row.status == "ok" and [rank.host for rank in row.ranks] == ["n1", "n2"]


def test_a_head_that_cannot_listen_is_refused(tmp_path):
    known = ("--platform", "cpu", "--framework", "fake", "--workload", "toy", "--launcher", "manual", "--hosts", "a,b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        head = f"127.0.0.1:{taken.getsockname()[1]}"
        refused_command(harness("run", *known, "--head", head, "--out", str(tmp_path / "run")), "--head", head)
    refused_command(harness("run", *known, "--head", "192.0.2.1", "--out", str(tmp_path / "run")), "--head 192.0.2.1")


def test_the_dry_run_of_slurm_is_a_job_script_with_the_command(tmp_path):
    known = ("run", "--platform", "cpu", "--launcher", "slurm", "--hosts", "n1,n2", "--workload", "toy")
    known += ("--out", str(tmp_path / "my run"), "--budget-minutes", "5", "--telemetry", "off")
    done = harness(*known, "--dry-run")
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "#!/bin/bash" and {"#SBATCH --nodes=2", "#SBATCH --nodelist=n1,n2"} <= set(lines)
    assert shlex.split(lines[-1])[:4] == [sys.executable, "-m", "harness", "run"]
    assert {"slurm", "n1,n2", "toy", str(tmp_path / "my run"), "--budget-minutes"} <= set(shlex.split(lines[-1]))
    counted = harness(*[{"n1,n2": "2"}.get(word, word) for word in known], "--dry-run").stdout
    assert "#SBATCH --nodes=2" in counted and "nodelist" not in counted and "--hosts 2" in counted


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        ({"hosts": ("a", "b")}, ("--hosts", "--launcher local")),
        ({"head": "a"}, ("--head",)),
        ({"launcher": "manual"}, ("--launcher manual", "--hosts")),
        ({"launcher": "manuel", "hosts": ("a",)}, ("manuel", "manual")),
        ({"launcher": "manual", "hosts": ("a", "a")}, ("--hosts a",)),
        ({"launcher": "manual", "hosts": ("2",)}, ("--hosts 2", "--launcher manual")),
        ({"launcher": "slurm", "hosts": ("0",)}, ("--hosts 0",)),
        ({"launcher": "manual", "hosts": ("a; rm",)}, ("'a; rm'",)),
        ({"launcher": "manual", "hosts": ("a", "b"), "head": "a:99999"}, ("--head a:99999", "65535")),
        ({"launcher": "manual", "hosts": ("a", "b"), "head": "a:x"}, ("--head a:x", "65535")),
        ({"spread": (1,)}, ("--spread", "--hosts")),
        ({"launcher": "manual", "hosts": ("a", "b"), "spread": (3,)}, ("--spread 3", "2")),
        ({"launcher": "manual", "hosts": ("a", "b"), "spread": (1, 0)}, ("--spread 0",)),
    ],
    ids=str,
)
def test_hosts_that_make_no_sense_are_refused(asked, facts):
    with refused(*facts):
        make_plan(Request(platform="cpu", frameworks=("torch",), **asked), make_machine())


def test_a_number_of_hosts_is_a_plan_over_as_many():
    known = {"platform": "cpu", "devices": (4,), "workloads": ("toy",), "strategies": ("ddp",), "global_batch": 24}
    plan = make_plan(Request(launcher="slurm", hosts=("2",), frameworks=("torch",), **known), make_machine())
    assert {cell.spec.hosts for cell in plan.trials} == {2} and plan.where.hosts == ("", "")


def test_cells_that_need_one_host_are_rows_with_the_reason():
    known = {"launcher": "manual", "hosts": ("a", "b"), "platform": "cpu", "devices": (2, 3), "workloads": ("toy",)}
    known |= {"global_batch": 24, "frameworks": ("torch", "jax"), "strategies": ("single", "ddp", "async_sgd", "pmap")}
    plan = make_plan(Request(**known), make_machine())
    found = {(cell.spec.strategy, cell.spec.devices): (cell.status, cell.spec.hosts) for cell in plan.trials}
    assert found == {
        ("single", 1): ("planned", 1),
        ("ddp", 2): ("planned", 2),
        ("ddp", 3): ("skipped", 1),
        ("async_sgd", 2): ("planned", 2),
        ("async_sgd", 3): ("skipped", 1),
        ("pmap", 2): ("skipped", 2),
        ("pmap", 3): ("skipped", 1),
    }
    assert plan.where.hosts == ("a", "b")
    assert make_spec(devices=2, hosts=2).cell != make_spec(devices=2).cell


def test_a_cell_within_a_host_and_one_across_are_two_cells_of_a_plan():
    known = {"launcher": "manual", "hosts": ("a", "b"), "spread": (1, 2, 2), "devices": (2, 3, 4), "launches": 1}
    known |= {
        "workloads": ("mnist_cnn",),
        "global_batch": 24,
        "frameworks": ("torch",),
        "strategies": ("single", "ddp", "pipeline"),
    }
    machine = make_machine(gpus=2)
    plan = make_plan(Request(**known), machine)
    found = {(cell.spec.strategy, cell.spec.devices, cell.spec.hosts): cell.status for cell in plan.trials}
    assert found == {
        ("single", 1, 1): "planned",
        ("ddp", 2, 1): "planned",
        ("ddp", 2, 2): "planned",
        ("ddp", 3, 1): "skipped",
        ("ddp", 4, 1): "skipped",
        ("ddp", 4, 2): "planned",
        ("pipeline", 2, 1): "planned",
        ("pipeline", 2, 2): "skipped",
        ("pipeline", 3, 1): "skipped",
        ("pipeline", 4, 1): "skipped",
        ("pipeline", 4, 2): "skipped",
    }
    assert len(plan.trials) == len(found)


def test_the_reference_of_a_cell_over_hosts_is_made_on_one_device_of_one():
    spec = make_spec(workload="toy", strategy="ddp", devices=4, hosts=2)
    twin = float64_twin(spec)
    assert twin is not None and (twin.devices, twin.hosts) == (1, 1)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def pair() -> tuple[Wire, Wire]:
    one, other = connected()
    return Wire(one), Wire(other)


def test_frames_arrive_whole_and_beats_are_not_frames(monkeypatch):
    monkeypatch.setattr(wire, "PIECE", 10)
    one, other = pair()
    content = os.urandom(10_001)
    threading.Thread(target=lambda: (one.beat(), one.send("file", content, name="ä\n"), one.send("end"))).start()
    frame = other.receive()
    assert (frame.kind, frame.says, frame.content) == ("file", {"name": "ä\n"}, content)
    assert other.expect("end").content == b""


@pytest.mark.parametrize("end", ["silent", "closed", "cut", "nonsense"])
def test_who_is_silent_closes_or_talks_nonsense_is_lost(monkeypatch, end):
    monkeypatch.setattr(wire, "SILENT_SECONDS", 0.2)
    raw, theirs = connected()
    other = Wire(theirs)
    if end == "closed":
        raw.close()
    elif end == "cut":
        raw.sendall(b'{"kind": "file", "bytes": 100}\nabc')
        raw.close()
    elif end == "nonsense":
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(Lost):
        other.receive()
    raw.close()


def test_both_sides_must_know_the_token_and_none_answers_its_own_challenge():
    for ours, theirs in (("secret", "secret"), ("secret", "guess")):
        one, other = pair()
        found: list[object] = []

        def agent(other=other, found=found, theirs=theirs) -> None:
            try:
                found.append(prove(other, theirs, side="agent", other="harness"))
            except Refused as error:
                found.append(error)

        thread = threading.Thread(target=agent)
        thread.start()
        if ours == theirs:
            prove(one, ours, side="harness", other="agent")
        else:
            with pytest.raises(Refused):
                prove(one, ours, side="harness", other="agent")
        thread.join()
        assert isinstance(found[0], Refused) == (ours != theirs)
    one, other = pair()
    frames = iter(other.receive, None)
    threading.Thread(target=lambda: [other.send(f.kind, **f.says) for _, f in zip("12", frames, strict=False)]).start()
    with pytest.raises(Refused):  # an echo knows nothing
        prove(one, "secret", side="harness", other="agent")
