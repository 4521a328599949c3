"""One device: the shared step under jit. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. The state is donated: the update may
write over the old parameters' memory, as an in-place update does in the other frameworks.
"""

from __future__ import annotations

from typing import Any

import jax

from harness.contract import Arrays, Job
from jax_impl import runtime, training, weights


class SingleDevice:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = runtime.devices(job.world)[0]
        self.state = jax.device_put(training.initial_state(job), self.device)
        self.compiled = jax.jit(training.make_step(job), donate_argnums=0)
        self.metrics: Any = None

    def place(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        # wait: device_put returns before the copy is done, which would then run into the timed steps
        return jax.block_until_ready(jax.device_put(training.parts(batch, self.job), self.device))

    def step(self, placed: tuple[jax.Array, jax.Array]) -> None:
        self.state, self.metrics = self.compiled(self.state, *placed)

    def sync(self) -> None:
        jax.block_until_ready((self.state, self.metrics))

    def loss(self) -> float:
        return float(self.metrics.loss)

    def gradients(self) -> Arrays | None:
        return weights.parameters(self.metrics.gradients)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.state.params)]


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
