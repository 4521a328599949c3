"""Runs over two hosts that are network namespaces, started by hand, by a real Slurm and by a real Ray cluster.

`make test-hosts`. Each fault is tried under each launcher; `-s` prints the seconds until all has ended, for the table
in docs/hosts.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from clusters import CLUSTERS, Cluster
from network import ADDRESSES, Network, missing
from refusals import names
from test_launch import wait_for

from harness.results import store
from harness.spec import Cause, Status, TrialResult

SECONDS = 60  # that long something may take to begin or end, however busy the machine is
COMMAND = re.compile(r"^on (\S+), run: (.*)$", re.MULTILINE)
OURS = "harness"  # in the command line of each process of a run
LAUNCHERS = list(CLUSTERS)

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def cluster(network: Network, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    kind = CLUSTERS[request.param]
    if reason := kind.missing():
        pytest.skip(reason)
    cluster = kind(network, tmp_path / "cluster")
    yield cluster
    cluster.close()


class Run:
    """A run over both hosts, whose harness is on n1."""

    def __init__(self, cluster: Cluster, *arguments: str, workload: str = "toy", hosts: str = "") -> None:
        self.cluster, self.out, self.log = cluster, cluster.place / "run", cluster.place / "head"
        given = ["--platform", "cpu", "--workload", workload, "--out", str(self.out), "--launcher", cluster.launcher]
        given += ["--hosts", hosts or ",".join(cluster.hosts), "--head", ADDRESSES["n1"], *arguments]
        self.begin("run", *given)

    def begin(self, *arguments: str) -> None:
        self.log.unlink(missing_ok=True)
        self.process = self.cluster.spawn("n1", [self.cluster.python, "-m", "harness", *arguments], "head")
        if self.cluster.launcher == "manual":
            assert wait_for(lambda: len(self.commands) == 2 or self.process.poll() is not None, SECONDS), self.said
            self.cluster.agents(self.commands)

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8")

    @property
    def commands(self) -> dict[str, str]:
        return dict(COMMAND.findall(self.said))

    def rows(self) -> dict[str, TrialResult]:
        return {row.spec.strategy: row for row in store.read(self.out)}

    def under_way(self, strategy: str) -> list[str]:
        """Wait until both hosts have begun with this strategy. The folders of its launch, one for each host."""
        assert wait_for(lambda: len(self.folders(strategy)) == 2, SECONDS), self.said
        return self.folders(strategy)

    def folders(self, strategy: str) -> list[str]:
        found = []
        for path in self.cluster.place.glob("n*/*/launch-*/order.json"):  # a cluster may give both hosts one TMPDIR
            with contextlib.suppress(FileNotFoundError):  # the launch has ended
                found += [str(path.parent)] * (strategy in path.read_text("utf-8"))
        return found

    def left(self) -> list[str]:
        """Processes of the run on any host, and files of its launches."""
        processes = [p for host in ADDRESSES for p in self.cluster.network.processes(host, OURS)]
        return [str(p) for p in processes] + [str(p) for p in self.cluster.place.glob("n*/*/launch-*")]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to a host while rank 1, which is on n2, hangs."""

    what: str
    code: int  # of the run
    lost: bool = True  # whether n2 is lost


FAULTS = {
    "agent": Fault(what="the agent of a host is killed", code=3),
    "power": Fault(what="a host is switched off", code=3),
    "link": Fault(what="the link of a host goes down", code=3),
    "frozen": Fault(what="a host freezes", code=3),
    "harness": Fault(what="the harness is killed", code=-signal.SIGKILL, lost=False),
    "ctrl-c": Fault(what="Ctrl-C", code=128 + signal.SIGINT, lost=False),
}


@dataclass(frozen=True, kw_only=True)
class Late:
    """A launch that must be ended while the run goes on."""

    what: str
    strategy: str
    status: Status
    named: str  # in the row's reason
    seconds: float = 0.0  # that it may go on

    @property
    def arguments(self) -> list[str]:
        return ["--timeout", f"{TIMEOUT:g}"] if self.seconds else []


TIMEOUT = 16.0  # seconds; half of it may pass without progress
ENDED = {
    "rank": Late(what="a rank is killed", strategy="hang_rank1", status="killed", named="rank 1"),
    "stuck": Late(
        what="a launch makes no progress",
        strategy="hang_rank1",
        status="hung",
        named="no progress",
        seconds=TIMEOUT / 2,
    ),
    "late": Late(
        what="a launch exceeds its time limit",
        strategy="slow",
        status="timeout",
        named=f"{TIMEOUT:g} s",
        seconds=TIMEOUT,
    ),
}


def cause(name: str, run: Run) -> None:
    """Make a fault happen."""
    network = run.cluster.network
    if name == "power":
        network.kill("n2")
    elif name == "link":
        network.link("n2", "down")
    elif name == "frozen":
        signal_all(network, signal.SIGSTOP)
    elif name == "agent":
        agent_of(network, "n2").kill()
    else:
        run.process.send_signal(signal.SIGKILL if name == "harness" else signal.SIGINT)


