"""A doubled gradient."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def changed(self, gradients):
        return {name: 2 * array for name, array in gradients.items()}


def build(job):
    return Program(job)
