"""Two hosts on this machine: network namespaces that one cable joins, so that nothing else reaches them.

Needs root and iproute2. Each namespace has its own /etc/hosts, in which the machine's host name is the address of that
namespace: JAX's collectives on CPU devices bind to it. Processes and files are those of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

ADDRESSES = {"n1": "10.99.0.1", "n2": "10.99.0.2"}


def missing() -> str:
    """Why there can be no such hosts on this machine, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "network namespaces need ip and tc, of iproute2"
    tried = subprocess.run(["ip", "netns", "add", _space("try")], capture_output=True, encoding="utf-8", check=False)
    subprocess.run(["ip", "netns", "del", _space("try")], capture_output=True, check=False)
    return f"there are no network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def _space(host: str) -> str:
    return f"likeforlike-{os.getpid()}-{host}"


class Network:
    """The hosts n1 and n2, until `close`."""

    def __init__(self) -> None:
        for host, address in ADDRESSES.items():
            names = [f"{other} {name}" for name, other in ADDRESSES.items()]
            self._etc(host).mkdir(parents=True)
            lines = ["127.0.0.1 localhost", f"{address} {socket.gethostname()}", *names]
            (self._etc(host) / "hosts").write_text("\n".join(lines) + "\n", "utf-8")
            _ip("netns", "add", _space(host))
        one, other = map(_space, ADDRESSES)
        _ip("link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other)
        for host, address in ADDRESSES.items():
            _ip("-n", _space(host), "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", _space(host), "link", "set", "lo", "up")
            self.link(host, "up")

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command that runs a command on a host, as the same process."""
        return ["ip", "netns", "exec", _space(host), *command]

    def link(self, host: str, state: str) -> None:
        """Plug a host in ("up") or out ("down")."""
        _ip("-n", _space(host), "link", "set", "eth0", state)

    def limit(self, host: str, megabits: int) -> None:
        """Let a host send so many megabits a second."""
        shape = ["rate", f"{megabits}mbit", "burst", "64kb", "latency", "200ms"]
        subprocess.run(["tc", "-n", _space(host), "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape], check=True)

    def processes(self, host: str, having: str = "") -> list[psutil.Process]:
        """The processes on a host whose command line has this text."""
        found = []
        for number in _ip("netns", "pids", _space(host)).split():
            try:
                process = psutil.Process(int(number))
                if having in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self, host: str) -> None:
        """End a host: all of its processes at once, which can say nothing more."""
        self.link(host, "down")
        for process in self.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        for host in ADDRESSES:
            for process in self.processes(host):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _ip("netns", "del", _space(host))
            shutil.rmtree(self._etc(host))

    def _etc(self, host: str) -> Path:
        return Path("/etc/netns") / _space(host)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
