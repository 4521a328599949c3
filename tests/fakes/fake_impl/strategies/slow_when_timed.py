"""Goes on, and on: a step takes a second when it is timed."""

import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        time.sleep(self.timing)
        return super().step(placed)


def build(job):
    return Program(job)
