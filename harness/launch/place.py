"""Where the ranks of a launch are: on this machine, or as many on each of several hosts."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.contract import World
from harness.spec import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Place:
    """The hosts of a launch in the order of their ranks, which of them this is, and where the ranks meet.

    URLs are empty on one host, whose ranks meet by files.
    """

    hosts: tuple[str, ...] = ("",)  # names; "": this machine, when the run was given no hosts
    addresses: tuple[str, ...] = ("127.0.0.1",)  # where each host can be reached from the others
    host: int = 0  # the index of this one
    rendezvous: str = ""  # "tcp://host:port"
    agreement: str = ""  # likewise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts; () for this machine alone."""
        return self.hosts if any(self.hosts) else ()

    def ranks(self, processes: int) -> range:
        """The ranks on this host, of so many processes in all."""
        here = processes // len(self.hosts)
        return range(self.host * here, (self.host + 1) * here)

    def variables(self) -> dict[str, str]:
        """What tells gloo and NCCL which interface leads to the other hosts; {} on one host."""
        if len(self.hosts) == 1:
            return {}
        name = interface(self.addresses[self.host])
        return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), name) if name else {}


HERE = Place()


def worlds(spec: TrialSpec, *, processes: int, cores: int, rendezvous: str, place: Place = HERE) -> tuple[World, ...]:
    """The World of each rank, on whichever host it is."""
    per_host = processes // len(place.hosts)
    return tuple(
        World(
            rank=rank,
            processes=processes,
            devices=spec.devices,
            platform=spec.platform,
            cores=cores,
            rendezvous=rendezvous,
            host=rank // per_host,
            hosts=len(place.hosts),
            local_rank=rank % per_host,
            address=place.addresses[rank // per_host],
        )
        for rank in range(processes)
    )


def rendezvous(place: Place, folder: Path) -> str:
    """Where the ranks of a launch find each other: a file in its folder, if they are on one host."""
    return place.rendezvous or f"file://{folder}/rendezvous"


def interface(address: str) -> str:
    """The network interface of this machine whose network has an address, or ""."""
    wanted = ipaddress.ip_address(socket.gethostbyname(address))
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            network = f"{each.address}/{each.netmask}"
            if each.family == socket.AF_INET and wanted in ipaddress.ip_network(network, strict=False):
                return name
    return ""
