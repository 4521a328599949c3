"""Passes the gate, then leaves with exit code 0 while it is timed, as a library can do."""

import os

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        if self.timing:
            os._exit(0)
        super().step(placed)


def build(job):
    return Program(job)
