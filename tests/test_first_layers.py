"""The settings `space_to_depth`, `gathered_pooling` and `batch_norm_relu`: ResNet's layers in other operations."""

from __future__ import annotations

import pytest
from visits import visit

from harness.spec import registry

pytestmark = [pytest.mark.frameworks, pytest.mark.runs]


@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_other_operations_compute_the_same_training(framework):
    """In float64; the errors were below 6e-17, and a parameter moved by 5e-4."""
    (found,) = visit(framework, "first_layers.py", framework)
    plain, changed = found["losses"]
    assert changed == pytest.approx(plain, rel=1e-13) and len(set(plain)) == len(plain)
    assert found["apart"] < 1e-15 < 1e-5 < found["moved"]
    assert found["kernels"] == [[7, 7, 3], [4, 4, 16]]
    assert found["own_pooling"] == [True, False]
    assert found["pooling_error"] < 1e-14


def test_inductor_stores_what_it_should_in_any_memory_format():
    """Where inductor changed the format of an activation, ReLU's gradient had its values in another order: with ResNet
    in float64 on GPUs, because cuDNN is given no NHWC there. The gate refused it. The errors are 4e-15 now, and 0.6
    with strides as they were traced."""
    (found,) = visit("torch", "torch_relu.py")
    assert set(found) == {"NCHW", "NHWC"} and max(found.values()) < 1e-13