def agent_of(network: Network, host: str) -> psutil.Process:
    """The agent of a host. A process that it is about to start has its command line for a moment."""
    named = {p.pid: p for p in network.processes(host, "harness.launch.host_agent") if "--host" in p.cmdline()}
    (agent,) = [p for p in named.values() if p.ppid() not in named]
    return agent


def signal_all(network: Network, number: int) -> None:
    for process in network.processes("n2"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], float]]:
    """Seconds by fault and launcher; printed at the end."""
    seconds: dict[tuple[str, str], float] = {}
    yield seconds
    print(f"\n| seconds until all has ended (load {os.getloadavg()[0]:.1f}) | {' | '.join(LAUNCHERS)} |")
    named = {name: fault.what for name, fault in {**ENDED, **FAULTS}.items()}
    for name, what in {**named, "head": "a stale head"}.items():
        found = [seconds.get((name, launcher)) for launcher in LAUNCHERS]
        print(f"| {what} | {' | '.join('' if each is None else f'{each:.1f}' for each in found)} |")


ALL = {
    "torch": "ddp,average_gradients,fsdp,local_sgd,async_sgd,data_parallel",
    "jax": "jit_sharding,fsdp,multi_process,shard_map,pmap",
    "tf": "multi_worker_mirrored,parameter_server,mirrored",
}
ONE_OF_EACH = {"torch": "ddp", "jax": "multi_process", "tf": "multi_worker_mirrored"}
"""A cluster starts the agents and sets variables that a framework may read. The strategies are the same code."""
ON_ONE_HOST = {"data_parallel", "shard_map", "pmap", "mirrored"}
"""Rows with a reason."""


@pytest.mark.frameworks
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("cluster", "workload", "chosen"),
    [
        ("manual", "toy", ALL),
        ("manual", "mnist_cnn", {"torch": "pipeline_schedules"}),
        ("slurm", "toy", ONE_OF_EACH),
        ("ray", "toy", ONE_OF_EACH),
    ],
    indirect=["cluster"],
)
def test_strategies_are_proved_over_two_hosts(cluster, workload, chosen):
    """Each host has two CPU devices."""
    given = ("--framework", ",".join(chosen), "--strategy", ",".join(chosen.values()), "--devices", "4")
    run = Run(cluster, *given, "--size", "base" if workload == "toy" else "tiny", workload=workload)
    assert run.process.wait(25 * SECONDS) == 0, run.said
    found = {(row.spec.framework, row.spec.strategy): row for row in store.read(run.out)}
    assert set(found) == {(name, each) for name, strategies in chosen.items() for each in strategies.split(",")}
    for (_, strategy), row in found.items():
        if strategy in ON_ONE_HOST:
            assert row.status == "skipped" and row.reason
            continue
        assert row.status == "ok" and row.parity and row.parity.passed, row.reason
        assert [rank.host for rank in row.ranks] == [host for host in cluster.hosts for _ in range(2)]


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("cluster", LAUNCHERS, indirect=True)
def test_a_fault_ends_the_launch_on_all_hosts_and_nothing_is_left(cluster, name, table):
    fault = FAULTS[name]
    run = Run(cluster, "--framework", "fake", "--strategy", "hang_rank1,replicated", "--devices", "2")
    run.under_way("hang_rank1")
    began = time.monotonic()
    cause(name, run)
    assert run.process.wait(2 * SECONDS) == fault.code, run.said
    ended = time.monotonic()
    if name == "frozen":
        signal_all(cluster.network, signal.SIGCONT)
    assert wait_for(lambda: not processes_left(run), SECONDS), run.left()
    if name != "frozen":
        ended = time.monotonic()
    table[name, cluster.launcher] = ended - began
    if fault.lost:
        (row,) = [row for row in run.rows().values() if row.cause and row.cause.kind == "host_lost"]
        assert row.cause == Cause(kind="host_lost", data={"host": cluster.hosts[1]})


@pytest.mark.parametrize("name", ENDED)
@pytest.mark.parametrize("cluster", LAUNCHERS, indirect=True)
def test_a_launch_that_fails_or_is_late_ends_on_all_hosts_and_the_run_goes_on(cluster, name, table):
    late, network = ENDED[name], cluster.network
    given = ["--framework", "fake", "--strategy", f"{late.strategy},replicated", "--devices", "2"]
    run = Run(cluster, *given, *late.arguments)
    folders = run.under_way(late.strategy)
    began = time.monotonic() + late.seconds
    assert wait_for(lambda: all(ranks(network, host, folders) for host in ADDRESSES), SECONDS), run.said
    if name == "rank":
        (rank,) = ranks(network, "n2", folders)
        began = time.monotonic()
        rank.kill()
    assert wait_for(lambda: not of_launch(network, folders), SECONDS), run.said
    table[name, cluster.launcher] = time.monotonic() - began
    assert run.process.wait(2 * SECONDS) == 1, run.said
    rows = run.rows()
    assert (rows[late.strategy].status, rows["replicated"].status) == (late.status, "ok")
    names(rows[late.strategy].reason, late.named)


