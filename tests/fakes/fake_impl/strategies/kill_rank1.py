"""Rank 1 is killed, as the out-of-memory killer does it."""

import os
import signal
import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        if self.job.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)


def build(job):
    return Program(job)
