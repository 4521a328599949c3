"""One host as the harness sees it: the connection to its agent, what it said of itself, and what it has sent."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.launch import wire
from harness.launch.assignment import Assignment, HostFacts, digest
from harness.launch.launcher import Outcome
from harness.launch.wire import Frame, Lost, Refused, Wire
from harness.messages import Answer, Progress
from harness.spec import Link, codec
from harness.spec.errors import MachineUnfit

CLOCK_READINGS = 10
LINK_SECONDS = 30.0
"""For a host to measure the way to another. A link that takes longer is of no use."""


@dataclass(kw_only=True)
class Part:
    """What has come of one launch from one host."""

    outcome: Outcome | None = None  # None: it has not ended
    ended: float = 0.0  # when it was heard of, by this machine's monotonic clock
    progress: Progress | None = None
    logs: dict[str, bytes] = field(default_factory=dict)
    output: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A host's monotonic clock: how far it is ahead of this machine's, and the shortest round trip, in seconds."""

    ahead: float
    round_trip: float


class Host:
    """A host that takes part. `lost` says why it no longer does, or is ""; `lost_at` is when that was noticed."""

    def __init__(self, connection: Wire, facts: HostFacts, clock: Clock) -> None:
        self.facts, self.clock, self.lost, self.lost_at = facts, clock, "", math.inf
        self._wire, self._parts, self._sent = connection, {}, set()
        self._answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._asking = threading.Lock()
        for work in (self._listen, self._beat):
            threading.Thread(target=work, daemon=True).start()

    @property
    def name(self) -> str:
        """As the user named it."""
        return self.facts.name

    def part(self, number: int) -> Part:
        """What this host has sent of a launch so far."""
        return self._parts.setdefault(number, Part())

    def forget(self, number: int) -> None:
        """Drop what has come of a launch: its logs may be large."""
        self._parts.pop(number, None)

    def free_ports(self, count: int) -> list[int]:
        """Ports of the host that nobody uses. Raises Lost."""
        return list(self._ask("ports", wire.SILENT_SECONDS, count=count).says["ports"])

    def link_to(self, other: Host) -> Link:
        """How fast this host reaches another. Raises Lost; MachineUnfit if it does not reach it."""
        port = other._ask("listen", wire.SILENT_SECONDS).says["port"]
        address = other.facts.address
        found = self._ask("link", LINK_SECONDS, address=address, port=port).says
        if "error" in found:
            raise MachineUnfit(
                f"host {self.name} cannot reach host {other.name} at {address}, port {port}: {found['error']}; open "
                f"all ports between the hosts, or start the agent of {other.name} with --address"
            )
        names = {"source": self.name, "target": other.name}
        return Link(**names, round_trip_seconds=found["round_trip"], bytes_per_second=found["rate"])

    def _ask(self, kind: str, seconds: float, **says: str | int) -> Frame:
        """What the agent answers within so many seconds. Raises Lost."""
        with self._asking:
            self._send(kind, b"", **says)
            try:
                return self._answers.get(timeout=seconds)
            except queue.Empty:
                raise Lost(self.lost or f"it did not answer {kind!r} within {seconds:g} s") from None

    def start(self, given: Assignment, files: Mapping[str, Path]) -> None:
        """Start the host's part of a launch. `files`: by digest; each is sent once in a session. Raises Lost."""
        for name, path in files.items():
            if name not in self._sent:
                self._send("file", path.read_bytes())
                self._sent.add(name)
        self._send("start", assignment=codec.encode(given))

    def stop(self, number: int) -> None:
        """End the host's part of a launch, if the host can be reached."""
        with contextlib.suppress(Lost):
            self._send("stop", number=number)

    def leave(self) -> None:
        """Let the agent go: the session is over."""
        with contextlib.suppress(Lost):
            self._send("done")
        self._wire.close()

    def _send(self, kind: str, content: bytes = b"", **says: object) -> None:
        try:
            self._wire.send(kind, content, **says)
        except Lost as error:
            self.lose(error)
            raise

    def lose(self, why: Exception | str) -> None:
        """Take no further part of it, for this reason, unless it was lost before."""
        if not self.lost:
            self.lost_at, self.lost = time.monotonic(), str(why)
        self._wire.close()

    def _beat(self) -> None:
        with contextlib.suppress(Lost):
            while not self.lost:
                self._wire.beat()
                time.sleep(wire.BEAT_SECONDS)

    def _listen(self) -> None:
        try:
            while True:
                frame = self._wire.receive()
                if frame.kind in ("ports", "listen", "link"):
                    self._answers.put(frame)
                    continue
                part = self.part(frame.says["number"])
                if frame.kind == "progress":
                    part.progress = codec.decode(Progress, frame.says["progress"])
                elif frame.kind == "log":
                    part.logs[Path(frame.says["name"]).name] = frame.content
                elif frame.kind == "output":
                    part.output = frame.content
                elif frame.kind == "ended":
                    part.ended = time.monotonic()
                    part.outcome = self._on_our_clock(codec.decode(Outcome, frame.says["outcome"]))
        except (Lost, Refused, KeyError, TypeError, ValueError) as error:
            self.lose(error)

    def _on_our_clock(self, outcome: Outcome) -> Outcome:
        """An outcome whose times are on this machine's monotonic clock, in place of the host's."""

        def moved(answer: Answer) -> Answer:
            ahead, timing = self.clock.ahead, answer.timing
            if timing is not None:
                timing = replace(timing, block_starts=tuple(start - ahead for start in timing.block_starts))
            return replace(answer, timing=timing, ended=answer.ended and answer.ended - ahead)

        return replace(outcome, answers=tuple(moved(answer) for answer in outcome.answers))


def read_clock(connection: Wire) -> Clock:
    """A host's clock, from the shortest of several round trips. Raises Lost, Refused."""
    found: list[Clock] = []
    for _ in range(CLOCK_READINGS):
        before = time.monotonic()
        connection.send("clock")
        theirs = float(connection.expect("clock").says["monotonic"])
        after = time.monotonic()
        found.append(Clock(ahead=theirs - (before + after) / 2, round_trip=after - before))
    return min(found, key=lambda clock: clock.round_trip)


def named(paths: Mapping[str, Path], known: dict[Path, str]) -> dict[str, str]:
    """The digest of each file, by field. `known`: those that were computed before; files do not change."""
    for path in paths.values():
        if path not in known:
            known[path] = digest(path.read_bytes())
    return {field: known[path] for field, path in paths.items()}
