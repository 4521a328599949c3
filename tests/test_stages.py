"""How networks are cut into stages by measured time, and what a stage keeps between forward and backward."""

from __future__ import annotations

import pytest
from visits import visit

from harness.spec import partition

pytestmark = pytest.mark.frameworks


def told(framework: str) -> dict:
    return visit(framework, f"{framework}_stages.py")[-1]


def test_the_size_of_a_micro_batch():
    assert partition.micro_batch_size(12, {"micro_batches": 4}) == 3
    assert partition.micro_batch_size(12, {"split_size": 5}) == 5
    assert partition.micro_batch_size(3, {"micro_batches": 4}) == 1
    assert partition.micro_batch_size(12, {}) == 12  # model_parallel


def test_torch_times_blocks_as_stages_run_them_and_leaves_no_trace():
    found = told("torch")
    assert found["samples"] == [3] * found["blocks"]
    assert found["gradients"] == [False] + [True] * (found["blocks"] - 1)  # nobody needs that of the images
    assert len(found["seconds"]) == found["blocks"] and min(found["seconds"]) > 0
    assert found["same"] and found["in_place"] and not found["left"]


def test_a_stage_of_jax_keeps_what_is_dear_to_compute_again():
    found = told("jax")
    (kept, types), (everything, all_types) = found["kept"], found["everything"]
    assert kept < everything / 2
    assert "bool" in all_types and "bool" not in types  # the masks of ReLU
    assert not found["carried"]  # no array has the shape of a kernel
    assert set(found["samples"]) == {3} and found["blocks"] > 4
    assert found["products"] == [3 * found["visits"]]  # XLA has not made one visit of several
