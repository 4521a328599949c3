"""Leaves behind a child in a session of its own."""

import subprocess

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        if self.made == 0:
            subprocess.Popen(["sleep", self.job.options.get("seconds", "3601")], start_new_session=True)
        return super().step(placed)


def build(job):
    return Program(job)
