"""Several hosts in a plan: what the user asks for, and which cells can be spread over them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.machine.devices import Machine
from harness.planning.plan import LOCAL, HostsRequest, Planned
from harness.planning.request_checks import MAX_CPU_DEVICES
from harness.planning.run_request import Request
from harness.spec import Platform, StrategySpec, TrialSpec, workload_packages
from harness.spec.entry_points import announced
from harness.spec.errors import UsageError, check_name

ADAPTERS = {
    "manual": "harness.launch.manual:make",
    "slurm": "harness.launch.slurm:make",
    "ray": "harness.launch.ray_cluster:make",
}
"""The adapters of this suite: name to "module:function"."""
ENTRY_POINTS = "likeforlike.launchers"
MOST_HOSTS = 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


def adapters() -> dict[str, str]:
    """All adapters, those of installed packages included: name to "module:function".

    A package of one's own joins by an entry point in the group "likeforlike.launchers".
    """
    return announced(ENTRY_POINTS) | ADAPTERS


def counted(request: Request) -> Request:
    """The request with one entry in `hosts` for each host: a number of hosts becomes as many that have no name yet.

    Raises UsageError for a number that makes no sense.
    """
    if len(request.hosts) != 1 or not request.hosts[0].isdecimal():
        return request
    if not 1 <= (count := int(request.hosts[0])) <= MOST_HOSTS:
        raise UsageError(f"--hosts {count}: allowed are 1 to {MOST_HOSTS}, or names such as node1,node2")
    if request.launcher == "manual":
        raise UsageError(f"--hosts {count}: --launcher manual starts nothing, so name the hosts: --hosts node1,node2")
    return replace(request, hosts=("",) * count)


def hosts_of(request: Request) -> HostsRequest:
    """The hosts that a request names. Raises UsageError for names and flags that do not fit together."""
    launcher, hosts = request.launcher, request.hosts
    check_name("--launcher", launcher, [LOCAL, *adapters()])
    if launcher == LOCAL and (hosts or request.head):
        flag = "--hosts" if hosts else "--head"
        others = ", ".join(adapters())
        raise UsageError(
            f"{flag}: --launcher local runs on this machine alone; add --launcher ({others}), or leave it out"
        )
    if launcher != LOCAL and not hosts:
        raise UsageError(f"--launcher {launcher}: name the hosts, e.g. --hosts node1,node2, or say how many")
    for name in filter(None, hosts):
        if not NAME.fullmatch(name):
            raise UsageError(f"--hosts {name!r}: must be a host name, an IPv4 address, or a number of hosts")
        if hosts.count(name) > 1:
            raise UsageError(f"--hosts {name}: is named twice; name each host once")
    port = request.head.rpartition(":")[2] if ":" in request.head else "0"
    if not (port.isdecimal() and int(port) < 2**16):
        raise UsageError(f"--head {request.head}: the port {port!r} must be a number from 0 to 65535; or leave it out")
    if hosts and request.training:
        raise UsageError("--hosts: train runs on this machine alone; use run, or leave out --hosts and --launcher")
    for name in workload_packages.expand(request.workloads) if hosts else ():
        if not workload_packages.is_ours(name):
            raise UsageError(
                f"--hosts: {name} is not of the suite, and nothing checks that its code is the same on all hosts; "
                "choose another --workload, or leave out --hosts and --launcher"
            )
    return HostsRequest(launcher=launcher, hosts=hosts, head=request.head)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Over how many hosts the devices of cells are spread: each of `counts`. `most`: devices that one host has."""

    counts: tuple[int, ...]
    most: int


def spread_of(request: Request, machine: Machine, platform: Platform) -> Spread:
    """What a request says of it. Raises UsageError for numbers of hosts that there are not."""
    hosts = len(request.hosts)
    if request.spread and not hosts:
        raise UsageError("--spread: is for several hosts; name them by --hosts, or leave it out")
    for count in request.spread:
        if not 1 <= count <= hosts:
            raise UsageError(f"--spread {count}: allowed are 1 to {hosts} (the number of --hosts)")
    most = len(machine.gpus) if platform == "gpu" else MAX_CPU_DEVICES
    return Spread(counts=request.spread or (max(1, hosts),), most=most)


def spread(cells: Sequence[Planned], strategy: StrategySpec, over: Spread) -> list[Planned]:
    """The cells, each over every number of hosts; those on one device stay on the first. Some become impossible."""
    if over.counts == (1,):
        return list(cells)
    found: list[Planned] = []
    for cell in cells:
        counts = sorted(over.counts) if cell.spec.devices > 1 else [1]
        apart = [_spread(cell, strategy, hosts, over.most) for hosts in counts]
        # what cannot be spread evenly stays the cell on one host, which may be there already
        found += [each for index, each in enumerate(apart) if all(each.spec != other.spec for other in apart[:index])]
    return found


def _spread(cell: Planned, strategy: StrategySpec, hosts: int, most: int) -> Planned:
    reason = _why_not(cell.spec, strategy, hosts, most)
    if cell.spec.devices % hosts == 0:
        cell = replace(cell, spec=replace(cell.spec, hosts=hosts))
    return replace(cell, status="skipped", reason=reason) if reason and cell.status == "planned" else cell


def _why_not(spec: TrialSpec, strategy: StrategySpec, hosts: int, most: int) -> str:
    """Why the devices of a cell cannot be spread over so many hosts, or ""."""
    if spec.devices > hosts * most:
        return f"{spec.devices} devices are more than {hosts} of the hosts have: {most} each"
    if hosts == 1:
        return ""
    if strategy.one_host:
        return strategy.one_host
    if strategy.processes == "one" and not strategy.spreads:
        return f"one process drives all devices of {strategy.name}, so they must be on one host"
    if spec.devices % hosts:
        return f"{spec.devices} devices cannot be spread evenly over {hosts} hosts"
    return ""
