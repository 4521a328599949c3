"""TensorFlow's evaluation, states and loader, for every strategy: the checks are in rooms/tf_training.py."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import TESTS, python

from harness.spec import registry

pytestmark = pytest.mark.frameworks

# processes, and the strategies that they run one after another
TOGETHER = [(1, ("single", "mirrored", "model_parallel")), (2, ("multi_worker_mirrored",)), (2, ("parameter_server",))]


@pytest.mark.parametrize(("processes", "strategies"), TOGETHER)
def test_a_program_trains_for_real(tmp_path, processes, strategies):
    known = {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": ""}
    command = [python("tf"), str(TESTS / "rooms" / "tf_training.py"), str(tmp_path)]
    environment = os.environ | registry.framework("tf").environment["cpu"] | known
    ranks = [
        subprocess.Popen([*command, str(rank), str(processes), *strategies], env=environment)
        for rank in range(processes)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * processes
    finally:
        for rank in ranks:
            rank.kill()


def test_no_strategy_is_left_out():
    tried = {name for _, strategies in TOGETHER for name in strategies}
    assert tried == {strategy.name for strategy in registry.framework("tf").strategies}
