"""What a user sees of the GPUs and of what is wrong with them. The GPUs are a JSON file: fake_gpus.py."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from conftest import harness, make_machine
from fake_gpus import FakeGpus, arguments
from refusals import refused, refused_command

from harness.cli.app import main
from harness.machine import devices, nvml
from harness.reporting import provenance
from harness.results import store
from harness.spec import Gpu
from harness.spec.errors import MachineUnfit

T4 = {"name": "Tesla T4", "memory": 15 * 2**30}
Plan = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def plan(monkeypatch, capsys, fakes):
    """The command `plan`, in this process."""

    def run(gpus: FakeGpus, *, visible: str | None = None, **known) -> subprocess.CompletedProcess:
        gpus.install(monkeypatch)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(SystemExit) as ended:
            main(["plan", *arguments(**known), "--json"])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess([], ended.value.code, said.out, said.err)

    yield run
    devices.machine.cache_clear()


def platforms(done: subprocess.CompletedProcess) -> set[str]:
    """Where the cells of a plan would run."""
    assert done.returncode == 0, done.stderr
    return {trial["spec"]["platform"] for trial in json.loads(done.stdout)["trials"]}


def test_a_machine_without_a_driver_has_no_gpus_and_runs_on_cpu_devices(plan: Plan, tmp_path):
    gpus = FakeGpus(tmp_path, init="LibraryNotFound")
    refused_command(plan(gpus), "--platform gpu", "auto, cpu")
    assert platforms(plan(gpus, platform="auto", visible="0")) == {"cpu"}


@pytest.mark.parametrize(
    ("gpus", "about", "facts"),
    [
        ([{}], {"init": "LibRmVersionMismatch"}, ["mismatch", "restart"]),
        ([{}], {"init": "NoPermission"}, ["Permissions"]),
        ([{"mig": 1}], {}, ["GPU 0", "NVIDIA H200", "MIG", "nvidia-smi -i 0 -mig 0"]),
        ([{}, {"mode": 2}], {}, ["GPU 1", "prohibits", "nvidia-smi -i 1 -c 0"]),
        ([{}, {"lost": "GpuIsLost"}], {}, ["GPU 1", "lost"]),
        ([{"name": "Unknown"}], {}, ["GPU 0", "Unknown Error"]),
    ],
)
def test_gpus_that_cannot_be_used_are_named_in_plain_words(plan: Plan, tmp_path, gpus, about, facts):
    known = FakeGpus(tmp_path, *gpus, **about)
    refused_command(plan(known, platform="auto"), *facts, "--platform cpu", code=3)
    assert platforms(plan(known, platform="cpu")) == {"cpu"}


@pytest.mark.parametrize("setting", ["0", "GPU-0a", "GPU-0"])
@pytest.mark.parametrize("hidden", [{"lost": "GpuIsLost"}, {"mig": 1}, {"mode": 2}, T4])
def test_a_gpu_that_is_hidden_does_not_matter(plan: Plan, tmp_path, hidden, setting):
    gpus = FakeGpus(tmp_path, {}, hidden)
    assert platforms(plan(gpus, visible=setting)) == {"gpu"}
    refused_command(plan(gpus, devices="2", visible=setting), "--devices 2", "1 to 1")


@pytest.mark.parametrize(
    ("setting", "facts"), [("MIG-1234", ["MIG-1234"]), ("0,7", ["7"]), ("GPU-", ["GPU-"]), ("GPU-0a,GPU-9", ["GPU-9"])]
)
def test_a_setting_that_names_no_gpu_is_not_silently_a_cpu_run(plan: Plan, tmp_path, setting, facts):
    done = plan(FakeGpus(tmp_path, {}, {}), platform="auto", visible=setting)
    refused_command(done, f"CUDA_VISIBLE_DEVICES={setting}", *facts, code=3)


@pytest.mark.parametrize("setting", ["", "-1"])
def test_a_setting_that_hides_all_gpus_makes_a_cpu_run(plan: Plan, tmp_path, setting):
    assert platforms(plan(FakeGpus(tmp_path, {}, {"mig": 1}), platform="auto", visible=setting)) == {"cpu"}


def test_gpus_of_several_models_are_not_measured_together(plan: Plan, tmp_path):
    gpus = FakeGpus(tmp_path, {}, T4, {})
    several = {"strategy": "replicated"}
    refused_command(plan(gpus, devices="2", **several), "NVIDIA H200: 0", "Tesla T4: 1", "--devices 1", code=3)
    facts = ("NVIDIA H200: 0,2", "Tesla T4: 1", "CUDA_VISIBLE_DEVICES=0,2")
    refused_command(plan(gpus, devices="", **several), *facts, code=3)
    assert platforms(plan(gpus)) == {"gpu"}
    assert platforms(plan(gpus, devices="2", visible="2,0", **several)) == {"gpu"}
    devices.require_alike(make_machine(gpus=3).gpus)
    with refused("T4", kind=MachineUnfit):
        devices.require_alike([*make_machine(gpus=2).gpus, Gpu(token="2", name="T4", memory_bytes=1)])


@pytest.mark.runs
def test_a_gpu_without_memory_of_its_own_can_be_used(tmp_path):
    """As the GB10 of a DGX Spark, and a Jetson: they share the memory of the host, and NVML says nothing of it."""
    lacking = dict.fromkeys(("memory", "used", "power", "clock", "mode", "reasons"), "NotSupported")
    gpus, out = FakeGpus(tmp_path, lacking | {"name": "NVIDIA GB10"}), tmp_path / "run"
    done = harness("run", *arguments(), "--out", str(out), env=gpus.variables)
    assert done.returncode == 0, done.stderr
    (row,) = store.read(out)
    (gpu,) = row.conditions.hardware.gpus
    assert (row.status, gpu.name, gpu.memory_bytes, gpu.power_limit_watts) == ("ok", "NVIDIA GB10", 0, 0)
    (listed,) = (str(value) for _, value in provenance.machine([row]).rows if "GB10, " in str(value))
    assert "unknown" in listed
    assert "0 GiB" not in listed


@pytest.mark.runs
def test_a_gpu_says_its_limits_if_it_can(tmp_path):
    out = tmp_path / "run"
    gpus = FakeGpus(tmp_path, {"clock": "NotSupported", "memory": 2**30, "links": [1] * 8 + [0] * 4})
    assert harness("run", *arguments(), "--out", str(out), env=gpus.variables).returncode == 0
    (gpu,) = store.read(out)[0].conditions.hardware.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.power_limit_watts, gpu.max_clock_mhz) == ("NVIDIA H200", 2**30, 700, 0)
    assert gpu.nvlinks == 8


@pytest.mark.parametrize(("states", "active"), [([0] * 18, 0), (["NotSupported"] * 36, None), ([1] * 36, 36)])
def test_nvlinks_that_are_not_active_are_no_links(monkeypatch, tmp_path, states, active):
    FakeGpus(tmp_path, {"links": states}).install(monkeypatch)
    (found,), _, _ = nvml.find_gpus()
    assert found.gpu.nvlinks == active and not found.problem


@pytest.mark.runs
def test_a_gpu_for_one_process_at_a_time_is_used_by_one(tmp_path):
    """In compute mode EXCLUSIVE_PROCESS, parity phases that share a GPU would fail and be tried again."""
    out = tmp_path / "run"
    gpus = FakeGpus(tmp_path, {"mode": 3})
    done = harness("run", *arguments(strategy="single,noisy"), "--out", str(out), env=gpus.variables)
    assert done.returncode in (0, 1), done.stderr
    assert "at a time" not in done.stderr
