"""Cutting a batch into micro-batches, and a list of blocks into stages: arithmetic that planner and worker share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.spec import TrialSpec
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError

BALANCED = ("flops", "time", "parameters")
"""What the option `cut` may balance over the stages. A workload knows its FLOPs and parameters; a program measures the
time of its blocks."""


class CannotBeCut(UsageError):
    """A network that cannot be cut into so many stages, wherever the cuts are."""


def shares(batch: Arrays, *, steps: int = 1, rank: int = 0, ranks: int = 1) -> list[Arrays]:
    """The parts of a global batch that `rank` trains on, one for each of `steps` accumulation steps.

    The order is that of a loop over a loader. The batch consists of `steps` global micro-batches, one after another.
    Each is cut into equal parts, one per rank, in the order of the ranks. Raises ValueError if the batch does not
    divide.
    """
    rows = share_rows(len(batch["x"]), steps=steps, rank=rank, ranks=ranks)
    return [{name: array[part.start : part.stop] for name, array in batch.items()} for part in rows]


def share_rows(count: int, *, steps: int = 1, rank: int = 0, ranks: int = 1) -> list[range]:
    """The rows of those parts in a batch of `count`. Raises ValueError if the batch does not divide."""
    size, rest = divmod(count, steps * ranks)
    if rest:
        raise ValueError(f"a batch of {count} cannot be cut into {steps} steps of {ranks} equal shares")
    starts = [(step * ranks + rank) * size for step in range(steps)]
    return [range(start, start + size) for start in starts]


def normalization_groups(spec: TrialSpec, *, batch: int, options: Mapping[str, Any]) -> tuple[int, ...]:
    """Sizes of the consecutive parts of a batch that share normalization statistics in this trial."""
    if spec.normalization == "per_microbatch":
        size = spec.option("micro_batch_size", of=options) or batch // spec.option("micro_batches", of=options)
        return micro_batches(batch, min(max(1, size), batch))  # the last batch of an epoch may be smaller than either
    parts = spec.accumulation_steps * (spec.devices if spec.normalization == "per_device" else 1)
    return (batch // parts,) * parts


def statistics_updates(spec: TrialSpec, *, batch: int, options: Mapping[str, Any]) -> int:
    """How often each of a trial's devices updates BatchNorm's running statistics in a step, one after another."""
    parts = len(normalization_groups(spec, batch=batch, options=options))
    return parts // spec.devices if spec.normalization == "per_device" else parts


def micro_batches(batch: int, size: int) -> tuple[int, ...]:
    """Sizes of the micro-batches: `size` each; the last one has what is left. Raises UsageError."""
    if not 1 <= size <= batch:
        raise UsageError(f"micro-batches of {size} samples: allowed are 1 to the batch, {batch}")
    whole, rest = divmod(batch, size)
    return (size,) * whole + ((rest,) if rest else ())


def micro_batch_size(batch: int, options: Mapping[str, Any]) -> int:
    """How many samples a stage takes at once: those of a micro-batch, or without micro-batches the whole batch.

    Where the batch does not divide, the last micro-batch has fewer.
    """
    return options.get("split_size") or max(1, batch // options.get("micro_batches", 1))


def bubble(stages: int, micro_batch_count: int) -> float:
    """The share of the devices' time in which a pipeline of equal stages is idle: (p - 1) / (m + p - 1).

    Huang et al. 2019, GPipe, arXiv:1811.06965, section 2.3.
    """
    return (stages - 1) / (micro_batch_count + stages - 1)


def check_stages(stages: int, blocks: Sequence[str]) -> None:
    """Raises CannotBeCut if there are more stages than blocks."""
    if not blocks:
        raise CannotBeCut(
            "no blocks are named, so nothing says where the network can be cut; name them, or choose another --strategy"
        )
    if not 1 <= stages <= len(blocks):
        raise CannotBeCut(f"{stages} stages: the network has {len(blocks)} blocks, so 1 to {len(blocks)} are allowed")


def cut_points(cut: str, blocks: Sequence[str], stages: int) -> tuple[int, ...]:
    """Where the stages after the first begin, by hand. `cut` names the last block of each stage but the last, with "+".

    A name stands for the last block that it begins: "layer2" means "layer2.3" in ResNet-50. Raises UsageError for an
    unknown name, a wrong number of names, or a wrong order.
    """
    check_stages(stages, blocks)
    names = [name for name in cut.split("+") if name]
    if len(names) != stages - 1:
        raise UsageError(f"cut {cut!r}: {stages} stages need {stages - 1} names, joined by +; these are {len(names)}")
    points = []
    for name in names:
        ends = [index for index, block in enumerate(blocks) if block == name or block.startswith(f"{name}.")]
        if not ends or ends[-1] == len(blocks) - 1:
            allowed = ", ".join([*BALANCED, *blocks[:-1]])
            raise UsageError(f"cut {name!r}: allowed are {allowed}, or the beginning of a name up to its dot")
        points.append(ends[-1] + 1)
    if sorted(set(points)) != points:
        raise UsageError(f"cut {cut!r}: the names must come in the network's order, each once")
    return tuple(points)


def cut_text(points: Sequence[int], blocks: Sequence[str]) -> str:
    """Cut points as the option `cut` names them: what `cut_points` reads."""
    return "+".join(blocks[point - 1] for point in points)


def balance(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Where the stages after the first begin so that the costliest stage costs least; every stage gets a block.

    Exact, by dynamic programming over prefixes: best[k][j] is the least maximal cost of cutting the first j blocks into
    k stages. Raises UsageError if there are more stages than blocks.
    """
    check_stages(stages, [str(index) for index in range(len(costs))])
    count = len(costs)
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    best = {(1, j): (prefix[j], 0) for j in range(1, count + 1)}
    for k in range(2, stages + 1):
        for j in range(k, count + 1):
            # Of equally good cuts, take the latest: activations mostly shrink, so fewer bytes cross there.
            options = ((max(best[k - 1, i][0], prefix[j] - prefix[i]), i) for i in range(k - 1, j))
            best[k, j] = min(options, key=lambda option: (option[0], -option[1]))
    points, j = [], count
    for k in range(stages, 1, -1):
        j = best[k, j][1]
        points.append(j)
    return tuple(reversed(points))
