"""Nothing to start; ranks meet by files."""

import time
from pathlib import Path


def start(world, precision, settings):
    pass


def folder(world):
    return Path(world.rendezvous.removeprefix("file://")).parent


def barrier(world):
    """All ranks write a numbered file and wait for the others' files."""
    global _count
    _count += 1
    (folder(world) / f"barrier{_count}.{world.rank}").touch()
    while not all((folder(world) / f"barrier{_count}.{rank}").exists() for rank in range(world.processes)):
        time.sleep(0.001)


_count = 0


def peak_bytes(world):
    return None


def versions(world):
    return {}
