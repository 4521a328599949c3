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
    """The suite's git commit, with "+changes" if files differ from it; "" outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"],
            cwd=PROJECT, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
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
    return path.read_text().strip() if path.exists() else ""


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
