"""Cuts and micro-batches, exactly."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from conftest import make_spec
from refusals import refused

from harness import workloads
from harness.spec import partition

BLOCKS = ("conv1", "layer1.0", "layer1.1", "layer2.0", "fc")


@pytest.mark.parametrize(
    ("batch", "split", "sizes"),
    [(120, 20, (20,) * 6), (120, 50, (50, 50, 20)), (5, 1, (1,) * 5), (5, 5, (5,)), (5, 4, (4, 1))],
)
def test_micro_batches(batch, split, sizes):
    assert partition.micro_batches(batch, split) == sizes


@pytest.mark.parametrize(
    ("options", "batch", "sizes"),
    [
        ({"pieces": 4}, 16, (4,) * 4),
        ({"pieces": 4}, 3, (1,) * 3),  # the last batch of an epoch
        ({"pieces": 4}, 5, (1,) * 5),
        ({"piece": 8}, 16, (8, 8)),
        ({"piece": 8}, 3, (3,)),
    ],
)
def test_a_batch_smaller_than_planned_has_normalization_groups(options, batch, sizes):
    roles = {"micro_batches": "pieces", "micro_batch_size": "piece"}
    spec = replace(make_spec(normalization="per_microbatch"), options=options, roles=roles)
    assert partition.normalization_groups(spec, batch=batch, options=options) == sizes


@pytest.mark.parametrize("split", [0, -1, 6])
def test_bad_split_sizes(split):
    with refused(f"{split}", "1", "5"):
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
    ("cut", "stages", "facts"),
    [
        ("layer9", 2, ["cut 'layer9'", "flops, time, parameters, conv1, layer1.0"]),
        ("layer", 2, ["cut 'layer'"]),
        ("fc", 2, ["cut 'fc'"]),
        ("conv1", 3, ["cut 'conv1'", "3 stages", "2"]),
        ("layer1+conv1", 3, ["cut 'layer1+conv1'", "order"]),
        ("conv1+conv1", 3, ["cut 'conv1+conv1'", "once"]),
        ("conv1", 6, ["6 stages", "5"]),
        ("conv1", 0, ["0 stages", "1 to 5"]),
    ],
)
def test_bad_cuts(cut, stages, facts):
    with refused(*facts):
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


@pytest.mark.parametrize(("name", "size"), [("resnet50", "imagenet"), ("mnist_cnn", "base"), ("toy", "base")])
def test_the_flops_of_the_blocks_are_those_of_the_network(name, size):
    workload = workloads.get(name, size)
    assert 3 * sum(workload.block_costs("flops")) == workload.flops_per_unit()
    assert sum(workload.block_costs("parameters")) == sum(math.prod(p.shape) for p in workload.parameters())


def test_stages_of_resnet50_have_about_equal_flops():
    """Balanced by parameters, the first of two stages would have nine tenths of them."""
    workload = workloads.get("resnet50", "imagenet")
    (point,) = workload.cut_points("flops", 2)
    costs = workload.block_costs("flops")
    assert 0.45 < sum(costs[:point]) / sum(costs) < 0.55
