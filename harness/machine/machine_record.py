"""What a run records about its machine and its code."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import harness
from harness.machine.devices import Machine
from harness.spec import Hardware

PROJECT = Path(harness.__file__).parent.parent


def commit() -> str:
    """The suite's git commit, with "+changes" if files differ from it; "" outside a checkout of the suite.

    The suite may be installed within another repository: an environment in its folder. Its commit says nothing of us.
    """
    if _git("rev-parse", "--show-cdup"):  # the way up to the root of the checkout; "" if this is the root
        return ""
    return _git("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes")


def _git(*command: str) -> str:
    """What git says in the suite's folder; "" if it cannot."""
    try:
        found = subprocess.run(
            ["git", *command], cwd=PROJECT, capture_output=True, encoding="utf-8", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return found.stdout.strip()


def hardware(machine: Machine) -> Hardware:
    """The machine as records hold it."""
    return Hardware(
        gpus=machine.gpus,
        driver=machine.driver,
        cpu=machine.cpu,
        cores=len(machine.cores),
        memory_bytes=machine.memory_bytes,
        system=machine.system,
        boot=boot(),
        python=platform.python_version(),
    )


def boot() -> str:
    """What identifies this uptime of the machine, on Linux; "" elsewhere."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text("utf-8").strip() if path.exists() else ""


def other_hardware(one: Hardware, other: Hardware) -> str:
    """What distinguishes two kinds of machines, as a name of its field, or "".

    Memory does not count: a virtual machine may show more of it as it is used. Nor does it count which of several
    identical GPUs a machine has: reports say on how many machines a run was measured.
    """
    return next((name for name in kind(one) if kind(one)[name] != kind(other)[name]), "")


def kind(hardware: Hardware) -> dict[str, Any]:
    """What machines with equal hardware have in common, by field."""
    gpus = tuple((gpu.name, gpu.memory_bytes) for gpu in hardware.gpus)
    return {"gpus": gpus, "driver": hardware.driver, "cpu": hardware.cpu, "cores": hardware.cores}
