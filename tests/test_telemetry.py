"""Clocks, power and temperature: what is sampled, how it is joined with the timed blocks, and what reports say."""

from __future__ import annotations

import pytest
from fake_gpus import FakeGpus

from harness.machine import devices, nvml
from harness.machine.nvml import Sample


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Makes a machine with these GPUs."""

    def make(*gpus, **about) -> FakeGpus:
        made = FakeGpus(tmp_path, *gpus, **about)
        made.install(monkeypatch)
        return made

    yield make
    devices.machine.cache_clear()


# What NVML says


def test_all_that_a_gpu_says_is_sampled_in_its_unit(fake):
    fake({}, {"sm": 345})
    assert nvml.sample("GPU-0a") == Sample(
        sm_clock_mhz=1755,
        memory_clock_mhz=3201,
        power_watts=645.3,  # at this moment, not the mean of a second
        power_limit_watts=700.0,
        temperature_celsius=61,
        clock_reasons=0,
        power_violation_ns=7_000_000_000,
        thermal_violation_ns=0,
        energy_millijoules=5_000_000,
    )
    assert nvml.sample("GPU-1a").sm_clock_mhz == 345  # by UUID


QUESTIONS = {
    "sm": "sm_clock_mhz",
    "hbm": "memory_clock_mhz",
    "power": "power_limit_watts",
    "celsius": "temperature_celsius",
    "reasons": "clock_reasons",
    "capped": "power_violation_ns",
    "hot": "thermal_violation_ns",
    "energy": "energy_millijoules",
}


@pytest.mark.parametrize("error", ["NotSupported", "FunctionNotFound", "NoPermission", "Unknown"])
@pytest.mark.parametrize(("question", "field"), QUESTIONS.items())
def test_what_a_gpu_or_a_driver_cannot_say_is_none_and_no_error(fake, question, field, error):
    fake({question: error})
    found = vars(nvml.sample("GPU-0a"))
    assert [name for name, value in found.items() if value is None] == [field]


@pytest.mark.parametrize("instant", ["FunctionNotFound", None, 0])
def test_a_driver_without_instant_power_says_its_mean(fake, instant):
    gpus = fake({"instant": instant})
    assert nvml.sample("GPU-0a").power_watts == 612.4
    gpus.change(0, drawn="NotSupported")
    assert nvml.sample("GPU-0a").power_watts is None


@pytest.mark.parametrize("error", ["GpuIsLost", "Unknown"])
def test_a_gpu_that_is_lost_says_nothing_and_is_no_error(fake, error):
    fake({"lost": error})
    assert nvml.sample("GPU-0a") == Sample()
