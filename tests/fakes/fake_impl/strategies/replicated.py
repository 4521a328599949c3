"""Right, with a process a device."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    pass


def build(job):
    return Program(job)
