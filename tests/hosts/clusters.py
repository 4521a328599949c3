"""What starts the agents on the hosts of a network: a user, a Slurm of two nodes, or a Ray cluster of two nodes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from conftest import FAKES, ROOT
from network import ADDRESSES, Network

RAY_PYTHON = os.environ.get("RAY_PYTHON", "")
"""An interpreter that has both Ray and the frameworks."""
SECONDS = 60
PROGRAMS = {"slurm": ("slurmctld", "slurmd", "srun", "sinfo", "munged")}
SLURM = """\
ClusterName=two
SlurmctldHost={host}({ADDRESSES[n1]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmdSpoolDir={place}/spool-%n
StateSaveLocation={place}/state
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
KillWait=5
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Cluster(ABC):
    """Two nodes, on the hosts of a network. Their daemons are called `services`."""

    launcher: str
    hosts = tuple(ADDRESSES)
    """As --hosts names them."""
    python = sys.executable

    def __init__(self, network: Network, place: Path) -> None:
        """Start the nodes. `place`: a new folder for all files."""
        self.network, self.place = network, place
        self.variables: dict[str, str] = {}
        self._services: dict[str, list[subprocess.Popen[bytes]]] = {host: [] for host in ADDRESSES}
        place.mkdir(parents=True)
        try:
            for host in ADDRESSES:
                self.start_node(host)
            self.wait()
        except BaseException:
            self.close()
            raise

    @staticmethod
    @abstractmethod
    def missing() -> str:
        """What this machine lacks for it, or ""."""

    @abstractmethod
    def start_node(self, host: str) -> None:
        """Start the services of a host."""

    def wait(self) -> None:
        """Wait until all nodes are there."""
        return

    def agents(self, commands: dict[str, str]) -> None:
        """Start what a user would start on each host: `commands`, which the run has printed."""
        return

    def spawn(self, host: str, command: Sequence[str], log: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process on a host, with the code of these tests."""
        folder = self.place / host
        folder.mkdir(exist_ok=True)
        path = os.pathsep.join(map(str, (ROOT, FAKES)))
        known = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)} | self.variables | variables
        with (self.place / log).open("ab") as file:
            return subprocess.Popen(self.network.on(host, command), env=known, cwd=folder, stdout=file, stderr=file)

    def service(self, host: str, *command: str) -> None:
        """Start a service that stays in the foreground."""
        self._services[host].append(self.spawn(host, command, f"{host}-{Path(command[0]).name}.log"))

    def close(self) -> None:
        for process in (process for started in self._services.values() for process in started):
            process.send_signal(signal.SIGTERM)
        for process in (process for started in self._services.values() for process in started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def until(self, found: Sequence[str], host: str, command: Sequence[str]) -> None:
        """Wait until a command on a host says all of this."""
        deadline = time.monotonic() + SECONDS
        while True:
            known = os.environ | self.variables
            done = subprocess.run(
                self.network.on(host, command), env=known, capture_output=True, encoding="utf-8", check=False
            )
            if done.returncode == 0 and all(text in done.stdout for text in found):
                return
            assert time.monotonic() < deadline, done.stdout + done.stderr
            time.sleep(0.5)


class ByHand(Cluster):
    """No cluster: a user starts the printed commands."""

    launcher = "manual"

    @staticmethod
    def missing() -> str:
        return ""

    def start_node(self, host: str) -> None:
        """There are no services."""

    def agents(self, commands: dict[str, str]) -> None:
        for host, line in commands.items():
            words = shlex.split(line)
            (token,) = [word for word in words if word.startswith("LIKEFORLIKE_")]
            name, _, value = token.partition("=")
            command = [sys.executable, *words[words.index("-m") :]]
            self._services[host].append(self.spawn(host, command, f"agent-{host}", **{name: value}))


class SlurmNodes(Cluster):
    """slurmctld on n1, a slurmd on each host, and one munged, whose socket all hosts have."""

    launcher = "slurm"

    @staticmethod
    def missing() -> str:
        lacking = [name for name in PROGRAMS["slurm"] if not shutil.which(name)]
        return f"Slurm is not installed: no {', '.join(lacking)} (apt-get install slurm-wlm munge)" if lacking else ""

    def start_node(self, host: str) -> None:
        if host == "n1":
            self._configure()
            munge = self.place / "munge"
            flags = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            known = [f"--{flag}={munge / name}" for flag, name in flags.items()]
            self.service("n1", "munged", "--force", "--foreground", *known)
            self.until((), "n1", ["munge", f"--socket={munge / 'socket'}", "--no-input"])
            self.service("n1", "slurmctld", "-D", "-c")
        self.service(host, "slurmd", "-D", "-N", host)

    def wait(self) -> None:
        self.until(("2 idle",), "n1", ["sinfo", "--noheader", "--format", "%D %T"])

    def _configure(self) -> None:
        munge = self.place / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        for folder in (self.place, *self.place.parents):  # munged looks whether others could replace its socket
            if not os.access(folder, os.X_OK) or folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(folder.stat().st_mode | 0o055)
        (self.place / "state").mkdir()
        nodes = [
            f"NodeName={host} NodeHostname={socket.gethostname()} NodeAddr={address} CPUs=2 State=UNKNOWN"
            for host, address in ADDRESSES.items()
        ]
        conf = self.place / "slurm.conf"
        known = {"host": socket.gethostname(), "place": self.place, "ADDRESSES": ADDRESSES, "nodes": "\n".join(nodes)}
        conf.write_text(SLURM.format(**known), "utf-8")
        version = "v1" if Path("/sys/fs/cgroup/memory").exists() else "v2"
        lines = [f"CgroupPlugin=cgroup/{version}", "CgroupMountpoint=/sys/fs/cgroup", "IgnoreSystemd=yes"]
        (self.place / "cgroup.conf").write_text("\n".join(lines) + "\n", "utf-8")
        self.variables["SLURM_CONF"] = str(conf)


class RayNodes(Cluster):
    """A head on n1, a worker on n2."""

    launcher = "ray"
    hosts = tuple(ADDRESSES.values())
    python = RAY_PYTHON

    @staticmethod
    def missing() -> str:
        return "" if RAY_PYTHON else "RAY_PYTHON names no interpreter that has Ray"

    def start_node(self, host: str) -> None:
        self.variables |= {"RAY_ADDRESS": f"{ADDRESSES['n1']}:6399", "RAY_USAGE_STATS_ENABLED": "0"}
        where = ["--head", "--port=6399", "--include-dashboard=false", f"--temp-dir={self._sockets()}"]
        if host != "n1":
            where = [f"--address={self.variables['RAY_ADDRESS']}"]
        sizes = ["--num-cpus=1", f"--object-store-memory={100 * 2**20}"]
        ray = [self.python, "-m", "ray.scripts.scripts", "start"]
        self.service(host, *ray, f"--node-ip-address={ADDRESSES[host]}", *where, *sizes, "--block")
        if host == "n1":
            self._listens()

    def wait(self) -> None:
        self._listens()
        alive = "import ray; ray.init(log_to_driver=False); print(*(n['NodeManagerAddress'] for n in ray.nodes()))"
        self.until(tuple(ADDRESSES.values()), "n1", [self.python, "-c", alive])

    def _listens(self) -> None:
        knock = "import socket; socket.create_connection(('10.99.0.1', 6399)); print('here')"
        self.until(("here",), "n1", [sys.executable, "-c", knock])

    def _sockets(self) -> Path:
        """Ray's folder. Its sockets are below it, and a socket's path has at most 107 letters."""
        return Path(f"/tmp/ray-{os.getpid()}")

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._sockets(), ignore_errors=True)


CLUSTERS = {kind.launcher: kind for kind in (ByHand, SlurmNodes, RayNodes)}
