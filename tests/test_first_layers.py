"""The settings `space_to_depth`, `gathered_pooling` and `batch_norm_relu`: ResNet's layers in other operations."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import TESTS, python

from harness.spec import registry

pytestmark = [pytest.mark.frameworks, pytest.mark.runs]


@pytest.mark.parametrize("framework", registry.FRAMEWORKS)
def test_other_operations_compute_the_same_training(framework):
    """In float64; the errors were below 6e-17, and a parameter moved by 5e-4."""
    known = registry.framework(framework).environment.get("cpu", {}) | {"CUDA_VISIBLE_DEVICES": ""}
    room = [python(framework), str(TESTS / "rooms" / "first_layers.py"), framework]
    environment = os.environ | known | {"PYTHONPATH": str(TESTS.parent)}
    ran = subprocess.run(room, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    found = json.loads(ran.stdout.splitlines()[-1])
    plain, changed = found["losses"]
    assert changed == pytest.approx(plain, rel=1e-13) and len(set(plain)) == len(plain)
    assert found["apart"] < 1e-15 < 1e-5 < found["moved"]
    assert found["kernels"] == [[7, 7, 3], [4, 4, 16]]
    assert found["own_pooling"] == [True, False]
    assert found["pooling_error"] < 1e-14
