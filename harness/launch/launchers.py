"""Where a run's ranks are started: on this machine, or by an adapter on several hosts.

An adapter is a function that returns a Starter: harness/planning/hosts.py lists them.
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from harness.launch import gathering
from harness.launch.host_agent import TOKEN
from harness.launch.hosts import HostsLauncher
from harness.launch.launcher import Launcher
from harness.launch.local import LocalLauncher
from harness.machine.devices import Machine
from harness.planning.hosts import adapters
from harness.planning.plan import HostsRequest
from harness.spec.errors import check_name

CONNECT_SECONDS = 300.0
"""How long the run waits for all hosts."""


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The agents that an adapter starts: one on each host."""

    hosts: tuple[str, ...]  # names; "" in a dry run: one that is chosen when the run begins
    head: str  # HOST:PORT of the harness
    token: str
    run: str = ""  # the command of the run, as in a shell

    def command(self, host: str, *, python: str = "python") -> list[str]:
        """What runs on a host. The token is not part of it: others would see it in the list of processes."""
        return [python, "-m", "harness.launch.host_agent", "--head", self.head, "--host", host]

    def variables(self) -> dict[str, str]:
        """The environment variables of the command, beside those of the host."""
        return {TOKEN: self.token}

    def line(self, host: str) -> str:
        """The command as a line for a shell."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables().items())
        return f"{variables} {shlex.join(self.command(host))}"


class Starter(Protocol):
    """What an adapter does. Each method may be called from the harness alone, in this order."""

    def nodes(self, count: int) -> Sequence[str]:
        """The names of as many hosts, this machine first if it is one of them. Raises MachineUnfit."""
        ...

    def dry_run(self, agents: Agents) -> str:
        """What `start` would do, as text: commands, a job script or a placement."""
        ...

    def start(self, agents: Agents, say: Callable[[str], None]) -> None:
        """Start all agents, or tell the user by `say` how to. Raises MachineUnfit."""
        ...

    def problem(self) -> str:
        """Why an agent will not come, or ""."""
        ...

    def stop(self) -> None:
        """End what was started, if it has not ended by itself."""
        ...


def starter(name: str) -> Starter:
    """The adapter of that name. Raises UsageError for one that is not installed, though a plan names it."""
    check_name("--launcher", name, adapters())
    module, _, function = adapters()[name].partition(":")
    return getattr(importlib.import_module(module), function)()


def dry_run(request: HostsRequest, run: str) -> str:
    """What would be started on the hosts of a run, as text. `run`: its command, as in a shell. Raises UsageError."""
    head = request.head or request.hosts[0] or "FIRST_HOST"
    shown = head if ":" in head else f"{head}:PORT"
    return starter(request.launcher).dry_run(Agents(hosts=request.hosts, head=shown, token="TOKEN", run=run))


def to_the_user(text: str) -> None:
    """Write a line that a display would fold, though the user must copy it."""
    with contextlib.suppress(OSError):  # nobody reads it
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def opened(
    request: HostsRequest,
    machine: Machine,
    *,
    frameworks: Iterable[str],
    say: Callable[[str], None] = to_the_user,
) -> Iterator[Launcher]:
    """The launcher of a run, closed afterwards: nothing is left on this machine or any of the hosts. With hosts, all
    have connected and are alike.

    Raises MachineUnfit for hosts that differ or do not come.
    """
    if not request.hosts:
        with contextlib.closing(LocalLauncher(machine)) as launcher:
            yield launcher
        return
    if not all(request.hosts):
        chosen = starter(request.launcher).nodes(len(request.hosts))
        request = replace(request, hosts=tuple(chosen))
    sought = gathering.wanted(request.hosts, frameworks)
    adapter, token = starter(request.launcher), secrets.token_urlsafe(24)
    with contextlib.ExitStack() as held:
        server = held.enter_context(gathering.listening(request.head or request.hosts[0]))
        name = (request.head or request.hosts[0]).partition(":")[0]
        agents = Agents(hosts=request.hosts, head=f"{name}:{server.getsockname()[1]}", token=token)
        held.callback(adapter.stop)
        adapter.start(agents, say)
        come = partial(gathering.gather, seconds=CONNECT_SECONDS, say=say, problem=adapter.problem)
        hosts = come(server, token, sought)
        for host in hosts:
            held.callback(host.leave)
        launcher = HostsLauncher(hosts)
        for link in launcher.links:
            say(str(link))
        server.close()
        yield launcher
