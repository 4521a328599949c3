"""The loss becomes NaN once it is timed."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        super().step(placed)
        if self.timing and self.made == 3:
            self.last_loss = float("nan")
        return self.last_loss


def build(job):
    return Program(job)
