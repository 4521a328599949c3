"""Passes the gate, then hangs, with a child in a session of its own."""

import subprocess
import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        if self.timing:
            subprocess.Popen(["sleep", "3602"], start_new_session=True)
            time.sleep(3600)
        super().step(placed)


def build(job):
    return Program(job)
