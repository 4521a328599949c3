"""What PyTorch's strategies are asked for beside steps: evaluation, states, short batches, and their loader."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from conftest import TESTS, python
from visits import visit

from harness.spec import registry

pytestmark = pytest.mark.slow

EXACT = 1e-12  # float64, relative


def errors(found):
    """All numbers of a row, nested or not."""
    return [number for value in found.values() for number in (errors(value) if isinstance(value, dict) else [value])]


@pytest.mark.frameworks
@pytest.mark.parametrize("ranks", [1, 2])
def test_short_batches_evaluation_states_and_loaders(tmp_path, ranks):
    started = [
        subprocess.Popen(
            [python("torch"), TESTS / "rooms" / "torch_training.py", tmp_path, str(rank), str(ranks)],
            env=os.environ | {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    rows = [json.loads(line) for line in started[0].communicate(timeout=500)[0].splitlines()]
    assert [process.wait(timeout=60) for process in started] == [0] * ranks
    processes = "one" if ranks == 1 else "per_device"
    strategies = [s for s in registry.framework("torch").strategies if s.processes == processes and not s.needs_gpu]
    assert {row["strategy"].split()[0] for row in rows} == {strategy.name for strategy in strategies}
    for row in rows:
        assert all(error < EXACT for error in errors(row.get("errors", {}))), row
        assert not any(row.get("different", {}).values()), row
        assert not row.get("loader"), row
        assert row.get("raised", "") in ("", "ArithmeticError: no such sample"), row


@pytest.mark.frameworks
def test_steps_that_are_undone_leave_no_trace():
    """Those before a CUDA graph is captured: not a bit of the weights, of BatchNorm's statistics or of momentum."""
    rows = visit("torch", "torch_undone.py")
    assert len(rows) == 4
    for row in rows:
        assert row["equal"] == {"0": True, "2": True}, row


@pytest.mark.frameworks
def test_several_steps_in_one_graph_are_the_same_steps():
    """Everything around the graph, with a stand-in for it; tests/gpu has the graph itself."""
    rows = visit("torch", "torch_steps.py", "cpu")
    assert {(row["precision"], row["optimizer"]) for row in rows} == {
        (precision, optimizer) for precision in ("fp64", "fp32") for optimizer in ("sgd", "scheduled", "adamw")
    }
    for row in rows:  # in fp32, a scheduled rate is a float32 number
        assert row["error"] < (EXACT if row["precision"] == "fp64" else 1e-4) < 1e-1 < row["planted"], row


