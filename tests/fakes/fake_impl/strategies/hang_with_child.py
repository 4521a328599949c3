"""Hangs, with a child in a session of its own."""

import subprocess
import time

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        subprocess.Popen(["sleep", "3602"], start_new_session=True)
        time.sleep(3600)


def build(job):
    return Program(job)
