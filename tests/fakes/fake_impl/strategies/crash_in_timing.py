"""Passes the gate, then raises on rank 0."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        super().step(placed)
        if self.timing and self.job.world.rank == 0:
            raise ValueError("planted | in <timing>")


def build(job):
    return Program(job)
