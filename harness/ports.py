"""Ports for servers that begin to listen later, often in another process and after its imports."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that Linux gives to clients, and to servers that ask for any port (ip(7), ip_local_port_range)."""
LOWEST, HIGHEST = 10_000, 65_535  # many services have their usual ports below
ATTEMPTS = 100


@contextlib.contextmanager
def held(address: str, count: int) -> Iterator[list[int]]:
    """Ports of this host that nobody uses, all different, and held until the end of the block.

    Nor is anybody given one by chance between that end and the start of its server, which may take seconds: Linux hands
    out none of them by itself. `address`: one of this host's, or "" for all. Raises OSError if it is not this host's.
    """
    with contextlib.ExitStack() as servers:
        yield [servers.enter_context(_server(address)).getsockname()[1] for _ in range(count)]


def _server(address: str) -> socket.socket:
    choice = random.SystemRandom()  # the ranks of a training may have the same seed
    if ports := _not_handed_out():
        for _ in range(ATTEMPTS):
            with contextlib.suppress(OSError):  # somebody uses it
                return socket.create_server((address, choice.choice(ports)))
    return socket.create_server((address, 0))


def _not_handed_out() -> range:
    """The ports below those that Linux hands out, or above them if these are more. Empty if it hands out all."""
    try:
        first, last = map(int, HANDED_OUT.read_text("ascii").split())
    except (OSError, ValueError):  # not Linux
        return range(0)
    return max(range(LOWEST, first), range(last + 1, HIGHEST + 1), key=len)
