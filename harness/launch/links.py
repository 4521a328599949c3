"""How fast one host reaches another: round trips and transfers over one TCP connection, before anything is timed.

One side sends a length and as many bytes, the other answers with one byte when it has all of them. An empty message is
a round trip. Messages get longer until one takes long enough, so that a slow link is not kept busy for minutes.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time

ROUND_TRIPS = 50
LEAST_SECONDS = 0.2
"""A message that takes this long is long enough."""
FIRST_BYTES, MOST_BYTES = 2**16, 2**28
PIECE = bytes(2**20)
WAIT_SECONDS = 4.0
"""For the other side. Less than the time after which a host that is silent counts as lost."""
LENGTH = struct.Struct("!Q")


def answer(server: socket.socket) -> None:
    """Answer the messages of the first that connects, until it has gone. Closes the server."""
    with server:
        server.settimeout(WAIT_SECONDS)
        with server.accept()[0] as connection:
            connection.settimeout(WAIT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while head := connection.recv(LENGTH.size, socket.MSG_WAITALL):
                (left,) = LENGTH.unpack(head)
                while left:
                    left -= len(_some(connection, left))
                connection.sendall(b"\0")


def measured(address: str, port: int) -> tuple[float, float]:
    """The median of several round trips, in seconds, and the bytes per second of a long message. Raises OSError."""
    with socket.create_connection((address, port), WAIT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trip = statistics.median(_seconds(connection, 0) for _ in range(ROUND_TRIPS))
        size = FIRST_BYTES
        while (seconds := _seconds(connection, size)) < LEAST_SECONDS and size < MOST_BYTES:
            size *= 2
        return round_trip, size / max(seconds - round_trip, 1e-9)


def _seconds(connection: socket.socket, size: int) -> float:
    """How long a message of so many bytes takes, until its answer is here."""
    began = time.perf_counter()
    connection.sendall(LENGTH.pack(size))
    for start in range(0, size, len(PIECE)):
        connection.sendall(memoryview(PIECE)[: size - start])
    _some(connection, 1)
    return time.perf_counter() - began


def _some(connection: socket.socket, most: int) -> bytes:
    """The next bytes, at least one. Raises ConnectionError if the other side has gone."""
    if not (got := connection.recv(min(most, len(PIECE)))):
        raise ConnectionError("the connection was closed")
    return got
