"""TensorFlow's evaluation, states and loader, for every strategy: the checks are in rooms/tf_training.py."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
import visits
from conftest import TESTS, python

from harness import workloads
from harness.spec import registry

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]

# processes, and the strategies that they run one after another
TOGETHER = [
    (1, ("single", "mirrored", "model_parallel")),
    (1, ("mirrored:stored_losses",)),
    (2, ("multi_worker_mirrored",)),
    (2, ("parameter_server",)),
]


def visit(room, tmp_path, processes, strategies):
    """What rank 0 printed in a room that all ranks left without an error."""
    known = {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": ""}
    command = [python("tf"), str(TESTS / "rooms" / room), str(tmp_path)]
    environment = os.environ | registry.framework("tf").environment["cpu"] | known
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(processes), *strategies], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(processes)
    ]
    try:
        printed = [rank.communicate(timeout=500)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * processes
        return printed[0].split()
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize(("processes", "strategies"), TOGETHER)
def test_a_program_trains_for_real(tmp_path, processes, strategies):
    assert visit("tf_training.py", tmp_path, processes, strategies) == list(strategies)


@pytest.mark.parametrize(("processes", "strategies"), TOGETHER)
def test_several_steps_in_one_call_are_the_same_steps(tmp_path, processes, strategies):
    """In every strategy that can, and in no other."""
    spec = registry.framework("tf").strategy
    able = [name for name in strategies if not spec(name.split(":")[0]).one_step_per_call]
    assert visit("tf_steps.py", tmp_path, processes, strategies) == able


@pytest.fixture(scope="module")
def usual_step(tmp_path_factory):
    return json.loads(visit("tf_replica_step.py", tmp_path_factory.mktemp("usual"), 1, ("usual",))[-1])


@pytest.mark.parametrize("way", ["whole", "stored", "whole+stored", "whole+keys+stored"])
def test_another_form_of_a_replicas_step_is_the_same_step(tmp_path, usual_step, way):
    """`whole`: what the setting `xla_step` compiles on GPUs, called without XLA, and `keys` with its all-reduce.
    `stored`: the setting `stored_losses`, with which no operation waits for two devices."""
    usual, other = usual_step, json.loads(visit("tf_replica_step.py", tmp_path, 1, (way,))[-1])
    assert len(set(usual["losses"])) == 4
    assert other["losses"] == pytest.approx(usual["losses"], rel=1e-12)
    first, second = (np.array(weights) for weights in other["weights"])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, usual["weights"][0], rtol=1e-12, atol=1e-14)
    assert other["crossed"] == usual["crossed"] == [{"all_reduce": 8 * len(first)}] * 2
    assert min(usual["waiting"]) > 0
    assert (other["numbers"] == [0, 0]) == ("keys" in way)  # copies of them to a GPU would wait for it
    if "stored" in way:
        assert other["waiting"] == [0, 0]
        assert other["loss_devices"] == ["CPU:0", "CPU:1"]  # a copy to another device would wait, too


def test_the_settings_of_batch_norm_compute_what_keras_computes(tmp_path):
    """`fused_batch_norm` and `batch_norm_relu`: outputs, gradients and running statistics, within rounding."""
    assert visit("tf_batch_norm.py", tmp_path, 1, ()) == []


def test_no_strategy_is_left_out():
    tried = {name.split(":")[0] for _, strategies in TOGETHER for name in strategies}
    assert tried == {strategy.name for strategy in registry.framework("tf").strategies}


def test_a_share_of_a_batch_lies_on_the_device_that_is_named():
    """On GPUs it would otherwise wait in the worker's host memory, and be copied in every step."""
    (found,) = visits.visit("tf", "tf_shares.py")
    for device, lies in found.items():
        assert lies == [f"/job:worker/replica:0/task:0{device}"] * 2


def test_the_time_of_the_first_block_has_no_gradient_of_the_images():
    """Nobody needs it. Later blocks have one, for the block before them."""
    (found,) = visits.visit("tf", "tf_stages.py")
    assert found == {"first": 0, "later": 1, "blocks": len(workloads.get("resnet50", "tiny").blocks)}


def test_stages_pass_on_activations_in_the_format_in_which_they_compute():
    """A conversion to float32 and back would be a kernel each, at every cut."""
    (found,) = visits.visit("tf", "tf_bf16_stages.py")
    first, *others = found["inputs"]
    *passed_on, last = found["outputs"]
    assert (first, set(others), last) == ("float32", {"bfloat16"}, "float32")
    assert others == passed_on  # whatever a layer of one's own computes in


def test_a_released_program_leaves_no_variable_behind():
    """Nor does XLA's function of its step, which has seen them."""
    (found,) = visits.visit("tf", "tf_release.py")
    assert found == {"": 0, "xla": 0, "xla+xla_step": 0}


def test_what_is_rounded_on_its_way_into_an_update_is_seen_through_functions():
    (found,) = visits.visit("tf", "tf_rounded.py")
    assert found == {name: not name.startswith("right") for name in found} and len(found) == 17
