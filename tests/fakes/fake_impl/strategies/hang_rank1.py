"""Rank 1 sleeps for ever, and rank 0 waits for it."""

import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        time.sleep(3600)


def build(job):
    return Program(job)
