"""What the programs of all strategies share: a state on the devices, and the loss of the last step."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from harness.contract import Arrays, Job
from harness.spec.partition import shares
from jax_impl import placement, train_state, weights
from jax_impl.train_state import TrainState

MOST_UNDER_WAY = 16
"""How many calls may be enqueued on CPU devices. XLA admits 32 programs per device. Once that many programs with
collectives wait, the devices wait for each other in their all-reduces for ever (jax 0.10.2: 48 steps ahead always end,
60 never)."""


class Program:
    """A strategy compiles a step and an evaluation. It also says how a batch (`put`) and a state lie on the devices.

    `spread` brings a state from the form it has on a single device, in which it is saved, to the devices; `whole`
    brings it back. `own_statistics`: each device has its own running statistics, so that these have a leading axis on
    the devices. Evaluation and saved states use their mean.
    """

    def __init__(self, job: Job, *, own_statistics: bool = False) -> None:
        self.job, self.own_statistics = job, own_statistics
        self.held: Any = None  # the TrainState, as it lies on the devices
        self.compiled: Any = None  # (held, x, y) to the next `held`, and the loss
        self.evaluation: Any = None  # (held.params, held.batch_stats, x, y) to loss and accuracy, as one array
        self.last_loss: Any = None
        self.under_way: deque[jax.Array] = deque()  # the last loss of each call on CPU devices

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        """A batch as a step takes it. Returns while its copies to the devices are still under way.

        The batch is this process's share: the whole global batch if one process drives all devices.
        """
        raise NotImplementedError

    def spread(self, whole: TrainState) -> Any:
        """A state on the devices."""
        raise NotImplementedError

    def whole(self) -> TrainState:
        """The state that the devices hold."""
        return self.held

    def initial(self) -> TrainState:
        """The job's weights and a fresh optimizer state."""
        return train_state.initial(self.job, own_statistics=self.own_statistics)

    def place(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        world = self.job.world
        if world.processes > 1:
            of_rank = {"rank": world.rank, "ranks": world.processes}
            batch = placement.joined(shares(batch, steps=self.job.accumulation_steps, **of_rank))
        return jax.block_until_ready(self.put(batch))  # else the copies would run into the timed steps

    def step(self, placed: tuple[jax.Array, jax.Array]) -> jax.Array:
        self.held, self.last_loss = self.compiled(self.held, *placed)
        self.bound_queue()
        return self.last_loss

    def bound_queue(self) -> None:
        """On CPU devices, wait for an earlier call if MOST_UNDER_WAY others have been enqueued since."""
        if self.job.world.platform == "cpu":
            self.under_way.append(self.last_loss)
            if len(self.under_way) > MOST_UNDER_WAY:
                self.under_way.popleft().block_until_ready()

    def sync(self) -> None:
        jax.block_until_ready((self.held, self.last_loss))

    def loss(self, of: jax.Array | None = None) -> float:
        return float(self.last_loss if of is None else of)

    def evaluate(self, placed: tuple[jax.Array, jax.Array]) -> tuple[float, float]:
        loss, accuracy = np.asarray(self.evaluation(self.held.params, self.held.batch_stats, *placed))
        return float(loss), float(accuracy)

    def state(self) -> Arrays:
        return train_state.save(self.whole(), own_statistics=self.own_statistics)

    def load_state(self, state: Arrays) -> None:
        self.held = self.spread(train_state.load(self.initial(), state))

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.whole().params)]
