"""A doubled gradient."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        super().step(placed)
        self.last_gradients = {name: 2 * array for name, array in self.last_gradients.items()}


def build(job):
    return Program(job)
