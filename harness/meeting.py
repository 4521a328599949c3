"""Where the processes of a trial meet over TCP: each gives something, and all get what every rank gave.

Rank 0 listens; every other rank connects once. After that, each exchange is one line from every rank to rank 0 and one
line back. Nobody polls, so all ranks leave within microseconds. On one host, rank 0 writes its port to the rendezvous
file. Over several hosts, which share no files, the launcher names rank 0's address and port.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult, urlparse

from harness import ports
from harness.contract import World

WAIT_SECONDS = 120.0  # for the other ranks to arrive at the start: some import more slowly than others
POLL_SECONDS = 0.02


class Meeting:
    """This rank's connections: rank 0 has one to every other rank, every other rank has one to rank 0."""

    def __init__(self, world: World, *, at: str = "") -> None:
        """Connect to the other ranks. Raises TimeoutError if one does not arrive.

        `at`: a URL as `World.rendezvous`, by default that one.
        """
        self.world, self.deadline = world, time.monotonic() + WAIT_SECONDS
        place = urlparse(at or world.rendezvous)
        self.peers = self._accept(place) if world.rank == 0 else [self._connect(place)]
        for peer in self.peers:
            peer.settimeout(None)  # the harness ends trials that hang, and a rank that dies closes its connection
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = [peer.makefile("rw") for peer in self.peers]

    def exchange(self, own: Any = None) -> list:
        """Give `own`, anything that JSON can hold, and get what every rank gave, in the order of the ranks.

        Returns when all ranks have arrived. Raises ConnectionError if one has ended.
        """
        try:
            return self._exchange(own)
        except OSError as error:  # a closed connection appears as one of several errors
            raise ConnectionError("another rank has ended") from error

    def addresses(self, count: int = 1) -> list[list[str]]:
        """Free addresses of every rank for its servers; `count` is how many this rank wants.

        Each rank holds its ports until all ranks have theirs, so that no port is found twice.
        """
        with ports.held("", count) as found:
            return self.exchange([f"{self.world.address}:{port}" for port in found])

    def _exchange(self, own: Any) -> list:
        if self.world.rank:
            self._send(0, [self.world.rank, own])
            return self._receive(0)
        found = [own] * self.world.processes
        for index in range(len(self.lines)):
            rank, brought = self._receive(index)
            found[rank] = brought
        for index in range(len(self.lines)):
            self._send(index, found)
        return found

    def _accept(self, place: ParseResult) -> list[socket.socket]:
        address = (place.hostname or "", place.port or 0) if place.scheme == "tcp" else ("127.0.0.1", 0)
        with socket.create_server(address) as server:
            if place.scheme != "tcp":
                path = Path(place.path)
                unfinished = path.with_suffix(".tmp")
                unfinished.write_text(str(server.getsockname()[1]), "utf-8")
                unfinished.replace(path)  # the other ranks see the whole number or no file
            server.settimeout(WAIT_SECONDS)
            return [server.accept()[0] for _ in range(1, self.world.processes)]

    def _connect(self, place: ParseResult) -> socket.socket:
        while True:
            if place.scheme == "tcp":
                with contextlib.suppress(ConnectionRefusedError):  # rank 0 does not listen yet
                    return socket.create_connection((place.hostname, place.port), timeout=WAIT_SECONDS)
            elif (path := Path(place.path)).exists():
                return socket.create_connection(("127.0.0.1", int(path.read_text("utf-8"))), timeout=WAIT_SECONDS)
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"rank 0 did not come within {WAIT_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _send(self, index: int, content: list) -> None:
        self.lines[index].write(json.dumps(content) + "\n")
        self.lines[index].flush()

    def _receive(self, index: int) -> list:
        line = self.lines[index].readline()
        if not line:
            raise ConnectionResetError  # the other end is closed
        return json.loads(line)
