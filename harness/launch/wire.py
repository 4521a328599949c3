"""Messages between the harness and the agents of its hosts: frames over TCP, after both sides have proved the token.

A frame is a line of JSON, which may be followed by bytes. Nothing is unpickled. The token keeps strangers out; what
follows is neither encrypted nor signed, so the network between the hosts must be one that its users trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

SILENT_SECONDS = 5.0
"""Who is silent for so long is lost: both sides send something every second."""
BEAT_SECONDS = 1.0
MOST_LINE = 2**28  # bytes of a frame's JSON
PIECE = 2**20  # bytes that are sent at once: each piece may take SILENT_SECONDS


class Lost(ConnectionError):
    """The other side has closed the connection, or is silent."""


class Refused(ConnectionError):
    """The other side said why it does not take part, or could not prove the token."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One message: its kind, what it says, and the bytes that came with it."""

    kind: str
    says: dict[str, Any] = field(default_factory=dict)
    content: bytes = b""


class Wire:
    """One connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._sending = connection, threading.Lock()
        self._file = connection.makefile("rb")

    def send(self, kind: str, content: bytes = b"", **says: Any) -> None:
        """Send a frame. Raises Lost."""
        line = json.dumps({"kind": kind, "bytes": len(content), **says}).encode() + b"\n"
        with self._sending:
            try:
                for whole in (memoryview(line), memoryview(content)):
                    for start in range(0, len(whole), PIECE):
                        self._connection.sendall(whole[start : start + PIECE])
            except OSError as error:
                raise Lost(_why(error)) from error

    def beat(self) -> None:
        """Show that this side lives, unless it is sending something anyway. Raises Lost."""
        if not self._sending.locked():
            self.send("beat")

    def receive(self) -> Frame:
        """The next frame that is no beat. Raises Lost; Refused if the other side says so."""
        while True:
            frame = self._next()
            if frame.kind == "refused":
                raise Refused(str(frame.says.get("reason", "")))
            if frame.kind != "beat":
                return frame

    def expect(self, kind: str) -> Frame:
        """The next frame, which must be of this kind. Raises Lost, Refused."""
        frame = self.receive()
        if frame.kind != kind:
            raise Refused(f"said {frame.kind!r} in place of {kind!r}")
        return frame

    def close(self) -> None:
        """Close the connection; who is receiving from it gets Lost."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _next(self) -> Frame:
        try:
            line = self._file.readline(MOST_LINE)
            if not line.endswith(b"\n"):
                raise Lost("it has closed the connection")
            says = json.loads(line)
            kind, length = str(says.pop("kind")), int(says.pop("bytes"))
            content = self._file.read(max(length, 0))
        except (OSError, ValueError, KeyError, AttributeError) as error:  # ValueError: not JSON, or closed by us
            raise error if isinstance(error, Lost) else Lost(_why(error)) from error
        if len(content) != length:
            raise Lost("it has closed the connection")
        return Frame(kind=kind, says=says, content=content)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"it was silent for {SILENT_SECONDS:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def prove(wire: Wire, token: str, *, side: str, other: str) -> None:
    """Prove to the other side that this one knows the token, and let it do the same. Raises Lost, Refused.

    Each side answers the other's random challenge, so the token itself does not cross the network. `side`, `other`:
    their names, so that no side can be made to answer its own challenge.
    """
    challenge = secrets.token_hex(32)
    wire.send("challenge", text=challenge)
    theirs = str(wire.expect("challenge").says.get("text"))
    wire.send("response", text=_response(token, side, theirs))
    answer = str(wire.expect("response").says.get("text"))
    if not hmac.compare_digest(answer.encode(), _response(token, other, challenge).encode()):
        reason = f"the token of the {other} is not the one that the run has printed"
        wire.send("refused", reason=reason if side == "harness" else "the token of the harness is another")
        raise Refused(reason)


def _response(token: str, side: str, challenge: str) -> str:
    return hmac.new(token.encode(), f"{side} {challenge}".encode(), hashlib.sha256).hexdigest()
