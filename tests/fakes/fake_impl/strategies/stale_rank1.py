"""Rank 1 forgets the last update."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        before = self.params
        super().step(placed)
        if self.job.world.rank == 1 and self.made == 5:
            self.params = before


def build(job):
    return Program(job)
