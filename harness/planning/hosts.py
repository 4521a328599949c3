"""Several hosts in a plan: what the user asks for, and which cells can be spread over them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.planning.plan import LOCAL, HostsRequest, Planned
from harness.planning.run_request import Request
from harness.spec import StrategySpec, workload_packages
from harness.spec.entry_points import announced
from harness.spec.errors import UsageError, check_name

ADAPTERS = {
    "manual": "harness.launch.manual:make",
    "slurm": "harness.launch.slurm:make",
    "ray": "harness.launch.ray_cluster:make",
}
"""The adapters of this suite: name to "module:function"."""
ENTRY_POINTS = "likeforlike.launchers"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


def adapters() -> dict[str, str]:
    """All adapters, those of installed packages included: name to "module:function".

    A package of one's own joins by an entry point in the group "likeforlike.launchers".
    """
    return announced(ENTRY_POINTS) | ADAPTERS


def hosts_of(request: Request) -> HostsRequest:
    """The hosts that a request names. Raises UsageError for names and flags that do not fit together."""
    launcher, hosts = request.launcher, request.hosts
    check_name("--launcher", launcher, [LOCAL, *adapters()])
    if launcher == LOCAL and (hosts or request.head):
        flag = "--hosts" if hosts else "--head"
        raise UsageError(f"{flag}: --launcher local runs on this machine alone; add --launcher manual, or leave it out")
    if launcher != LOCAL and not hosts:
        raise UsageError(f"--launcher {launcher}: name the hosts, e.g. --hosts node1,node2")
    for name in hosts:
        if not NAME.fullmatch(name):
            raise UsageError(f"--hosts {name!r}: must be a host name or an IPv4 address")
        if hosts.count(name) > 1:
            raise UsageError(f"--hosts {name}: is named twice; name each host once")
    if hosts and request.training:
        raise UsageError("--hosts: train runs on this machine alone; use run, or leave out --hosts and --launcher")
    for name in workload_packages.expand(request.workloads) if hosts else ():
        if not workload_packages.is_ours(name):
            raise UsageError(
                f"--hosts: {name} is not of the suite, and nothing checks that its code is the same on all hosts; "
                "choose another --workload, or leave out --hosts and --launcher"
            )
    return HostsRequest(launcher=launcher, hosts=hosts, head=request.head)


def spread(cells: Sequence[Planned], strategy: StrategySpec, hosts: int) -> list[Planned]:
    """The cells, each on as many hosts as there are; those on one device stay on the first. Some become impossible."""
    return [_spread(cell, strategy, hosts) if hosts > 1 and cell.spec.devices > 1 else cell for cell in cells]


def _spread(cell: Planned, strategy: StrategySpec, hosts: int) -> Planned:
    if reason := _why_one_host(cell, strategy, hosts):
        return cell if cell.status != "planned" else replace(cell, status="skipped", reason=reason)
    return replace(cell, spec=replace(cell.spec, hosts=hosts))


def _why_one_host(cell: Planned, strategy: StrategySpec, hosts: int) -> str:
    if strategy.one_host:
        return strategy.one_host
    if strategy.processes == "one" and not strategy.spreads:
        return f"one process drives all devices of {strategy.name}, so they must be on one host"
    if cell.spec.devices % hosts:
        return f"{cell.spec.devices} devices cannot be spread evenly over {hosts} hosts"
    return ""
