"""One device: the whole training step as one pure function under jit. The base case of every speed-up.

Parameters, gradients and the whole batch live on one device; nothing crosses. The step takes the state and returns a
new one. The old state is donated, so XLA may write the new parameters over the old ones' memory, as an in-place update
does in the other frameworks.
"""

from __future__ import annotations

import jax
import optax

from harness.contract import Arrays, Job
from jax_impl import optim, placement, runtime
from jax_impl.objective import make_evaluation, make_objective, with_accumulation
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.train_state import Step, TrainState


def make_step(job: Job) -> Step:
    """(state, x, y) to the updated state, and the loss."""
    objective, optimizer = make_objective(job), optim.build(job.optimizer)
    value_and_grad = with_accumulation(jax.value_and_grad(objective, has_aux=True), job)

    def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, batch_stats), loss

    return step


class SingleDevice(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.device = runtime.devices(job.world)[0]
        self.held = self.spread(self.initial())
        step = make_step(job)
        self.compiled = jax.jit(step, donate_argnums=0)
        self.compiled_steps = jax.jit(scanned(step), donate_argnums=0)
        self.evaluation = jax.jit(make_evaluation(job))

    def spread(self, whole: TrainState) -> TrainState:
        return jax.device_put(whole, self.device)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(placement.parts(batch, self.job), self.device)


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
