"""The beginning of a session on several hosts: their agents connect, and are compared before anything is measured."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import harness
from harness.launch import wire
from harness.launch.assignment import HostFacts
from harness.launch.host import Host, read_clock
from harness.launch.wire import Lost, Refused, Wire
from harness.launch.worker_code import code_digest
from harness.machine import machine_record
from harness.machine.devices import machine
from harness.spec import Hardware, Link, codec
from harness.spec.errors import MachineUnfit, UsageError

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the hosts of a run must be: their names, and what they must have in common with this machine."""

    names: tuple[str, ...]
    code: dict[str, str]  # by framework
    version: str
    hardware: Hardware


def wanted(names: Sequence[str], frameworks: Iterable[str]) -> Wanted:
    """Hosts of these names that are like this machine, for cells of these frameworks."""
    return Wanted(
        names=tuple(names),
        code={name: code_digest(name) for name in frameworks},
        version=harness.__version__,
        hardware=machine_record.hardware(machine()),
    )


def listening(head: str) -> socket.socket:
    """A socket at "HOST:PORT" or "HOST", then at any free port. Raises UsageError."""
    name, _, port = head.partition(":")
    try:
        return socket.create_server((name, int(port or 0)))
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--head {head}: this machine cannot listen there: {reason}; name an address of it that the hosts can "
            "reach, and a free port if there is a firewall, as HOST or HOST:PORT"
        ) from error


def gather(
    server: socket.socket,
    token: str,
    sought: Wanted,
    *,
    seconds: float,
    say: Callable[[str], None],
    problem: Callable[[], str] = lambda: "",
) -> list[Host]:
    """All hosts, in the order of their names. `say`: is told who has come. `problem`: why an agent cannot come, or "".

    Raises MachineUnfit if a host differs from this machine, or if one has not come within so many seconds.
    """
    found: dict[str, Host] = {}
    deadline = time.monotonic() + seconds
    server.settimeout(POLL_SECONDS)
    try:
        while missing := [name for name in sought.names if name not in found]:
            reason = problem() or _gone(found.values())
            if reason or time.monotonic() > deadline:
                late = f"has not connected within {seconds:g} s: start its command there, and see what it says"
                raise MachineUnfit(reason or f"host {missing[0]} {late}")
            with contextlib.suppress(TimeoutError):
                connection, (address, *_) = server.accept()
                host = _admit(Wire(connection), token, sought, missing, address=address, say=say)
                if host is not None:
                    found[host.name] = host
                    say(f"host {host.name} is here, {1e3 * host.clock.round_trip:.2f} ms away")
    except BaseException:
        for host in found.values():
            host.leave()
        raise
    return [found[name] for name in sought.names]


def links_between(hosts: Sequence[Host]) -> tuple[Link, ...]:
    """How fast each host reaches the next one, and the last the first. Raises MachineUnfit if one does not."""
    pairs = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))[: len(hosts) if len(hosts) > 2 else len(hosts) - 1]
    try:
        return tuple(one.link_to(other) for one, other in pairs)
    except Lost as error:
        raise MachineUnfit(_gone(hosts) or f"the ways between the hosts could not be measured: {error}") from error


def _gone(hosts: Iterable[Host]) -> str:
    return next((f"host {host.name} was lost: {host.lost}" for host in hosts if host.lost), "")


def _admit(
    connection: Wire, token: str, sought: Wanted, missing: Sequence[str], *, address: str, say: Callable[[str], None]
) -> Host | None:
    """The host at the other end; None if it is none of ours. Raises MachineUnfit if it is, but differs."""
    try:
        wire.prove(connection, token, side="harness", other="agent")
        connection.send("frameworks", names=list(sought.code))
        facts = codec.decode(HostFacts, connection.expect("facts").says["facts"])
        if facts.name not in missing:
            raise Refused(f"--host {facts.name}: the run waits for {', '.join(missing)}")
        if reason := difference(sought, facts):
            connection.send("refused", reason=reason)
            raise MachineUnfit(reason)
        clock = read_clock(connection)
        connection.send("ready")
        return Host(connection, facts, clock)
    except (Refused, Lost, codec.Malformed, KeyError) as error:
        say(f"refused a connection from {address}: {error}")
        with contextlib.suppress(Lost):
            connection.send("refused", reason=str(error))
        connection.close()
        return None


def difference(sought: Wanted, facts: HostFacts) -> str:
    """What distinguishes a host from this machine, in one line, or ""."""
    here = f"host {facts.name} differs from the machine of this run"
    for framework, code in sought.code.items():
        if (theirs := facts.code.get(framework, "")) != code:
            other = f"is {theirs[:12]} there" if theirs else "is not installed there"
            return f"{here}: the code for {framework} {other} and {code[:12]} here; install the same on all hosts"
    if facts.version != sought.version:
        return f"{here}: likeforlike {facts.version} and {sought.version}; install the same on all hosts"
    ours, theirs = sought.hardware, facts.hardware
    if name := machine_record.other_hardware(ours, theirs):
        return f"{here}: its {name} is {getattr(theirs, name)!r}, here it is {getattr(ours, name)!r}"
    for name, unknown in {"power_limit_watts": 0, "max_clock_mhz": 0, "nvlinks": None}.items():
        found = [[getattr(gpu, name) for gpu in hardware.gpus] for hardware in (theirs, ours)]
        if any(unknown not in pair and not math.isclose(*pair) for pair in zip(*found, strict=True)):
            return f"{here}: {name} of its GPUs is {found[0]}, here it is {found[1]}; make it the same on all hosts"
    return ""
