"""The agent of one host: connects to the harness, starts this host's ranks as it says, and sends back what they find.

    LIKEFORLIKE_TOKEN=... python -m harness.launch.host_agent --head HOST:PORT --host NAME

It needs this suite and the frameworks, and no files of the harness: samples and references come through the connection.
When that ends, in whatever way, or this process gets a signal, every process of every launch here is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import harness
from harness import ports, whole_files
from harness.launch import links, logs, wire
from harness.launch.assignment import OUTPUT, Assignment, HostFacts, digest, launch_of
from harness.launch.launcher import Launch, Outcome
from harness.launch.local import LocalLauncher, LocalRun
from harness.launch.scratch import Scratch
from harness.launch.wire import Frame, Lost, Refused, Wire
from harness.launch.worker_code import code_digest
from harness.machine import machine_record
from harness.machine.devices import machine
from harness.spec import Cause, codec
from harness.spec.errors import MachineUnfit
from harness.spec.text import encodable

TOKEN = "LIKEFORLIKE_TOKEN"
CONNECT_SECONDS = 60.0  # for the harness to listen
POLL_SECONDS = 0.05


class Agent:
    """What runs on this host for one session of the harness."""

    def __init__(self, connection: Wire, address: str, folder: Path) -> None:
        """`address`: of this host. `folder`: for all files; it is empty, and its maker removes it."""
        self._wire, self._address, self._folder = connection, address, folder
        self._launcher = LocalLauncher(machine())
        self._running: dict[int, tuple[Launch, LocalRun]] = {}
        self._inbox: queue.SimpleQueue[Frame | Exception] = queue.SimpleQueue()

    def serve(self) -> str:
        """Do what the harness says until it has gone, then end all launches. Returns why it ended; "" if as planned."""
        for work in (self._receive, self._beat):
            threading.Thread(target=work, daemon=True).start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    frame = self._inbox.get(timeout=POLL_SECONDS)
                    if isinstance(frame, Exception):
                        return str(frame)
                    if frame.kind == "done":
                        return ""
                    self._obey(frame)
                self._report()
        except Lost as error:
            return str(error)
        finally:
            for _, run in self._running.values():
                run.stop()
            self._launcher.close()

    def _receive(self) -> None:
        try:
            while True:
                self._inbox.put(self._wire.receive())
        except (Lost, Refused) as error:
            self._inbox.put(error)

    def _beat(self) -> None:
        with contextlib.suppress(Lost):
            while True:
                self._wire.beat()
                time.sleep(wire.BEAT_SECONDS)

    def _obey(self, frame: Frame) -> None:
        if frame.kind == "file":
            whole_files.write(self._file(digest(frame.content)), frame.content)
        elif frame.kind == "ports":
            self._wire.send("ports", ports=free_ports(self._address, int(frame.says["count"])))
        elif frame.kind == "listen":
            self._listen()
        elif frame.kind == "link":
            self._wire.send("link", b"", **_link(str(frame.says["address"]), int(frame.says["port"])))
        elif frame.kind == "start":
            self._start(codec.decode(Assignment, frame.says["assignment"]))
        elif frame.kind == "stop" and frame.says["number"] in self._running:
            self._running[frame.says["number"]][1].stop()

    def _listen(self) -> None:
        """Let another host measure the way to this one."""
        server = socket.create_server((self._address, 0))
        self._wire.send("listen", port=server.getsockname()[1])
        threading.Thread(target=_quietly, args=(links.answer, server), daemon=True).start()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def _start(self, given: Assignment) -> None:
        folder = self._folder / f"launch-{given.number}"
        try:
            files = {field: self._file(name) for field, name in given.files.items()}
            for field, path in files.items():
                if not path.exists():  # it was damaged on its way
                    raise MachineUnfit(f"the file of {field} has not come with the digest {path.stem[:12]}")
            planned = launch_of(given, folder=folder, files=files, interpreter=sys.executable, work=self._folder)
            self._running[given.number] = planned, self._launcher.start(planned)
        except (OSError, ValueError, MachineUnfit) as error:
            reason = f"the launch could not be started: {error}"
            failed = Outcome(status="crashed", reason=reason, cause=Cause(kind="harness_error"))
            self._wire.send("ended", number=given.number, outcome=codec.encode(encodable(failed)))

    def _report(self) -> None:
        """Tell the harness how far the launches are, and send what those that have ended have found."""
        for number, (planned, run) in list(self._running.items()):
            if not run.poll():
                if progress := run.progress():
                    self._tell(number, codec.encode(progress))
                continue
            run.stop()
            del self._running[number]
            for path in sorted(planned.folder.glob("*.log")):
                kept = self._folder / "kept.log"
                logs.keep(path, kept)
                self._wire.send("log", kept.read_bytes(), number=number, name=path.name)
            if (output := planned.folder / OUTPUT).exists():
                self._wire.send("output", output.read_bytes(), number=number)
            self._wire.send("ended", number=number, outcome=codec.encode(encodable(run.collect())))
            shutil.rmtree(planned.folder, ignore_errors=True)

    _told: tuple[int, object] = (0, None)

    def _tell(self, number: int, progress: object) -> None:
        if self._told != (number, progress):
            self._told = (number, progress)
            self._wire.send("progress", number=number, progress=progress)


def _quietly(work: Callable[..., None], *given: object) -> None:
    with contextlib.suppress(OSError):  # the other side sees it, too
        work(*given)


def _link(address: str, port: int) -> dict[str, float | str]:
    """How fast another host is reached, or why it is not."""
    try:
        round_trip, rate = links.measured(address, port)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"round_trip": round_trip, "rate": rate}


def free_ports(address: str, count: int) -> list[int]:
    """Ports of this host that nobody uses, all different."""
    with ports.held(address, count) as found:
        return found


def connect(head: str, address: str) -> socket.socket:
    """A connection to the harness, from this address if one is given. Raises MachineUnfit if it does not listen."""
    name, _, port = head.rpartition(":")
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((name, int(port)), 5, source_address=(address, 0) if address else None)
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline or not isinstance(error, ConnectionRefusedError):
                raise MachineUnfit(f"--head {head}: {error}; it must be HOST:PORT as the run has printed it") from error
        time.sleep(0.2)


def join(connection: Wire, token: str, *, name: str, address: str) -> None:
    """Prove the token, say what this host is, and show its clock. Raises Lost, Refused."""
    wire.prove(connection, token, side="agent", other="harness")
    frameworks = connection.expect("frameworks").says["names"]
    facts = HostFacts(
        name=name,
        address=address,
        version=harness.__version__,
        code={framework: _code(framework) for framework in frameworks},
        hardware=machine_record.hardware(machine()),
    )
    connection.send("facts", facts=codec.encode(facts))
    while (frame := connection.receive()).kind == "clock":
        connection.send("clock", monotonic=time.monotonic())
    if frame.kind != "ready":
        raise Refused(f"said {frame.kind!r} in place of 'ready'")


def _code(framework: str) -> str:
    try:
        return code_digest(framework)
    except (KeyError, ImportError):  # a plug-in that is not installed here
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="host_agent", description="Runs the ranks of one host, as the harness says.")
    parser.add_argument("--head", required=True, help="HOST:PORT of the harness")
    parser.add_argument("--host", required=True, help="the name of this host in --hosts")
    parser.add_argument("--address", default="", help="where other hosts reach this one; default: as the harness does")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # through the finally blocks
    try:
        connection = connect(given.head, given.address)
        address = given.address or connection.getsockname()[0]
        held = Wire(connection)
        join(held, os.environ.get(TOKEN, ""), name=given.host, address=address)
    except (MachineUnfit, Lost, Refused) as error:
        sys.exit(_say(f"not part of the run: {error}", 2))
    _say(f"{given.host} takes part, at {address}", 0)
    scratch = Scratch()
    try:
        why = Agent(held, address, scratch.folder).serve()
    finally:
        held.close()
        scratch.remove()
    sys.exit(_say(f"lost the harness: {why}; everything here was ended", 3) if why else 0)


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"host_agent: {text}\n")
    return code


if __name__ == "__main__":
    main()
