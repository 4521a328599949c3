"""Each step takes two seconds, so that it goes on, but not fast enough for a short time limit."""

import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        time.sleep(2)
        return super().step(placed)


def build(job):
    return Program(job)
