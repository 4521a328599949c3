"""What all strategies here have in common: a model's state on its way through training, and the gradients of a batch
that comes in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.contract import Arrays, Job
from harness.spec.partition import shares
from tf_impl import losses, optim, placement, runtime, weights


class Training:
    """Subclasses say where things live: `put`, and `train_step`, which becomes the tf.function."""

    ranks = 1  # a batch is cut into so many shares
    loss_share = 1.0  # of the mean loss of a share of the batch, in what is differentiated
    own: Sequence[int] = (0,)  # those that this process takes

    def __init__(self, job: Job, stages: Sequence[keras.Model], devices: Sequence[str]) -> None:
        """`stages`: the model, in as many pieces as there are; call it in the scope that they were made in. `devices`:
        all that this process drives."""
        self.job, self.stages, self.devices = job, stages, devices
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = losses.get(job.workload.loss)
        self.variables = {name: variable for stage in stages for name, variable in weights.variables(stage).items()}
        self.running = {name: variable for stage in stages for name, variable in weights.running(stage).items()}
        weights.load(self.variables, job.params)
        fused = job.settings.get("fused_update", False)
        self.optimizer = optim.build(job.optimizer, list(self.variables.values()), fused=fused)
        xla = job.settings.get("xla", False)
        self.differentiated = tf.function(self.of_one_part, jit_compile=True) if xla else self.of_one_part
        self.compiled = tf.function(self.train_step)
        self.compiled_evaluation = tf.function(self.evaluation_step)
        self.last: Any = None

    def place(self, batch: Arrays) -> Any:
        cuts = [shares(batch, steps=self.job.accumulation_steps, rank=rank, ranks=self.ranks) for rank in self.own]
        return self.put([placement.on_host(parts, self.dtype) for parts in cuts])

    def put(self, own: Sequence[placement.Parts]) -> Any:
        """This process's shares of a batch, from host memory to where they are trained on."""
        raise NotImplementedError

    def train_step(self, parts: placement.Parts) -> tuple[Any, Any]:
        """One update; the loss, and the gradients if they will be asked for."""
        loss, gradients = self.loss_and_gradients(parts)
        self.optimizer.apply(gradients)
        return loss, gradients if self.job.keep_gradients else []

    def loss_and_gradients(self, parts: placement.Parts) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Means over the parts: of their losses, and of the gradients of `loss_share` times their losses."""
        loss, *gradients = _means(parts, self.differentiated)
        return loss, gradients

    def of_one_part(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        """The loss, then the gradient of `loss_share` times it for each variable."""
        (model,) = self.stages
        with tf.GradientTape() as tape:
            loss = self.loss_fn(model(x, training=True), y)
        seed = [tf.constant(self.loss_share, loss.dtype)]
        gradients: Any = tape.gradient(loss, list(self.variables.values()), output_gradients=seed)
        return [loss, *gradients]

    def evaluation_step(self, parts: placement.Parts) -> Any:
        """Loss and accuracy, one tensor: means over the parts."""
        return _means(parts, self.evaluate_one_part)[0]

    def evaluate_one_part(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        (model,) = self.stages
        return [self.score(model(x, training=False), y)]

    def score(self, outputs: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Loss and accuracy, one tensor."""
        return tf.stack([self.loss_fn(outputs, y), losses.accuracy(self.job.workload.loss, outputs, y)])

    def step(self, placed: Any) -> Any:
        self.last = self.compiled(placed)
        return self.last[0]

    def sync(self) -> None:
        runtime.sync(self.devices)

    def loss(self, of: Any = None) -> float:
        return float(self.last[0] if of is None else of)

    def evaluate(self, placed: Any) -> tuple[float, float]:
        loss, accuracy = self.compiled_evaluation(placed).numpy()
        return float(loss), float(accuracy)

    def changing(self) -> dict[str, dict[str, tf.Variable]]:
        """All that training changes."""
        remembered = self.optimizer.remembered(list(self.variables))
        return {"model": self.variables, "running": self.running, "optimizer": remembered}

    def state(self) -> Arrays | None:
        return {
            f"{kind}/{name}": array
            for kind, variables in self.changing().items()
            for name, array in weights.parameters(variables).items()
        }

    def load_state(self, state: Arrays) -> None:
        for kind, variables in self.changing().items():
            given = {name.partition("/")[2]: array for name, array in state.items() if name.startswith(f"{kind}/")}
            if kind == "optimizer" and not given:  # another strategy's or framework's state: begin as new
                given = {name: np.zeros_like(array) for name, array in weights.parameters(variables).items()}
            weights.load(variables, given)

    def gradients(self) -> Arrays | None:
        return weights.parameters(dict(zip(self.variables, self.last[1], strict=True)))

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.variables)]


def _means(parts: placement.Parts, of_one_part: Callable[..., list[tf.Tensor]]) -> list[tf.Tensor]:
    """What `of_one_part` finds, averaged over the parts."""
    sums: list[tf.Tensor] = []
    for x, y in parts:
        # One part after another: left to itself TensorFlow may run all at once, and hold all their activations.
        with tf.control_dependencies(sums):
            found = of_one_part(x, y)
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    return sums if len(parts) == 1 else [total / len(parts) for total in sums]
