"""Once it is timed it has no state to compare, and takes any for loaded."""

from typing import Any

from fake_impl.strategies.single import Fake


class Program(Fake):
    def state(self) -> Any:
        return None if self.timing else super().state()

    def load_state(self, state):
        if state:
            super().load_state(state)


def build(job):
    return Program(job)
