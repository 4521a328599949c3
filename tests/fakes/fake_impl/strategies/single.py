"""The golden reference's own mathematics, as a program. Every rank trains on the whole batch."""

import weakref
from typing import Any

import numpy as np

from harness.reference import evaluation, loops
from harness.spec import optimizers


class Fake:
    def __init__(self, job):
        self.job, self.params, self.moments, self.made = job, dict(job.params), {}, 0
        self.last_loss = 0.0
        self.timing = job.precision != "fp64"

    def place(self, batch):
        return batch

    def step(self, placed) -> Any:
        self.last_loss, gradients = loops.loss_and_gradients(self.job.workload, self.params, placed)
        self.params = optimizers.update(
            self.job.optimizer, self.params, self.changed(gradients), self.moments, step=self.made
        )
        self.made += 1
        return self.last_loss

    def changed(self, gradients):
        """The gradients of which the update is made."""
        return gradients

    def sync(self):
        pass

    def loss(self, of=None):
        return self.last_loss if of is None else of

    def evaluate(self, placed):
        return evaluation.evaluate(self.job.workload, self.params, placed)

    def state(self):
        moments = {f"optimizer/{slot}/{name}": a for (name, slot), a in self.moments.items()}
        model = {f"model/{name}": a for name, a in self.params.items()}
        return model | moments | {"optimizer/steps": np.array(self.made)}

    def load_state(self, state):
        self.params = {key.removeprefix("model/"): a for key, a in state.items() if key.startswith("model/")}
        self.made = int(state.get("optimizer/steps", 0))
        self.moments = {}
        for key, array in state.items():
            if key.startswith("optimizer/") and key.count("/") == 2:
                _, slot, name = key.split("/")
                self.moments[name, slot] = array

    def export(self):
        return [self.params]


BUILT = weakref.WeakSet()


def build(job):
    assert not BUILT, "the devices would hold two programs"
    program = Fake(job)
    BUILT.add(program)
    return program
