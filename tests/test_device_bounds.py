"""What devices can do at most: rates from amounts and seconds, and that the operations move what they count."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
from conftest import TESTS, python

from harness.gate import bounds
from harness.spec import registry


class Clock:
    """A clock that stands still while nothing is done. The first operation takes longer: it compiles."""

    def __init__(self, monkeypatch, *seconds: float) -> None:
        self.now, self.left, self.waits = 0.0, list(seconds), 0
        monkeypatch.setattr(bounds, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def operate(self) -> None:
        self.now += self.left.pop(0)

    def wait(self) -> None:
        self.waits += 1


def test_a_rate_is_that_of_the_best_try_after_the_first(monkeypatch):
    clock = Clock(monkeypatch, 0.001, 0.4, 0.25, 0.5, 0.3)
    assert bounds.per_second(100, clock.operate, clock.wait) == 400
    assert (clock.left, clock.waits) == ([], 1 + bounds.TRIES)


def test_operations_launched_together_count_together(monkeypatch):
    clock = Clock(monkeypatch, *[0.125] * 4 * (1 + bounds.TRIES))
    assert bounds.per_second(100, clock.operate, clock.wait, at_once=4) == 800
    assert clock.waits == 1 + bounds.TRIES


def test_a_matrix_product_has_two_operations_for_each_pair(monkeypatch):
    clock = Clock(monkeypatch, *[0.5] * 5)
    assert bounds.matrix_products(clock.operate, clock.wait, "cpu", size=10) == 4000


def test_on_gpus_the_host_waits_for_several_products_together(monkeypatch):
    clock = Clock(monkeypatch, *[0.5] * bounds.AT_ONCE["gpu"] * (1 + bounds.TRIES))
    assert bounds.matrix_products(clock.operate, clock.wait, "gpu", size=10) == 4000
    assert clock.waits == 1 + bounds.TRIES


def test_memory_is_read_and_written(monkeypatch):
    clock = Clock(monkeypatch, *[1.0] * 5)
    assert bounds.memory(clock.operate, clock.wait, "cpu") == 2 * 4 * bounds.NUMBERS["cpu"]


@pytest.mark.parametrize(("devices", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])  # of nccl-tests' page
def test_bus_bandwidth_of_an_all_reduce(monkeypatch, devices, factor):
    clock = Clock(monkeypatch, *[1.0] * 5)
    found = bounds.all_reduce(clock.operate, clock.wait, "cpu", devices=devices)
    assert found == factor * 4 * bounds.LINK_NUMBERS["cpu"]


def test_a_copy_crosses_once(monkeypatch):
    clock = Clock(monkeypatch, *[1.0] * 5)
    assert bounds.copy(clock.operate, clock.wait, "cpu") == 4 * bounds.LINK_NUMBERS["cpu"]


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("name", registry.FRAMEWORKS)
def test_operations_move_the_bytes_that_they_count(name):
    """An array doubles, and is as long as it counts. A sum over two devices is 2 everywhere; a copy is no sum."""
    command = [python(name), TESTS / "rooms" / "device_bounds.py", registry.packages()[name]]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TESTS.parent)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    amount, size, *values = found["memory"]
    assert (amount, values) == (2 * size, [2.0, 2.0])
    amount, size, *values = found["links"]
    assert amount == size  # 2 (n - 1) / n is 1
    assert values == ([1.0, 1.0] if name == "torch" else [2.0, 2.0])
