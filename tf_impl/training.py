"""What all strategies here have in common: a model's state on its way through training, and the gradients of a batch
that comes in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import losses, optim, placement, runtime, weights


class Training:
    """Subclasses say where things live: `place`, and `train_step`, which becomes the tf.function."""

    def __init__(self, job: Job, stages: Sequence[keras.Model], devices: Sequence[str]) -> None:
        """`stages`: the model, in as many pieces as there are; call it in the scope that they were made in. `devices`:
        all that this process drives."""
        self.job, self.stages, self.devices = job, stages, devices
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = losses.get(job.workload.loss)
        self.variables = {name: variable for stage in stages for name, variable in weights.variables(stage).items()}
        weights.load(self.variables, job.params)
        self.optimizer = optim.build(job.optimizer, list(self.variables.values()))
        self.compiled = tf.function(self.train_step)
        self.last: Any = None

    def train_step(self, parts: placement.Parts) -> tuple[Any, Any]:
        """One update; the loss, and the gradients if they will be asked for."""
        loss, gradients = self.loss_and_gradients(parts)
        self.optimizer.apply(gradients)
        return loss, gradients if self.job.keep_gradients else []

    def loss_and_gradients(self, parts: placement.Parts) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Means over the parts: of their losses and of the losses' gradients."""
        losses_, sums = [], []
        for x, y in parts:
            # One part after another: left to itself TensorFlow may run all at once, and hold all their activations.
            with tf.control_dependencies(sums):
                loss, gradients = self.of_one_part(x, y)
            losses_.append(loss)
            sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
        if len(parts) == 1:
            return losses_[0], sums
        return tf.add_n(losses_) / len(parts), [total / len(parts) for total in sums]

    def of_one_part(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        (model,) = self.stages
        with tf.GradientTape() as tape:
            loss = self.loss_fn(model(x, training=True), y)
        gradients: Any = tape.gradient(loss, list(self.variables.values()))
        return loss, gradients

    def step(self, placed: Any) -> None:
        self.last = self.compiled(placed)

    def sync(self) -> None:
        runtime.sync(self.devices)

    def loss(self) -> float:
        return float(self.last[0])

    def gradients(self) -> Arrays | None:
        return weights.parameters(dict(zip(self.variables, self.last[1], strict=True)))

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.variables)]
