"""Fills the files of its launch with noise, and makes a folder where a log would be."""

import os
import sys
from pathlib import Path

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        folder = Path(sys.argv[1])
        (folder / "folder.log").mkdir()
        for name in ("rank0.progress", "rank0.json", "rank0.log"):
            (folder / name).write_bytes(b"\xff\0[[")
        os._exit(0)


def build(job):
    return Program(job)
