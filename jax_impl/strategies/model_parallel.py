"""Model parallelism by hand: the layers are cut into stages, one on each device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds its own stage's parameters, gradients and optimizer state, so a network can be larger than one
device's memory: that is what this buys. It buys no speed: activations cross to the next device on the way forward,
their gradients on the way back, and at any time one device works. BatchNorm sees the whole batch.

Each stage is compiled by itself, for its device: a jitted program lives on one set of devices, so the way between is
Python's. Forward hands out the pullback of jax.vjp, which is a tree of arrays like anything that jit returns: backward
needs no second forward, but between the two the pullback holds a copy of the stage's weights with the activations.
Calls return at once and each device works through its own queue; a copy to the next device orders the two queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
import optax

from harness.contract import Arrays, Job
from harness.spec import Span, partition
from jax_impl import losses, optim, placement, runtime, stages
from jax_impl.program import Program
from jax_impl.train_state import Metrics, TrainState


class StageOnDevice:
    """One stage's programs, for its device."""

    def __init__(self, stage: stages.Stage, job: Job, device: Any, *, first: bool) -> None:
        self.device, self.own = device, stage.own
        optimizer = optim.build(job.optimizer)

        @jax.jit
        def forward(params: Any, batch_stats: Any, x: jax.Array) -> tuple[jax.Array, Any, Any]:
            def of(params: Any, x: jax.Array = x) -> tuple[jax.Array, Any]:
                return stage.forward(params, batch_stats, x)

            given = (params,) if first else (params, x)  # nobody asks for the gradient of the images
            y, pullback, batch_stats = jax.vjp(of, *given, has_aux=True)
            return y, pullback, batch_stats

        @partial(jax.jit, donate_argnums=(0, 1))
        def update(params: Any, opt_state: Any, gradients: Any) -> tuple[Any, Any]:
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        self.forward, self.update, self.infer = forward, update, jax.jit(stage.infer)
        self.backward = jax.jit(lambda pullback, dy: pullback(dy))


class ModelParallel(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        points, devices = stages.cut_points(job), runtime.devices(job.world)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        self.stages = [
            StageOnDevice(stage, job, device, first=index == 0)
            for index, (stage, device) in enumerate(zip(stages.split(job, points), devices, strict=True))
        ]
        self.held = self.spread(self.initial())
        self.loss_and_gradient = jax.jit(jax.value_and_grad(losses.get(job.workload.loss)))
        self.evaluation = jax.jit(losses.evaluation(job.workload.loss))

    def spread(self, whole: TrainState) -> list[TrainState]:
        return [jax.device_put(stages.map_trees(stage.own, whole), stage.device) for stage in self.stages]

    def whole(self) -> TrainState:
        return stages.map_trees(stages.joined, *self.held)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        x, y = placement.on_host(batch, self.job)
        # targets wait where the loss is taken
        return jax.device_put(x, self.stages[0].device), jax.device_put(y, self.stages[-1].device)

    def step(self, placed: tuple[jax.Array, jax.Array]) -> jax.Array:
        self.visit(placed, run=lambda _, __, function, *given: function(*given))
        return self.metrics.loss

    def evaluate(self, placed: tuple[jax.Array, jax.Array]) -> tuple[float, float]:
        x, y = placed
        for stage, held in zip(self.stages, self.held, strict=True):
            x, _ = stage.infer(held.params, held.batch_stats, jax.device_put(x, stage.device))
        loss, accuracy = np.asarray(self.evaluation(x, y))
        return float(loss), float(accuracy)

    def visit(self, placed: tuple[jax.Array, jax.Array], run: Callable) -> None:
        """One update. `run(stage, phase, function, *arguments)` calls a stage's program."""
        (x, y), pullbacks, gradients = placed, [], []
        for index, stage in enumerate(self.stages):
            held = self.held[index]
            x = jax.device_put(x, stage.device)
            x, pullback, batch_stats = run(index, "forward", stage.forward, held.params, held.batch_stats, x)
            pullbacks.append(pullback)
            self.held[index] = held._replace(batch_stats=batch_stats)
        loss, dy = self.loss_and_gradient(x, y)
        for index, stage in reversed(list(enumerate(self.stages))):
            dy = jax.device_put(dy, stage.device)
            own, *dx = run(index, "backward", stage.backward, pullbacks.pop(), dy)
            gradients.insert(0, own)
            dy = dx[0] if dx else None
        for index, stage in enumerate(self.stages):
            params, opt_state = stage.update(self.held[index].params, self.held[index].opt_state, gradients[index])
            self.held[index] = self.held[index]._replace(params=params, opt_state=opt_state)
        self.metrics = Metrics(loss, stages.joined(*gradients) if self.job.keep_gradients else None)

    def trace(self, placed: tuple[jax.Array, jax.Array]) -> list[Span]:
        """One step with the host's clock around each stage. It waits after each of them, which costs nothing here: no
        two stages ever work at the same time."""
        spans: list[Span] = []
        self.sync()

        def run(stage: int, phase: Literal["forward", "backward"], function: Callable, *given: Any) -> Any:
            jax.block_until_ready(given)  # the copy from the device before is not this stage's work
            start = time.perf_counter()
            result = jax.block_until_ready(function(*given))
            spans.append(Span(stage=stage, micro_batch=0, phase=phase, start=start, end=time.perf_counter()))
            return result

        self.visit(placed, run)
        self.sync()
        first = spans[0].start
        return [replace(span, start=span.start - first, end=span.end - first) for span in spans]


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
