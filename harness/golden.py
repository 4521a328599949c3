"""The golden reference: the training that every cell must reproduce, in float64 numpy, by none of the frameworks.

Losses, optimizers and the loop are written out here as definitions. Where frameworks define an optimizer differently,
PyTorch's definition holds (torch.optim, version 2.11 documentation); tests compare with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.layers import Arrays, chain_forward, log_softmax
from harness.specs import OptimizerSpec
from harness.workloads import Loss, Workload


@dataclass(frozen=True, kw_only=True)
class Golden:
    """`losses[k]` is the loss of step k before its update; `gradients` are those of step 0; `params` come after all.

    `noise`: how far each quantity moves when the initial weights are rounded once more (harness/parity.py).
    """

    initial: Arrays
    losses: np.ndarray
    gradients: Arrays
    params: Arrays
    noise: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write as one .npz file."""
        noise = {name: np.array(value) for name, value in self.noise.items()}
        named = {"initial": self.initial, "gradients": self.gradients, "params": self.params, "noise": noise}
        flat = {f"{group}/{name}": array for group, arrays in named.items() for name, array in arrays.items()}
        np.savez(path, losses=self.losses, **flat)  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: Path) -> Golden:
        """Read what `save` wrote; nothing is unpickled."""
        groups: dict[str, Arrays] = {"initial": {}, "gradients": {}, "params": {}, "noise": {}}
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                group, _, name = key.partition("/")
                if name:
                    groups[group][name] = archive[key]
            noise = {name: float(value) for name, value in groups.pop("noise").items()}
            return cls(losses=archive["losses"], noise=noise, **groups)


def train(
    workload: Workload,
    params: Arrays,
    batches: Iterable[Arrays],
    *,
    optimizer: OptimizerSpec,
    groups: Sequence[int] | None = None,
) -> Golden:
    """Train on each batch once.

    `groups` are the sizes of the parts of a batch that share normalization statistics, the whole batch by default; the
    loss is the mean over all samples whatever the groups. Raises ValueError if they do not add up to the batch.
    """
    initial, losses, first_gradients, state = dict(params), [], {}, {}
    for step, batch in enumerate(batches):
        loss, gradients = loss_and_gradients(workload, params, batch, groups=groups)
        losses.append(loss)
        if step == 0:
            first_gradients = gradients
        params = update(optimizer, params, gradients, state, step=step)
    return Golden(initial=initial, losses=np.array(losses), gradients=first_gradients, params=params)


def loss_and_gradients(
    workload: Workload, params: Arrays, batch: Arrays, *, groups: Sequence[int] | None = None
) -> tuple[float, Arrays]:
    """Mean loss over the batch, and its gradient by parameter name."""
    count = len(batch["x"])
    groups = groups or (count,)
    if sum(groups) != count:
        raise ValueError(f"groups of {tuple(groups)} samples do not make up a batch of {count}")
    total, gradients = 0.0, {name: np.zeros_like(array) for name, array in params.items()}
    ends = np.cumsum(groups)
    for size, end in zip(groups, ends, strict=True):
        x, y = batch["x"][end - size : end], batch["y"][end - size : end]
        outputs, pullback = chain_forward(workload.layers, params, x)
        loss, dy = loss_and_gradient(workload.loss, outputs, y)
        total += loss * size / count
        for name, gradient in pullback(dy * (size / count))[1].items():
            gradients[name] += gradient
    return total, gradients


def loss_and_gradient(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss of a batch and its gradient with respect to the outputs.

    "mse" averages over samples and output elements. "cross_entropy" takes logits, "nll" log-probabilities; both average
    over samples.
    """
    if loss == "mse":
        difference = outputs - targets
        return float(np.mean(difference**2)), 2 * difference / difference.size
    rows, count = np.arange(len(targets)), len(targets)
    log_probabilities = log_softmax(outputs) if loss == "cross_entropy" else outputs
    one_hot = np.zeros_like(outputs)
    one_hot[rows, targets] = 1
    gradient = np.exp(log_probabilities) - one_hot if loss == "cross_entropy" else -one_hot
    return float(-log_probabilities[rows, targets].mean()), gradient / count


def update(optimizer: OptimizerSpec, params: Arrays, gradients: Arrays, state: dict, *, step: int) -> Arrays:
    """Parameters after one update; `state` keeps the moments from call to call, `step` counts from 0.

    sgd:  v = momentum v + g;  w = w - lr v     (the rate stays outside the velocity)
    adam: m = b1 m + (1-b1) g;  s = b2 s + (1-b2) g^2;  w = w - lr m/(1-b1^t) / (sqrt(s/(1-b2^t)) + eps),  t = step + 1
    (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1: epsilon is added after the bias correction.)
    """
    new: Arrays = {}
    for name, w in params.items():
        g = gradients[name]
        if optimizer.name == "sgd":
            v = optimizer.momentum * state.get((name, "v"), 0.0) + g
            state[name, "v"] = v
            new[name] = w - optimizer.learning_rate * v
        else:
            b1, b2, t = optimizer.beta1, optimizer.beta2, step + 1
            m = b1 * state.get((name, "m"), 0.0) + (1 - b1) * g
            s = b2 * state.get((name, "s"), 0.0) + (1 - b2) * g * g
            state[name, "m"], state[name, "s"] = m, s
            corrected = m / (1 - b1**t) / (np.sqrt(s / (1 - b2**t)) + optimizer.epsilon)
            new[name] = w - optimizer.learning_rate * corrected
    return new
