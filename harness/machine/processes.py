"""What can be seen of the other processes of this machine."""

from __future__ import annotations

import psutil

from harness.spec.text import printable


def name_of(pid: int) -> str:
    """The name of a process; "" if it cannot be seen from here."""
    try:
        name = psutil.Process(pid).name()
    except (psutil.Error, OverflowError, ValueError):
        return ""
    return printable(name)
