"""One device: the shared step under jit. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. The state is donated: the update may
write over the old parameters' memory, as an in-place update does in the other frameworks.
"""

from __future__ import annotations

import jax

from harness.contract import Arrays, Job
from jax_impl import runtime, training
from jax_impl.program import Program
from jax_impl.training import State


class SingleDevice(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.device = runtime.devices(job.world)[0]
        self.held = self.spread(self.initial())
        self.compiled = jax.jit(training.make_step(job), donate_argnums=0)
        self.evaluation = jax.jit(training.make_evaluation(job))

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(training.parts(batch, self.job), self.device)

    def spread(self, whole: State) -> State:
        return jax.device_put(whole, self.device)


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
