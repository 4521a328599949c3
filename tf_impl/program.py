"""What every program does besides its training step: it keeps the state, places batches, waits, evaluates and exports.

A strategy's file shows the step itself. Accumulation is here too, because every step and every evaluation uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.contract import Arrays, Job
from harness.spec.partition import shares
from tf_impl import losses, optim, placement, runtime, weights

Gradients = list[Any]
"""For each parameter of the model, its gradient.

The tape is told to give zeros for a parameter that the loss does not depend on: by default it gives None, which cannot
be summed over parts or replicas, and which the optimizers of Keras pass over with a warning."""
LossAndGradients = tuple[tf.Tensor, Gradients]


def mean_over_parts(function: Callable[..., Any], parts: placement.Parts) -> Any:
    """The mean of `function(x, y)` over the parts of a batch, tensor by tensor, in the structure that it returns."""
    (x, y), *rest = parts
    total = function(x, y)
    for x, y in rest:
        # One part after another: left to itself, TensorFlow may run all parts at once and hold all their activations.
        # (XLA knows no such order. Where it compiles the whole step, it decides itself what runs and stays at a time.)
        with tf.control_dependencies(tf.nest.flatten(total)):
            found = function(x, y)
        total = tf.nest.map_structure(tf.add, total, found)
    if rest:
        total = tf.nest.map_structure(lambda tensor: tensor / len(parts), total)
    return total


class Program:
    """A harness.contract.Program without its step. A strategy adds `train_step`, a tf.function, and `to_devices`."""

    share_count = 1  # the global batch is cut into this many equal shares
    own_shares: Sequence[int] = (0,)  # the ones that this process trains on

    def __init__(self, job: Job, stages: Sequence[keras.Model], devices: Sequence[str]) -> None:
        """Call it in the scope in which `stages` were built.

        `stages`: the model, whole or cut into consecutive pieces. `devices`: all devices that this process drives.
        """
        self.job, self.stages, self.devices = job, stages, devices
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = losses.get(job.workload.loss)
        self.variables = {name: variable for stage in stages for name, variable in weights.variables(stage).items()}
        self.running = {name: variable for stage in stages for name, variable in weights.running(stage).items()}
        weights.load(self.variables, job.params)
        self.parameters = list(self.variables.values())
        fused = job.settings.get("fused_update", False)
        self.optimizer = optim.build(job.optimizer, self.parameters, fused=fused)
        self.last_loss: Any = None  # what the last step returned

    def place(self, batch: Arrays) -> Any:
        """Cut the global batch, and put this process's shares on its devices."""
        steps, ranks = self.job.accumulation_steps, self.share_count
        cut = [shares(batch, steps=steps, rank=share, ranks=ranks) for share in self.own_shares]
        return self.to_devices([placement.to_host(parts, self.dtype) for parts in cut])

    def to_devices(self, own: Sequence[placement.Parts]) -> Any:
        """Move this process's shares of a batch from host memory to the devices that train on them."""
        raise NotImplementedError

    def train_step(self, parts: Any) -> Any:
        """One update, as a tf.function. Returns the loss."""
        raise NotImplementedError

    def step(self, placed: Any) -> Any:
        """One update; returns its loss as it is on the devices."""
        self.last_loss = self.train_step(placed)
        return self.last_loss

    def sync(self) -> None:
        """Wait until all devices are idle."""
        runtime.sync(self.devices)

    def loss(self, of: Any = None) -> float:
        """The loss that a step returned, by default the last step."""
        return float(self.last_loss if of is None else of)

    @tf.function
    def evaluation_step(self, parts: Any) -> Any:
        """Loss and accuracy as one tensor: means over the parts."""
        return mean_over_parts(self.evaluate_part, parts)

    def evaluate_part(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Loss and accuracy of one part as one tensor. A model in several stages needs its own version."""
        (model,) = self.stages
        return self.score(model(x, training=False), y)

    def score(self, outputs: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Loss and accuracy of the model's outputs as one tensor."""
        return tf.stack([self.loss_fn(outputs, y), losses.accuracy(self.job.workload.loss, outputs, y)])

    def evaluate(self, placed: Any) -> tuple[float, float]:
        """Mean loss and accuracy over a placed batch."""
        loss, accuracy = self.evaluation_step(placed).numpy()
        return float(loss), float(accuracy)

    def changing(self) -> dict[str, dict[str, tf.Variable]]:
        """All variables that training changes, by kind and name."""
        remembered = self.optimizer.remembered(list(self.variables))
        return {"model": self.variables, "running": self.running, "optimizer": remembered}

    def state(self) -> Arrays | None:
        """All that training has changed, by "kind/name"."""
        return {
            f"{kind}/{name}": array
            for kind, variables in self.changing().items()
            for name, array in weights.parameters(variables).items()
        }

    def load_state(self, state: Arrays) -> None:
        """Take up a state. Without optimizer state, the optimizer starts as new."""
        for kind, variables in self.changing().items():
            given = {name.partition("/")[2]: array for name, array in state.items() if name.startswith(f"{kind}/")}
            if kind == "optimizer" and not given:  # the state comes from another strategy or framework
                given = {name: np.zeros_like(array) for name, array in weights.parameters(variables).items()}
            weights.load(variables, given)

    def export(self) -> list[Arrays]:
        """The current parameters, canonical."""
        return [weights.parameters(self.variables)]
