"""What the programs of all strategies have in common: a state on the devices, and the metrics of the last step."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from harness.contract import Arrays, Job
from jax_impl import states, training, weights
from jax_impl.training import State

MOST_UNDER_WAY = 16
"""So many steps may be enqueued on CPU devices. XLA admits 32 programs a device; once that many with collectives wait,
the devices wait for each other for ever in their all-reduce (jax 0.10.2: 48 steps ahead end well, 60 never)."""


class Program:
    """A strategy says how a batch (`put`) and a state (`spread`, `whole`) lie on the devices, and compiles a step and
    an evaluation.

    The two ways of a state lead between the devices and the form in which a single device has it, in which it is saved.
    Only running statistics may differ from device to device, and then have a leading axis there.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.held: Any = None  # the State, as it lies on the devices
        self.compiled: Any = None  # (held, x, y) to what is held afterwards, and Metrics
        self.evaluation: Any = None  # (held.params, held.batch_stats, x, y) to loss and accuracy, as one array
        self.metrics: Any = None
        self.under_way: deque[jax.Array] = deque()  # losses of steps on CPU devices

    def has_own_statistics(self) -> bool:
        """Whether each device has running statistics of its own. Evaluation and state use their mean."""
        return False

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        """What a step takes of a global batch. The copies to the devices have begun, and are not waited for."""
        raise NotImplementedError

    def spread(self, whole: State) -> Any:
        """A state on the devices."""
        raise NotImplementedError

    def whole(self) -> State:
        """The state that the devices hold."""
        return self.held

    def initial(self) -> State:
        """The job's weights and a fresh optimizer state."""
        return training.initial_state(self.job, own_statistics=self.has_own_statistics())

    def place(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.block_until_ready(self.put(batch))  # else the copies would run into the timed steps

    def step(self, placed: tuple[jax.Array, jax.Array]) -> jax.Array:
        self.held, self.metrics = self.compiled(self.held, *placed)
        if self.job.world.platform == "cpu":
            self.under_way.append(self.metrics.loss)
            if len(self.under_way) > MOST_UNDER_WAY:
                self.under_way.popleft().block_until_ready()
        return self.metrics.loss

    def sync(self) -> None:
        jax.block_until_ready((self.held, self.metrics))

    def loss(self, of: jax.Array | None = None) -> float:
        return float(self.metrics.loss if of is None else of)

    def evaluate(self, placed: tuple[jax.Array, jax.Array]) -> tuple[float, float]:
        loss, accuracy = np.asarray(self.evaluation(self.held.params, self.held.batch_stats, *placed))
        return float(loss), float(accuracy)

    def state(self) -> Arrays:
        return states.save(self.whole(), own_statistics=self.has_own_statistics())

    def load_state(self, state: Arrays) -> None:
        self.held = self.spread(states.load(self.initial(), state))

    def gradients(self) -> Arrays | None:
        return weights.parameters(self.metrics.gradients)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.whole().params)]
