"""--launcher ray: starts the agents as Ray tasks, one on each node of --hosts, all of them or none.

--hosts are addresses of nodes, as `ray list nodes` shows them. RAY_ADDRESS names the cluster. Each agent reserves one
core and all GPUs of its node.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.launch.launchers import Agents, Starter
from harness.spec.errors import MachineUnfit

KNOCK_SECONDS = 5.0
READY_SECONDS = 60.0
STOP_SECONDS = 2.0


class Ray:
    """A placement group with a bundle on each node, and a task in each bundle."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._group: Any = None
        self._tasks: dict[Any, str] = {}  # the host of each

    def nodes(self, count: int) -> Sequence[str]:
        """The first nodes of the cluster, this one before the others."""
        self._connect()
        alive = [node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]]
        here = importlib.import_module("ray.util").get_node_ip_address()
        self._ray.shutdown()
        if len(alive) < count:
            raise MachineUnfit(f"--hosts {count}: the Ray cluster has {len(alive)} nodes: {', '.join(alive) or 'none'}")
        return sorted(alive, key=lambda name: name != here)[:count]

    def dry_run(self, agents: Agents) -> str:
        """The placement, without what only the cluster knows."""
        bundles = [
            f"{host}: {{'CPU': 1, 'GPU': all, 'node:{host}': 0.001}}" if host else "any node: {'CPU': 1, 'GPU': all}"
            for host in agents.hosts
        ]
        return "\n".join(["placement group STRICT_SPREAD", *bundles, agents.line("NODE")])

    def start(self, agents: Agents, say: Callable[[str], None]) -> None:
        """Reserve the nodes and start the tasks. Raises MachineUnfit if Ray or a node is missing."""
        self._connect()
        self._reserve([_bundle(host, self._ray.nodes()) for host in agents.hosts])
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        for index, host in enumerate(agents.hosts):
            where = scheduling.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            bundle = self._group.bundle_specs[index]
            options = {"num_cpus": 1, "num_gpus": bundle.get("GPU", 0), "max_retries": 0, "scheduling_strategy": where}
            task = self._ray.remote(run_agent).options(**options)
            self._tasks[task.remote(agents.command(host)[1:], agents.variables())] = host
            say(f"started on {host}")

    def problem(self) -> str:
        """What an agent said last that has ended."""
        if not self._tasks:
            return ""
        for task in self._ray.wait(list(self._tasks), num_returns=1, timeout=0)[0]:
            try:
                return f"the agent on {self._tasks[task]} ended: {self._ray.get(task)}"
            except Exception as error:  # Ray has many; a worker or a node that died is one
                return f"the agent on {self._tasks[task]} ended: {type(error).__name__}"
        return ""

    def stop(self) -> None:
        """Wait for the agents, which end when the harness does, and give the nodes back."""
        if self._ray is None or not self._ray.is_initialized():
            return
        if tasks := list(self._tasks):
            for task in self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)[1]:
                with contextlib.suppress(Exception):
                    self._ray.cancel(task, force=True)
        if self._group is not None:
            importlib.import_module("ray.util").remove_placement_group(self._group)
        self._ray.shutdown()

    def _connect(self) -> None:
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise MachineUnfit("--launcher ray: Ray is not installed here: pip install ray") from error
        try:
            _knock(address := os.environ.get("RAY_ADDRESS", "auto"))
            self._ray.init(address=address, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise MachineUnfit(f"--launcher ray: no cluster: {reason}; set RAY_ADDRESS=HOST:PORT") from error

    def _reserve(self, bundles: list[dict[str, float]]) -> None:
        self._group = importlib.import_module("ray.util").placement_group(bundles, strategy="STRICT_SPREAD")
        try:
            self._ray.get(self._group.ready(), timeout=READY_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            wanted = "a core and all GPUs of each node"
            raise MachineUnfit(f"--launcher ray: {wanted} are not free within {READY_SECONDS:g} s") from error


def _knock(address: str) -> None:
    """Raises OSError if nobody listens at "HOST:PORT": Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), KNOCK_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{address}: {error.strerror or error}") from error


def _bundle(host: str, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What an agent reserves on its node. Raises MachineUnfit if there is no such node."""
    alive = {node["NodeManagerAddress"]: node["Resources"] for node in nodes if node["Alive"]}
    if host not in alive:
        raise MachineUnfit(f"--hosts {host}: Ray has no such node; it has {', '.join(alive) or 'none'}")
    found = {"CPU": 1.0, f"node:{host}": 0.001}
    gpus = alive[host].get("GPU", 0)
    return found | {"GPU": float(gpus)} if gpus else found


def run_agent(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run an agent under the Python of a Ray worker; returns what it said last. Ray runs it on a node."""
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def make() -> Starter:
    """The adapter."""
    return Ray()
