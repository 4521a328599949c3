"""Bytes a step: the formulas by hand, and what PyTorch's profiler counts."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest
from conftest import TESTS, python

from harness import workloads
from harness.gate import traffic
from harness.planning import strategy_options
from harness.spec import StrategySpec, registry


def test_parameter_and_activation_bytes_of_the_mnist_network():
    workload = workloads.get("mnist_cnn", "base")
    assert traffic.parameter_bytes(workload) == 4 * 431_080
    # cut by FLOPs before fc1, since most of them are in the convolutions: 64 images of 4 x 4 x 50
    assert traffic.activation_bytes(workload, devices=2) == 4 * 64 * 4 * 4 * 50


@pytest.mark.parametrize(
    ("kind", "options", "devices", "expected"),
    [
        ("none", {}, 2, 0),
        ("all_reduce", {}, 2, 100),
        ("all_reduce", {}, 4, 150),
        ("average", {"averaging_interval": 4}, 2, 25),
        ("shard", {}, 2, 150),
        ("shard", {"reshard_after_forward": False}, 2, 100),
        ("replicate", {}, 4, 300),
        ("push_pull", {}, 8, 100),
        ("push_pull", {"push_interval": 4}, 8, 25),
        ("activations", {}, 2, 7),
        ("activations", {}, 3, 14),
        ("every_tick", {"micro_batches": 4}, 2, 7 * 5 / 4),
        ("every_tick", {"micro_batches": 4}, 3, 14 * 6 / 4),
    ],
)
def test_formulas_by_hand(kind, options, devices, expected):
    payload = traffic.payloads(kind, parameter_bytes=100, activation_bytes=7, devices=devices, options=options)
    assert traffic.sent(payload, devices=devices) == pytest.approx(expected)


def test_every_strategy_of_ours_says_how_it_behaves():
    for name in registry.FRAMEWORKS:
        for strategy in registry.framework(name).strategies:
            for field in ("replicated", "sharded", "crosses", "waits", "use"):
                assert getattr(strategy, field), f"{name} {strategy.name}: {field}"
            assert (strategy.traffic == "none") == (strategy.crosses == "nothing"), f"{name} {strategy.name}"


def test_model_parallelism_sends_more_than_data_parallelism_where_activations_are_large():
    resnet50 = workloads.get("resnet50", "imagenet")
    # cut after layer2, behind its ReLU and before layer3.0: 256 images of 28 x 28 x 512
    assert traffic.activation_bytes(resnet50, devices=2) == 4 * 256 * 28 * 28 * 512
    assert traffic.activation_bytes(resnet50, devices=2) > 4 * traffic.parameter_bytes(resnet50)


def test_the_layer_at_which_a_block_without_parameters_begins_is_not_guessed():
    at_the_pool = replace(workloads.get("resnet50", "tiny"), default_cut="layer3")
    with pytest.raises(ValueError, match="avgpool"):
        traffic.activation_bytes(at_the_pool, devices=2)
    nothing = StrategySpec(name="s", summary="", processes="one")
    assert traffic.bytes_sent(nothing, workloads.get("resnet50", "tiny"), devices=2) == 0


def profiled(tmp_path, name):
    """What rank 0 of two put into collectives in a few steps of mnist_cnn tiny."""
    command = [python("torch"), str(TESTS / "rooms" / "profiled.py"), str(tmp_path), name]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    return json.loads((tmp_path / "counted.json").read_text())


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["ddp", "average_gradients", "local_sgd"])
def test_the_profiler_counts_the_payload(tmp_path, name):
    counted = profiled(tmp_path, name)
    strategy = registry.framework("torch").strategy(name)
    parameters = traffic.parameter_bytes(workloads.get("mnist_cnn", "tiny"))
    by_role = strategy_options.by_role(strategy, strategy.defaults)
    payload = traffic.payloads(strategy.traffic, parameter_bytes=parameters, options=by_role)
    assert {key: value / counted["steps"] for key, value in counted["bytes"].items()} == payload


@pytest.mark.frameworks
def test_the_profiler_counts_what_a_stage_sends(tmp_path):
    counted = profiled(tmp_path, "pipeline_schedules")
    workload = workloads.get("mnist_cnn", "tiny")
    per_batch = traffic.activation_bytes(workload, devices=2) * counted["batch"] / workload.global_batch
    # rank 0 sends activations and receives their gradients
    assert {key: value / counted["steps"] for key, value in counted["bytes"].items()} == {
        "send": per_batch,
        "recv": per_batch,
    }
