"""Launching on several hosts: each part of a launch goes to the agent of its host, and all of them succeed or none.

The first failure, a lost host or a stop ends the launch everywhere. The agents are in harness/launch/host_agent.py;
who starts them is the business of an adapter such as harness/launch/manual.py.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.launch import place, supervisor
from harness.launch.assignment import SENT, assignment
from harness.launch.gathering import links_between
from harness.launch.host import Host, Part, named
from harness.launch.launcher import Launch, Outcome
from harness.launch.wire import Lost
from harness.messages import Progress
from harness.spec import Cause
from harness.spec.errors import MachineUnfit

GRACE_SECONDS = 1.5
"""After the first host has failed: time for the others to tell of their own failures, one of which may be earlier."""
STOP_SECONDS = 8.0
"""For a host to end its part. One that takes longer is lost; its agent ends everything when the connection closes."""
LATE_SECONDS = 60.0
"""How much longer than its time limit a launch may take: each host's supervisor keeps the limit itself."""


class HostsLauncher:
    """Launches on these hosts. Cells on one host run on the first."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Measures how fast the hosts reach each other. Raises MachineUnfit if they do not."""
        self.links = links_between(hosts)
        self._hosts, self._numbers, self._digests = tuple(hosts), itertools.count(), {}

    def start(self, launch: Launch) -> HostsRun:
        """Start a phase on as many hosts as it needs. Raises MachineUnfit if one of them is lost."""
        hosts = self._hosts[: launch.spec.hosts]
        if any(host.lost for host in hosts):
            lost = _first_lost(hosts)
            raise MachineUnfit(f"host {lost.name} is lost ({lost.lost}): mend it, and go on with run --resume")
        launch.folder.mkdir(parents=True)
        run = HostsRun(next(self._numbers), hosts, launch)
        with contextlib.suppress(Lost):  # `run` sees which host it is
            self._start_parts(run, launch, hosts)
        return run

    def _start_parts(self, run: HostsRun, launch: Launch, hosts: Sequence[Host]) -> None:
        given = {name: path for name in SENT if (path := getattr(launch, name)) is not None}
        digests = named(given, self._digests)
        found = _place(hosts)
        for index, host in enumerate(hosts):
            part = assignment(
                launch,
                number=run.number,
                place=replace(found, host=index),
                files=digests,
                # a path of this machine means nothing on a host, unless the user named it
                interpreter="" if launch.interpreter == sys.executable else launch.interpreter,
            )
            host.start(part, {digests[name]: path for name, path in given.items()})


def _place(hosts: Sequence[Host]) -> place.Place:
    """The place of a launch. Rank 0's host says at which ports the ranks of several hosts meet. Raises Lost."""
    found = place.Place(hosts=tuple(host.name for host in hosts), addresses=tuple(host.facts.address for host in hosts))
    if len(hosts) == 1:
        return found
    first, second = (f"tcp://{found.addresses[0]}:{port}" for port in hosts[0].free_ports(2))
    return replace(found, rendezvous=first, agreement=second)


class HostsRun:
    """A phase under way on several hosts."""

    def __init__(self, number: int, hosts: Sequence[Host], launch: Launch) -> None:
        self.number, self._hosts, self._launch = number, hosts, launch
        self._deadline = time.monotonic() + launch.spec.timeout_seconds + LATE_SECONDS
        self._failure = ""  # of the launch as a whole

    def poll(self) -> bool:
        """Whether it has ended everywhere, or must be ended because a host has failed or is lost."""
        parts = [host.part(self.number) for host in self._hosts]
        if any(host.lost for host in self._hosts) or all(part.outcome for part in parts):
            return True
        failed = [part.ended for part in parts if part.outcome and part.outcome.status != "ok"]
        if time.monotonic() > self._deadline:
            self._failure = "the hosts have not kept the time limit"
        return bool(self._failure) or (bool(failed) and time.monotonic() - min(failed) > GRACE_SECONDS)

    def progress(self) -> Progress | None:
        """What rank 0 is doing; None if it has not said so yet."""
        return self._hosts[0].part(self.number).progress

    def stop(self) -> None:
        """End it on all hosts, and wait until they have said so. A host that does not is lost."""
        for host in self._hosts:
            if not host.part(self.number).outcome:
                host.stop(self.number)
        deadline = time.monotonic() + STOP_SECONDS
        for host in self._hosts:
            while not (host.lost or host.part(self.number).outcome):
                if time.monotonic() > deadline:
                    host.lose(f"it did not end its part within {STOP_SECONDS:g} s")
                time.sleep(0.02)

    def collect(self) -> Outcome:
        """How it ended, with the answers of all ranks. Keeps the hosts' logs in the launch's folder."""
        parts = {host: host.part(self.number) for host in self._hosts}
        for host, part in parts.items():
            host.forget(self.number)
            for name, content in part.logs.items():
                where = name if name.startswith("rank") else f"{Path(name).stem}-{_safe(host.name)}.log"
                (self._launch.folder / where).write_bytes(content)
            if part.output and self._launch.output is not None:
                self._launch.output.write_bytes(part.output)
        outcomes = [part.outcome for part in parts.values() if part.outcome]
        answers = sorted((a for outcome in outcomes for a in outcome.answers), key=lambda a: a.rank)
        cores = max((outcome.cores for outcome in outcomes), default=0)
        started = max((outcome.start_method for outcome in outcomes), default="")  # nothing is forked over hosts
        return replace(self._ending(parts), answers=tuple(answers), cores=cores, start_method=started)

    def _ending(self, parts: dict[Host, Part]) -> Outcome:
        """The first lost host counts first: the others fail because of it, and an adapter may end their agents.

        Then comes the first failure, and last an interruption.
        """
        if any(host.lost for host in self._hosts):
            host = _first_lost(self._hosts)
            cause = Cause(kind="host_lost", data={"host": host.name})
            return Outcome(status="killed", reason=f"host {host.name} was lost: {host.lost}", cause=cause)
        if self._failure:
            return Outcome(status="timeout", reason=self._failure, cause=Cause(kind="time_limit"))
        failed = [
            (_failed_at(part.outcome, heard=part.ended), host.name, part.outcome)
            for host, part in parts.items()
            if part.outcome and part.outcome.status != "ok"
        ]
        if not failed:
            return Outcome(status="ok")
        _, name, first = min(failed, key=lambda entry: entry[0])
        return replace(first, reason=f"host {name}: {first.reason}" if len(self._hosts) > 1 else first.reason)


def _first_lost(hosts: Sequence[Host]) -> Host:
    return min(hosts, key=lambda host: host.lost_at)


def _failed_at(outcome: Outcome, *, heard: float) -> tuple[bool, float]:
    """When a host's part failed, on this machine's clock. Those that the harness ended come last.

    `heard`: when the host said so, which its supervisor delays a little.
    """
    ended = outcome.cause is not None and outcome.cause.kind == "interrupted"
    times = [answer.ended for answer in outcome.answers if answer.status != "ok" and answer.ended]
    return ended, min(times, default=heard - supervisor.GRACE_SECONDS)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in name)
