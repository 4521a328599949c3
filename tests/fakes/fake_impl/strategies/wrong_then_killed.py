"""Rank 1 computes something else; rank 0 is killed as soon as that is known."""

import os
import signal
import time

from fake_impl.runtime import folder
from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        super().step(placed)
        if self.job.world.rank == 1:
            self.last_loss *= 2
        elif self.made == 5:
            limit = time.monotonic() + 60
            while not (folder(self.job.world) / "rank1.so-far.json").exists() and time.monotonic() < limit:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def build(job):
    return Program(job)
