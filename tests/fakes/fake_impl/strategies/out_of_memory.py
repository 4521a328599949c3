"""As a device without memory says it."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        raise MemoryError("RESOURCE_EXHAUSTED: 1 TiB")


def build(job):
    return Program(job)
