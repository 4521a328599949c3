"""The golden reference: the training that every cell must reproduce, in float64 with NumPy, without any framework.

Training loops are defined here, losses in losses.py, optimizers in harness/spec/optimizers.py, layers in
harness/layers/. There is one loop for each algorithm. `train` is synchronous: all strategies that claim to train like
a single device are compared with it. `train_locally`, and `replay` in asynchronous.py, define the two algorithms that
train differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from harness.contract import Moments
from harness.layers import chain_forward, running_statistics
from harness.reference.golden import Golden
from harness.reference.losses import loss_and_gradient
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.spec.optimizers import update
from harness.spec.partition import shares
from harness.workloads import Workload


def train(
    workload: Workload,
    params: Arrays,
    batches: Iterable[Arrays],
    *,
    optimizer: OptimizerSpec,
    groups: Callable[[int], Sequence[int]] | None = None,
    moments: Moments | None = None,
    made: int = 0,
    kept: Moments | None = None,
) -> Golden:
    """Train on each batch once.

    `groups` turns the size of a batch into the sizes of its parts that share normalization statistics; by default, that
    is the whole batch. The loss is the mean over all samples, whatever the groups. Raises ValueError if the parts do
    not add up to the batch. `moments`: what the optimizer remembers of the `made` updates before these. `kept`: a
    dictionary to which is added what it remembers at the end.
    """
    initial, losses, after_first, state = dict(params), [], {}, dict(moments or {})
    running = running_statistics.Histories(workload.layers)
    for step, batch in enumerate(batches, made):
        parts = None if groups is None else groups(len(batch["x"]))
        seen: list[Arrays] = []
        loss, gradients = loss_and_gradients(workload, params, batch, groups=parts, seen=seen)
        running.add(seen)
        losses.append(loss)
        params = update(optimizer, params, gradients, state, step=step)
        if step == made:
            after_first = params
    if kept is not None:
        kept.update(state)
    return Golden(
        initial=initial,
        losses=np.array(losses),
        after_first=(after_first,),
        params=params,
        running=running.named(),
    )


def train_locally(
    workload: Workload,
    params: Arrays,
    batches: Iterable[Arrays],
    *,
    optimizer: OptimizerSpec,
    workers: int,
    sync_every: int,
    accumulation_steps: int = 1,
    groups: Callable[[int], Sequence[int]] | None = None,
) -> Golden:
    """Local SGD (Stich 2019, arXiv:1805.09767): each worker trains on its share of every batch with its own optimizer.

    After every `sync_every` steps, the workers' parameters are averaged, but not the states of their optimizers.
    `groups` turns the size of a whole batch into the sizes of its parts that share normalization statistics; each part
    lies within one worker's share. The returned parameters are the mean over the workers.
    """
    replicas, states = [dict(params) for _ in range(workers)], [{} for _ in range(workers)]
    losses, after_first, running = [], (), running_statistics.Histories(workload.layers)
    for step, batch in enumerate(batches):
        seen: list[Arrays] = []  # of all workers
        of_all = None if groups is None else groups(len(batch["x"]))
        known = {"workers": workers, "accumulation_steps": accumulation_steps, "groups": of_all}
        own = [part_of_worker(batch, w, **known) for w in range(workers)]
        found = [
            loss_and_gradients(workload, replicas[w], part, groups=own_groups, seen=seen)
            for w, (part, own_groups) in enumerate(own)
        ]
        running.add(seen)
        losses.append(np.mean([loss for loss, _ in found]))
        for w, (_, gradients) in enumerate(found):
            replicas[w] = update(optimizer, replicas[w], gradients, states[w], step=step)
        if (step + 1) % sync_every == 0:
            replicas = [mean(replicas)] * workers
        if step == 0:
            after_first = tuple(replicas)
    return Golden(
        initial=dict(params),
        losses=np.array(losses),
        after_first=after_first,
        params=mean(replicas),
        running=running.named(),
    )


def part_of_worker(
    batch: Arrays, worker: int, *, workers: int, accumulation_steps: int = 1, groups: Sequence[int] | None = None
) -> tuple[Arrays, Sequence[int] | None]:
    """The samples of a batch that one of the workers of local training trains on, and how many share statistics.

    `groups`: the sizes of the parts of the whole batch that share normalization statistics, or None.
    """
    own = _joined(shares(batch, steps=accumulation_steps, rank=worker, ranks=workers))
    return own, None if groups is None else groups[worker::workers]


def _joined(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def mean(trees: Sequence[Arrays]) -> Arrays:
    """The mean of several mappings of arrays, name by name."""
    return {name: np.mean([tree[name] for tree in trees], axis=0) for name in trees[0]}


def loss_and_gradients(
    workload: Workload,
    params: Arrays,
    batch: Arrays,
    *,
    groups: Sequence[int] | None = None,
    seen: list[Arrays] | None = None,
) -> tuple[float, Arrays]:
    """The mean loss over the batch, and its gradient by parameter name.

    `groups`: the sizes of its consecutive parts that share normalization statistics; by default, one. Raises ValueError
    if they do not add up to the batch. `seen`: a list to which the statistics that BatchNorm saw in each are added.
    """
    total, gradients = 0.0, {name: np.zeros_like(array) for name, array in params.items()}
    for x, y, share in _parts(batch, groups):
        found: Arrays = {}
        layers = workload.layers if seen is None else running_statistics.observed(workload.layers, found)
        outputs, pullback = chain_forward(layers, params, x)
        if seen is not None:
            seen.append(found)
        loss, dy = loss_and_gradient(workload.loss, outputs, y)
        total += loss * share
        for name, gradient in pullback(dy * share)[1].items():
            gradients[name] += gradient
    return total, gradients


def mean_loss(workload: Workload, params: Arrays, batch: Arrays, *, groups: Sequence[int] | None = None) -> float:
    """The mean loss over the batch, as `loss_and_gradients` has it."""
    return sum(
        loss_and_gradient(workload.loss, chain_forward(workload.layers, params, x)[0], y)[0] * share
        for x, y, share in _parts(batch, groups)
    )


def _parts(batch: Arrays, groups: Sequence[int] | None) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Inputs, targets and share of each part of a batch."""
    count, end = len(batch["x"]), 0
    groups = groups or (count,)
    if sum(groups) != count:
        raise ValueError(f"groups of {tuple(groups)} samples do not make up a batch of {count}")
    for size in groups:
        start, end = end, end + size
        yield batch["x"][start:end], batch["y"][start:end], size / count
