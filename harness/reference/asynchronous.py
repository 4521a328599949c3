"""The golden reference of asynchronous SGD: what each push held, and from which parameters each gradient was computed.

The order in which workers push is different each time. So the reference repeats a recorded history, or lets workers
take turns. What a history may be is part of the algorithm, and is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.layers import running_statistics
from harness.reference.golden import Golden
from harness.reference.loops import loss_and_gradients
from harness.spec import OptimizerSpec
from harness.spec.arrays import Arrays
from harness.spec.optimizers import update
from harness.spec.partition import shares
from harness.workloads import Workload

Seen = dict[tuple[int, int], Arrays]  # the statistics that BatchNorm saw, by step and worker


class ImpossibleHistory(ValueError):
    """What an asynchronous run recorded of its pushes cannot have happened in the training that it claims to be."""


@dataclass(frozen=True)
class Buffer:
    """The gradients that worker `rank` summed, of its shares of the batches `steps`.

    The gradient of steps[i] was computed from the parameters after the first versions[i] updates.
    """

    rank: int
    steps: tuple[int, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """An asynchronous run: the buffers that were pushed, one in each update, and those that still held gradients."""

    pushed: tuple[Buffer, ...]
    left: tuple[Buffer, ...] = ()


def in_turn(workers: int, steps: int, *, push_every: int = 1) -> History:
    """The history of workers that take turns: one after another in every step, and never from stale parameters."""
    ends = range(push_every, steps + 1, push_every)
    pushed = []
    for number, end in enumerate(ends):
        for rank in range(workers):
            versions = (number * workers,) * (push_every - 1) + (number * workers + rank,)
            pushed.append(Buffer(rank, tuple(range(end - push_every, end)), versions))
    rest = tuple(range(len(ends) * push_every, steps))
    left = [Buffer(rank, rest, (len(pushed),) * len(rest)) for rank in range(workers) if rest]
    return History(tuple(pushed), tuple(left))


def replay(
    workload: Workload,
    params: Arrays,
    batches: Iterable[Arrays],
    *,
    optimizer: OptimizerSpec,
    history: History,
    push_every: int = 1,
) -> Golden:
    """Asynchronous SGD (Dean et al. 2012, "Large scale distributed deep networks"), in the order in which it happened.

    Each push is one update of the shared parameters by the sum of one worker's gradients of `push_every` steps. The
    loss of a step is the mean over the workers, each with the parameters that it saw. What is left in a buffer has a
    loss, but updates nothing. The first `push_every` steps end with as many pushes as there are workers. Raises
    ImpossibleHistory for one that this training cannot have: see `check_history`. BatchNorm normalizes over each
    worker's share.
    """
    batches = list(batches)
    workers = check_history(history, steps=len(batches), push_every=push_every)
    versions, state, losses, after_first = {0: dict(params)}, {}, np.zeros(len(batches)), dict(params)
    last, seen = len(history.pushed), Seen()
    buffers = (*history.pushed, *history.left)
    for number, buffer in enumerate(buffers):
        total = {name: np.zeros_like(array) for name, array in params.items()}
        for step, version in zip(buffer.steps, buffer.versions, strict=True):
            share = shares(batches[step], rank=buffer.rank, ranks=workers)[0]
            found: list[Arrays] = []
            loss, gradients = loss_and_gradients(workload, versions[version], share, seen=found)
            (seen[step, buffer.rank],) = found
            losses[step] += loss / workers
            total = {name: array + gradients[name] for name, array in total.items()}
        if number < last:
            versions[number + 1] = update(optimizer, versions[number], total, state, step=number)
            if number + 1 == workers:
                after_first = versions[workers]
        needed = {number + 1, last}.union(*(later.versions for later in buffers[number + 1 :]))  # frees the others
        versions = {version: kept for version, kept in versions.items() if version in needed}
    return Golden(
        initial=dict(params),
        losses=losses,
        after_first=(after_first,),
        params=versions[last],
        running=running_of(workload, history, seen),
    )


def running_of(workload: Workload, history: History, seen: Seen) -> Arrays:
    """BatchNorm's running statistics at the end, as Golden has them, in two ways.

    Workers may have their own, which move with each of their steps, and "all" is the mean of these. Or a server has one
    set, "server", which moves with each push: right for workers that take turns. Others would move it from where it was
    when they pulled.
    """
    found = running_statistics.Histories(workload.layers)
    for buffer in history.pushed:
        for step in buffer.steps:
            found.push(seen[step, buffer.rank])
    for step in sorted({step for step, _ in seen}):
        found.add([seen[key] for key in sorted(seen) if key[0] == step])
    return found.named()


def check_history(history: History, *, steps: int, push_every: int) -> int:
    """The number of workers in a history that is possible.

    Raises ImpossibleHistory if a worker's buffers are not its steps in their order, `push_every` in each push and fewer
    in what is left; if a gradient saw a version that did not exist yet; or if it saw one from before its worker's last
    push, after which the worker must have copied the parameters.
    """
    buffers = (*history.pushed, *history.left)
    workers = max((buffer.rank for buffer in buffers), default=-1) + 1
    for rank in range(workers):
        own = [buffer.steps for buffer in buffers if buffer.rank == rank]
        expected = [tuple(range(start, min(start + push_every, steps))) for start in range(0, steps, push_every)]
        pushed = sum(buffer.rank == rank for buffer in history.pushed)
        if own != expected or pushed != steps // push_every:
            raise ImpossibleHistory(
                f"worker {rank} made {pushed} pushes, and its buffers held steps {own}; in {steps} steps there are "
                f"{steps // push_every} pushes, of {push_every} steps each"
            )
    copied = dict.fromkeys(range(workers), 0)  # the version after each worker's last push
    for number, buffer in enumerate(buffers):
        newest = min(number, len(history.pushed))
        for version in buffer.versions:
            if not copied[buffer.rank] <= version <= newest:
                raise ImpossibleHistory(
                    f"push {number}, of worker {buffer.rank}, has a gradient from version {version}; "
                    f"possible are {copied[buffer.rank]} to {newest}"
                )
        copied[buffer.rank] = number + 1
    return workers
