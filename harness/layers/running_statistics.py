"""BatchNorm's running statistics: those of a training, and the network that normalizes with them in evaluation.

Defined as in torch.nn.BatchNorm2d: a running mean begins at 0 and a running variance at 1, and each step moves them by
`MOMENTUM` towards the mean and the unbiased variance of the batch. Flax and Keras take the biased variance, so that one
is kept as well. Statistics have the names "<layer>.mean", "<layer>.var" and "<layer>.biased_var".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.layers.base import Layer, Pullback
from harness.layers.chains import batch_norms, mapped
from harness.layers.normalization import BatchNorm
from harness.spec.arrays import Arrays
from harness.spec.kinds import StatisticsOf

MOMENTUM = 0.1
BIASED = ".biased_var"
"""Ends the name of a variance over as many numbers as there are; ".var" that of one over one fewer."""


@dataclass(frozen=True)
class Observed(BatchNorm):
    """A BatchNorm that writes the statistics of each batch into `found`."""

    found: Arrays | None = None

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        assert self.found is not None
        axes = tuple(range(x.ndim - 1))
        count = x.size // x.shape[-1]
        biased = x.var(axes)
        self.found[f"{self.name}.mean"] = x.mean(axes)
        self.found[f"{self.name}.var"] = biased * (count / max(1, count - 1))
        self.found[f"{self.name}{BIASED}"] = biased
        return super().forward(params, x)


@dataclass(frozen=True)
class Frozen(BatchNorm):
    """A BatchNorm in evaluation: it normalizes with running statistics."""

    running: Arrays | None = None

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        assert self.running is not None
        scale = params[f"{self.name}.weight"] / np.sqrt(self.running[f"{self.name}.var"] + self.epsilon)
        outputs = (x - self.running[f"{self.name}.mean"]) * scale + params[f"{self.name}.bias"]
        return outputs, lambda dy: (dy * scale, {})


def observed(layers: Sequence[Layer], found: Arrays) -> tuple[Layer, ...]:
    """The layers, with BatchNorms that write their statistics into `found`."""
    return _with(layers, lambda norm: Observed(norm.name, norm.channels, norm.epsilon, found=found))


def frozen(layers: Sequence[Layer], running: Arrays) -> tuple[Layer, ...]:
    """The layers in evaluation, with these running statistics."""
    return _with(layers, lambda norm: Frozen(norm.name, norm.channels, norm.epsilon, running=running))


def initial(layers: Sequence[Layer]) -> Arrays:
    """The running statistics before the first step, as programs keep them: means and variances."""
    norms = batch_norms(layers)
    means = {f"{norm.name}.mean": np.zeros(norm.channels) for norm in norms}
    return means | {f"{norm.name}.var": np.ones(norm.channels) for norm in norms}


def by_definition(statistics: Arrays, *, biased: bool) -> Arrays:
    """The statistics as a program names them: its ".var" is the biased variance or the unbiased one."""
    found = {name: array for name, array in statistics.items() if not name.endswith(BIASED)}
    if biased:
        found |= {name.replace(BIASED, ".var"): array for name, array in statistics.items() if name.endswith(BIASED)}
    return found


def history(running: Arrays, of: StatisticsOf, *, biased: bool = False) -> Arrays:
    """One history of those that `Histories.named` has, as "<layer>.mean" and "<layer>.var".

    torch keeps the unbiased variance, Flax and Keras the biased one.
    """
    own = {name.removeprefix(f"{of}/"): array for name, array in running.items() if name.startswith(f"{of}/")}
    return by_definition(own, biased=biased)


def moved(running: Arrays) -> Arrays:
    """How far running statistics have moved: means begin at 0, variances at 1."""
    return {name: array - (1.0 if name.endswith(".var") else 0.0) for name, array in running.items()}


def advanced(running: Arrays, groups: Sequence[Arrays]) -> Arrays:
    """The running statistics after a step. `groups`: the statistics of each equal part that normalizes by itself.

    Parts that lie on different devices have running statistics of their own, and this is their mean.
    """
    return {
        name: (1 - MOMENTUM) * array + MOMENTUM * np.mean([group[name] for group in groups], axis=0)
        for name, array in running.items()
    }


def hull(groups: Sequence[Arrays]) -> dict[str, Arrays]:
    """The smallest and the largest statistics that a step has seen, channel by channel: "least" and "most"."""
    known = {name: np.stack([group[name] for group in groups]) for name in (groups[0] if groups else ())}
    return {"least": {n: a.min(0) for n, a in known.items()}, "most": {n: a.max(0) for n, a in known.items()}}


class Histories:
    """The running statistics of a training, as programs keep them.

    "all": the mean over all devices. "first": those of the first device. "server": one set that all workers share, and
    that moves with each push; only asynchronous training has it. "least" and "most" are no histories: they are the
    statistics of the last step, see `hull`.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        start = initial(layers)
        start |= {name.replace(".var", BIASED): array for name, array in start.items() if name.endswith(".var")}
        self.of: dict[StatisticsOf, Arrays] = {"all": start, "first": start}
        self.start = start
        self.seen: Sequence[Arrays] = ()

    def add(self, groups: Sequence[Arrays]) -> None:
        """A step has seen these statistics."""
        self.of["all"] = advanced(self.of["all"], groups)
        self.of["first"] = advanced(self.of["first"], groups[:1])
        self.seen = groups

    def push(self, statistics: Arrays) -> None:
        """A worker that has seen these statistics moves the set on the server, as it is now."""
        self.of["server"] = advanced(self.of.get("server", self.start), [statistics])

    def named(self) -> Arrays:
        """All of them, as "<history>/<layer>.mean" and so on."""
        every = {**self.of, **hull(self.seen)}
        return {f"{history}/{name}": array for history, arrays in every.items() for name, array in arrays.items()}


def _with(layers: Sequence[Layer], change: Callable[[BatchNorm], BatchNorm]) -> tuple[Layer, ...]:
    """The layers, with each BatchNorm replaced, also in residual blocks."""
    return mapped(layers, lambda layer: change(layer) if isinstance(layer, BatchNorm) else layer)
