"""What the programs of all strategies have in common: a state on the devices, and the metrics of the last step."""

from __future__ import annotations

from typing import Any

import jax

from harness.contract import Arrays, Job
from jax_impl import weights


class Program:
    """A strategy says how a batch is cut and brought to the devices (`put`), and compiles the step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.held: Any = None  # training.State, as it lies on the devices
        self.compiled: Any = None  # (held, x, y) to what is held afterwards, and training.Metrics
        self.metrics: Any = None

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        """What a step takes of a global batch. The copies to the devices have begun, and are not waited for."""
        raise NotImplementedError

    def place(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.block_until_ready(self.put(batch))  # else the copies would run into the timed steps

    def step(self, placed: tuple[jax.Array, jax.Array]) -> None:
        self.held, self.metrics = self.compiled(self.held, *placed)

    def sync(self) -> None:
        jax.block_until_ready((self.held, self.metrics))

    def loss(self) -> float:
        return float(self.metrics.loss)

    def gradients(self) -> Arrays | None:
        return weights.parameters(self.metrics.gradients)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.held.params)]
