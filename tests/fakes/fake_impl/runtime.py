"""Nothing to start; ranks meet by files, over several hosts by TCP."""

import os
import time
from functools import cache
from pathlib import Path

from harness.meeting import Meeting

os.environ.setdefault("JAX_SET_BY_ITS_IMPORT", "1")  # as an import of JAX sets a variable


def start(world, precision, settings):
    pass


def folder(world):
    return Path(world.rendezvous.removeprefix("file://")).parent


@cache
def meeting(world):
    return Meeting(world)


def barrier(world):
    """All ranks write a numbered file and wait for the others' files."""
    global _count
    if world.hosts > 1:
        meeting(world).exchange()
        return
    _count += 1
    (folder(world) / f"barrier{_count}.{world.rank}").touch()
    while not all((folder(world) / f"barrier{_count}.{rank}").exists() for rank in range(world.processes)):
        time.sleep(0.001)


_count = 0


def peak_bytes(world):
    return None


def versions(world):
    return {}
