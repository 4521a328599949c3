"""Rank 1 raises at step 2; rank 0 goes on waiting for it."""

import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        super().step(placed)
        if self.made == 2:
            if self.job.world.rank == 1:
                raise ValueError("planted in rank 1")
            time.sleep(3600)


def build(job):
    return Program(job)
