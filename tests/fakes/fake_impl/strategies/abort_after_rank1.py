"""Rank 1 runs out of memory and says so; rank 0 then aborts, as gloo and NCCL do when a peer is gone."""

import os
import time

from fake_impl import runtime
from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        world = self.job.world
        if world.rank == 1:
            raise MemoryError("planted in rank 1")
        while not (runtime.folder(world) / "rank1.json").exists():
            time.sleep(0.01)
        os.abort()


def build(job):
    return Program(job)
