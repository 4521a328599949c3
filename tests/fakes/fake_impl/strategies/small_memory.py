"""A device that has room for 40 samples."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        if len(placed["x"]) > 40:
            raise MemoryError(f"RESOURCE_EXHAUSTED: {len(placed['x'])} samples")
        return super().step(placed)


def build(job):
    return Program(job)
