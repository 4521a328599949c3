"""Raises an error that names a file whose name is not UTF-8, with an escape sequence."""

from fake_impl.strategies.single import Fake


class Program(Fake):
    def step(self, placed):
        raise ValueError("cannot read \udcff\x1b[31m\u202e")


def build(job):
    return Program(job)
