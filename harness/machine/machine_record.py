"""What a run records about its machine and its code."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from harness.machine.devices import Machine

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


def hardware(machine: Machine) -> dict[str, Any]:
    """The machine as plain data."""
    return asdict(machine) | {"cores": len(machine.cores), "python": platform.python_version()}


def other_hardware(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What distinguishes two kinds of machines, or "".

    Memory does not count: a virtual machine may show more of it as it is used. Nor does it count which of several
    identical GPUs a machine has: reports say on how many machines a run was measured.
    """

    def kind(machine: Mapping[str, Any], name: str) -> str:
        value = machine.get(name)
        if name == "gpus":
            value = [(gpu["name"], gpu["memory_bytes"]) for gpu in value or ()]
        return json.dumps(value)

    return next((name for name in ("gpus", "driver", "cpu", "cores") if kind(one, name) != kind(other, name)), "")
