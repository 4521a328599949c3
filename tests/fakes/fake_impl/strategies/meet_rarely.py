"""Local training of all workers in one process, with options of its own: see the manifest."""

import numpy as np

from fake_impl.strategies.single import Fake
from harness.reference import loops
from harness.spec import optimizers
from harness.spec.partition import shares


class Program(Fake):
    def __init__(self, job):
        super().__init__(job)
        self.workers = [dict(job.params) for _ in range(job.world.devices)]
        self.moments = [{} for _ in self.workers]

    def step(self, placed):
        found = []
        for rank, params in enumerate(self.workers):
            (own,) = shares(placed, rank=rank, ranks=len(self.workers))
            found.append(loops.loss_and_gradients(self.job.workload, params, own))
            gradients, moments = found[-1][1], self.moments[rank]
            self.workers[rank] = optimizers.update(self.job.optimizer, params, gradients, moments, step=self.made)
        self.last_loss = float(np.mean([loss for loss, _ in found]))
        self.made += 1
        if self.made % self.job.options["meet_after"] == 0:
            self.workers = [self.met() for _ in self.workers]
        return self.last_loss

    def met(self):
        """The mean of the workers' parameters, or the first worker's and the mean distance from them."""
        if self.job.options["how"] == "mean":
            return mean(self.workers)
        first = self.workers[0]
        away = mean([{name: params[name] - first[name] for name in first} for params in self.workers])
        return {name: first[name] + away[name] for name in first}

    def export(self):
        return self.workers

    def state(self):
        of_workers = {
            f"optimizer/worker{rank}/{kind}/{name}": array
            for rank, (params, moments) in enumerate(zip(self.workers, self.moments, strict=True))
            for kind, name, array in (
                *(("params", name, array) for name, array in params.items()),
                *((slot, name, array) for (name, slot), array in moments.items()),
            )
        }
        model = {f"model/{name}": a for name, a in self.met().items()}
        return model | of_workers | {"optimizer/steps": np.array(self.made)}

    def load_state(self, state):
        super().load_state(state)
        self.workers, self.moments = [dict(self.params) for _ in self.workers], [{} for _ in self.workers]
        for key, array in state.items():
            if key.startswith("optimizer/worker"):
                _, worker, kind, name = key.split("/")
                rank = int(worker.removeprefix("worker"))
                if kind == "params":
                    self.workers[rank][name] = array
                else:
                    self.moments[rank][name, kind] = array


def mean(trees):
    return {name: np.mean([tree[name] for tree in trees], axis=0) for name in trees[0]}


def build(job):
    return Program(job)
