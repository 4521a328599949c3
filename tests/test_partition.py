"""Cuts and micro-batches, exactly."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest

from harness import partition
from harness.errors import UsageError

BLOCKS = ("conv1", "layer1.0", "layer1.1", "layer2.0", "fc")


@pytest.mark.parametrize(
    ("batch", "split", "sizes"),
    [(120, 20, (20,) * 6), (120, 50, (50, 50, 20)), (5, 1, (1,) * 5), (5, 5, (5,)), (5, 4, (4, 1))],
)
def test_micro_batches(batch, split, sizes):
    assert partition.micro_batches(batch, split) == sizes


@pytest.mark.parametrize("split", [0, -1, 6])
def test_bad_split_sizes(split):
    with pytest.raises(UsageError, match=f"split_size {split}: allowed are 1 to the batch, 5"):
        partition.micro_batches(5, split)


@pytest.mark.parametrize(("stages", "count", "share"), [(1, 4, 0.0), (2, 1, 0.5), (2, 6, 1 / 7), (4, 4, 3 / 7)])
def test_bubble(stages, count, share):
    assert partition.bubble(stages, count) == pytest.approx(share)


def test_bubble_is_what_the_schedule_leaves_idle():
    """Count the idle slots of the schedule that strategies/pipeline.py draws."""
    for stages, count in itertools.product(range(1, 6), range(1, 7)):
        ticks = count + stages - 1
        busy = sum(0 <= tick - stage < count for tick in range(ticks) for stage in range(stages))
        assert 1 - busy / (ticks * stages) == pytest.approx(partition.bubble(stages, count))


@pytest.mark.parametrize(
    ("cut", "stages", "points"),
    [("conv1", 2, (1,)), ("layer1", 2, (3,)), ("layer1.0", 2, (2,)), ("conv1+layer2", 3, (1, 4)), ("", 1, ())],
)
def test_cuts_by_hand(cut, stages, points):
    assert partition.cut_points(cut, BLOCKS, stages) == points


@pytest.mark.parametrize(
    ("cut", "stages", "message"),
    [
        ("layer9", 2, "cut 'layer9': allowed are parameters, time, conv1, layer1.0"),
        ("layer", 2, "cut 'layer'"),
        ("fc", 2, "cut 'fc'"),
        ("conv1", 3, "need 2 names"),
        ("layer1+conv1", 3, "in the network's order"),
        ("conv1+conv1", 3, "each once"),
        ("conv1", 6, "has 5 blocks"),
        ("conv1", 0, "1 to 5 are allowed"),
    ],
)
def test_bad_cuts(cut, stages, message):
    with pytest.raises(UsageError, match=message.replace("+", "\\+")):
        partition.cut_points(cut, BLOCKS, stages)


@pytest.mark.parametrize("costs", [(1, 1, 1, 1), (5, 1, 1, 1, 1), (0, 0, 9, 0), (3, 1, 4, 1, 5, 9, 2, 6), (1,)])
def test_balance_is_the_best_of_all_cuts(costs):
    for stages in range(1, len(costs) + 1):

        def worst(points):
            edges = (0, *points, len(costs))
            return max(sum(costs[a:b]) for a, b in itertools.pairwise(edges))

        found = partition.balance(costs, stages)
        everything = itertools.combinations(range(1, len(costs)), stages - 1)
        assert len(found) == stages - 1
        assert list(found) == sorted(set(found))
        assert worst(found) == min(worst(points) for points in everything)


@pytest.mark.parametrize(
    ("schedule", "devices", "micro_batches", "words"),
    [
        ("gpipe", 4, 1, ""),
        ("1f1b", 4, 4, ""),
        ("1f1b", 4, 3, "a micro-batch for each of 4 stages, has 3"),
        ("interleaved_1f1b", 2, 8, ""),
        ("interleaved_1f1b", 4, 2, ""),  # one round of fewer micro-batches than devices
        ("interleaved_1f1b", 2, 7, "7 micro_batches cannot be cut into 3 equal rounds"),
        ("zero_bubble", 5, 4, ""),
        ("zero_bubble", 6, 4, "make 12, and the network has 11 blocks"),
    ],
)
def test_what_schedules_need(schedule, devices, micro_batches, words):
    blocks = [str(number) for number in range(11)]
    known = {"devices": devices, "micro_batches": micro_batches, "blocks": blocks}
    with pytest.raises(UsageError, match=words) if words else nullcontext():
        partition.check_schedule(schedule, **known)
