"""Gradients of a batch in pieces, with options of its own: see the manifest."""

from fake_impl.strategies.single import Fake
from harness.reference import loops
from harness.spec import optimizers, partition


class Program(Fake):
    def step(self, placed):
        batch = len(placed["x"])
        size = self.job.options.get("piece") or batch // self.job.options["pieces"]
        groups = partition.micro_batches(batch, min(max(1, size), batch))
        self.last_loss, gradients = loops.loss_and_gradients(self.job.workload, self.params, placed, groups=groups)
        self.params = optimizers.update(self.job.optimizer, self.params, gradients, self.moments, step=self.made)
        self.made += 1
        return self.last_loss


def build(job):
    return Program(job)