def of_launch(network: Network, folders: list[str], *hosts: str) -> list[psutil.Process]:
    """The processes of a launch on some hosts, by default on all."""
    return [p for host in hosts or ADDRESSES for folder in folders for p in network.processes(host, folder)]


def ranks(network: Network, host: str, folders: list[str]) -> list[psutil.Process]:
    """Those that train."""
    return [p for p in of_launch(network, folders, host) if "harness.launch.supervisor" not in p.cmdline()]


def processes_left(run: Run) -> list[psutil.Process]:
    return [p for host in ADDRESSES for p in run.cluster.network.processes(host, OURS)]


@pytest.mark.parametrize("cluster", ["manual"], indirect=True)
def test_a_host_behind_a_slow_link_is_not_lost(cluster):
    """It sends 1 Mbit/s."""
    cluster.network.limit("n2", 1)
    run = Run(cluster, "--framework", "fake", "--strategy", "replicated", "--devices", "4")
    assert run.process.wait(3 * SECONDS) == 0, run.said
    assert run.rows()["replicated"].status == "ok"


@pytest.mark.parametrize("cluster", ["manual"], indirect=True)
def test_a_node_that_stops_at_times_is_proved_and_not_timed(cluster):
    """All of its processes run for half of the time. A timed step takes longer than the pauses are apart."""
    run = Run(cluster, "--framework", "fake", "--strategy", "slow_when_timed", "--devices", "4")
    while run.process.poll() is None:
        signal_all(cluster.network, signal.SIGSTOP)
        time.sleep(0.3)
        signal_all(cluster.network, signal.SIGCONT)
        time.sleep(0.3)
    assert run.process.returncode == 1, run.said
    row = run.rows()["slow_when_timed"]
    assert row.status == "killed" and row.parity and row.parity.passed
    names(row.reason, "n2", "SIGSTOP")


@pytest.mark.parametrize("cluster", ["slurm", "ray"], indirect=True)
def test_a_cluster_whose_head_is_gone_is_an_error_in_one_line(cluster, table):
    for process in cluster.network.processes("n1"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    began = time.monotonic()
    run = Run(cluster, "--framework", "fake", "--strategy", "replicated", "--devices", "2")
    assert run.process.wait(3 * SECONDS) == 3, run.said
    table["head", cluster.launcher] = time.monotonic() - began
    names(run.said.strip().splitlines()[-1], "slurm" if cluster.launcher == "slurm" else "RAY_ADDRESS")


@pytest.mark.parametrize("cluster", ["manual"], indirect=True)
def test_an_agent_of_a_run_that_has_ended_says_so(cluster, table):
    run = Run(cluster, "--framework", "fake", "--strategy", "replicated", "--devices", "2")
    commands = run.commands
    assert run.process.wait(2 * SECONDS) == 0
    assert wait_for(lambda: not processes_left(run), SECONDS)
    began = time.monotonic()
    cluster.agents(commands)
    assert wait_for(lambda: not processes_left(run), 3 * SECONDS)
    table["head", "manual"] = time.monotonic() - began
    names((cluster.place / "agent-n1").read_text("utf-8").strip().splitlines()[-1], "--head", "10.99.0.1")


@pytest.mark.parametrize("cluster", ["slurm", "ray"], indirect=True)
def test_a_cluster_chooses_as_many_hosts_as_asked_for(cluster):
    run = Run(cluster, "--framework", "fake", "--strategy", "replicated", "--devices", "2", hosts="2")
    assert run.process.wait(3 * SECONDS) == 0, run.said
    assert {rank.host for rank in run.rows()["replicated"].ranks} == set(cluster.hosts)


@pytest.mark.parametrize("hosts", ["n1,n2", "2"])
@pytest.mark.parametrize("cluster", ["slurm"], indirect=True)
def test_the_job_script_of_dry_run_runs_as_it_is(cluster, hosts):
    """By sbatch: the harness is in the job, on its first node."""
    known = ("--framework", "fake", "--strategy", "replicated", "--devices", "4", "--dry-run")
    run = Run(cluster, *known, hosts=hosts)
    assert run.process.wait(SECONDS) == 0
    script = cluster.place / "job"
    script.write_text(run.said, "utf-8")
    path = f"{Path(cluster.python).parent}{os.pathsep}{os.environ['PATH']}"
    submit = ["sbatch", "--wait", "--output", str(cluster.place / "head"), str(script)]
    job = cluster.spawn("n1", submit, "job-id", PATH=path)
    assert job.wait(3 * SECONDS) == 0, run.said
    assert [rank.host for rank in run.rows()["replicated"].ranks] == ["n1", "n1", "n2", "n2"]