@pytest.mark.frameworks
def test_in_bf16_fsdp_sends_half_of_the_bytes_and_the_numbers_are_the_same(tmp_path):
    """Bit by bit: a kernel that is rounded before it is gathered is the kernel that autocast rounds afterwards."""
    command = [python("torch"), TESTS / "rooms" / "torch_fsdp.py"]
    known: Any = {
        "env": os.environ | {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": ""}, "text": True,
        "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
    }  # fmt: skip
    ranks = [subprocess.Popen([*command, str(rank), tmp_path], **known) for rank in (0, 1)]
    (told, error), (_, error_of_1) = [rank.communicate(timeout=500) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], error + error_of_1
    rows = [json.loads(line) for line in told.splitlines()]
    assert {(row["workload"], row["steps"]) for row in rows} == {
        (name, steps) for name in ("mnist_cnn", "resnet50") for steps in (1, 2)
    }
    for row in rows:
        assert row["losses"][0] == row["losses"][1] and row["apart"] == 0 < row["moved"], row
        rounded, whole = row["crossed"]
        assert 2 * rounded["all_gather"] == whole["all_gather"]  # BatchNorm's are float32, and gathered once
        assert rounded["reduce_scatter"] == whole["reduce_scatter"]


@pytest.mark.frameworks
def test_images_of_one_channel_have_the_strides_of_nchw():
    """Of one channel, NHWC and NCHW lie alike in memory, and torch tells them apart by their strides alone."""
    code = """
import numpy as np
import torch
from torch_impl import placement
batch = {"x": np.zeros((2, 28, 28, 1), np.float32), "y": np.zeros(2, np.int64)}
for memory_format, stride in ((torch.contiguous_format, 784), (torch.channels_last, 1)):
    images, _ = placement.on_host(batch, torch.float32, memory_format)
    assert (images.shape, images.stride(1)) == ((2, 1, 28, 28), stride), images.stride()
"""
    done = subprocess.run([python("torch"), "-c", code], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.frameworks
def test_fused_and_captured_optimizers_get_what_they_need():
    (found,) = visit("torch", "torch_optim.py")
    assert found["error"] < EXACT < 1e-6 < found["wrong"]
    assert found["strides"][0] == found["strides"][1]


@pytest.mark.frameworks
def test_a_stage_without_parameters_can_be_captured_and_zeros_teach_batch_norm_nothing():
    """Its graph does not depend on the learning rate: other ranks capture none for a new one, and would not answer."""
    (found,) = visit("torch", "torch_empty_stage.py")
    assert len(found["built"]) == 4
    assert (found["graphs"], found["losses"]) == (1, [2.0, 4.0, 6.0])
    assert found["moved"] == [False, False, True]  # in evaluation, without gradients, and with them
    assert found["copied"] == [1]


@pytest.mark.frameworks
def test_fsdp_gathers_blocks_or_stacks():
    """A custom module is gathered as a whole, whatever it is made of."""
    code = """
import torch
from torch import nn
from harness import workloads
from torch_impl import models
from torch_impl.strategies.fsdp import units
with torch.device("meta"):
    resnet = models.build(workloads.get("resnet50", "imagenet"))
for whole, count in ((False, 16), (True, 4)):
    found = units(resnet, whole_stacks=whole)
    assert len(found) == count and sum(len(list(each.parameters())) for each in found) == 161 - 5, found
own = nn.Module()
own.add_module("stack", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
assert units(own, whole_stacks=True) == units(own, whole_stacks=False) == []
"""
    done = subprocess.run([python("torch"), "-c", code], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.frameworks
def test_a_vector_of_gradients_has_the_order_of_the_parameters_in_memory():
    """Back from the vector, each gradient has its numbers and its parameter's strides, and lies in the vector."""
    code = """
import torch
from torch import nn
from torch_impl.strategies.average_gradients import as_vector, set_gradients
stored = torch.channels_last
shapes = ((8, 3, 5, 5), (4, 6, 1, 1), (8, 1, 3, 3))
kernels = [nn.Parameter(torch.zeros(shape).to(memory_format=stored)) for shape in shapes]
parameters = [*kernels, nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(3, 2, 3, 3))]
for parameter in parameters:
    parameter.grad = torch.randn(parameter.shape)
parameters[0].grad = parameters[0].grad.to(memory_format=stored)
before = [parameter.grad.clone() for parameter in parameters]
vector = as_vector(parameters)
set_gradients(parameters, vector)
for parameter, right in zip(parameters, before, strict=True):
    assert torch.equal(parameter.grad, right) and parameter.grad.stride() == parameter.stride()
    assert parameter.grad.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
assert torch.equal(vector[:600], before[0].permute(0, 2, 3, 1).flatten())
(alone,) = parameters[:1]
assert as_vector([alone]).data_ptr() == alone.grad.data_ptr()
"""
    done = subprocess.run([python("torch"), "-c", code], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.frameworks
def test_ddp_has_its_own_buckets_unless_another_size_is_asked_for(tmp_path):
    """Its first bucket is then smaller than the others. Newer PyTorch copies all gradients of a bucket at once."""
    (found,) = visit("torch", "torch_buckets.py", str(tmp_path))
    assert (found["25.0"], found["10.0"]) == (True, False)
    assert found["copies"] == 4  # one for each parameter
    assert found["views"] == (1 if found["together"] else 4)
