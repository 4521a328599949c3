"""What model_parallel and pipeline share: a network in stages, each compiled by itself for its own device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from harness.contract import Arrays, Job
from harness.spec import partition
from jax_impl import losses, runtime, stages
from jax_impl.program import Program
from jax_impl.train_state import TrainState


class StagedProgram(Program):
    """`stages[i]` are the programs of a stage, `held[i]` is its state, both on the device `stages[i].device`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        points, devices = stages.cut_points(job), runtime.devices(job.world)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        self.stages = [
            stages.compile_stage(stage, job, device, first=index == 0)
            for index, (stage, device) in enumerate(zip(stages.split(job, points), devices, strict=True))
        ]
        self.held = self.spread(self.initial())
        self.evaluation = jax.jit(losses.evaluation(job.workload.loss))

    def spread(self, whole: TrainState) -> list[TrainState]:
        return [jax.device_put(stages.map_trees(each.stage.own, whole), each.device) for each in self.stages]

    def whole(self) -> TrainState:
        return stages.map_trees(stages.joined, *self.held)

    def update(self, gradients: Sequence[Any]) -> None:
        """Every stage updates its own parameters, on its device. `gradients`: of each stage."""
        for index, (stage, held) in enumerate(zip(self.stages, self.held, strict=True)):
            params, opt_state = stage.update(held.params, held.opt_state, gradients[index])
            self.held[index] = held._replace(params=params, opt_state=opt_state)

    # How a batch lies on the devices is a matter of the strategy: whole, or in micro-batches.

    def put(self, batch: Arrays) -> Any:
        raise NotImplementedError

    def step(self, placed: Any) -> jax.Array:
        raise NotImplementedError

    def evaluate(self, placed: Any) -> tuple[float, float]:
        raise NotImplementedError

    def infer(self, x: jax.Array) -> jax.Array:
        """The network's outputs on the last device, for inputs on the first. BatchNorm uses running statistics."""
        for stage, held in zip(self.stages, self.held, strict=True):
            x, _ = stage.infer(held.params, held.batch_stats, jax.device_put(x, stage.device))
        return x
