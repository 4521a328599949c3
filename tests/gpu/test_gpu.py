"""What only GPUs can show: every strategy of every framework on two of them, TF32, the tuned track, and clean endings.

`make test-gpu`. Where TensorFlow needs another interpreter: HARNESS_INTERPRETER=tf=PATH make test-gpu.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT

from harness import devices, registry, store
from harness.specs import TrialResult

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(len(devices.machine().gpus) < 2, reason="needs two GPUs"),
    pytest.mark.timeout(480),
]


def harness(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def run(folder: Path, *arguments: str) -> list[TrialResult]:
    done = subprocess.run(harness("run", "--devices", "2", *arguments, "--out", str(folder)), cwd=ROOT, text=True)
    assert done.returncode in (0, 1)  # a failed cell is a row, and is found there
    return [result for result in store.read(folder) if result.status != "unavailable"]


def names(results: list[TrialResult]) -> set[tuple[str, str]]:
    return {(result.spec.framework, result.spec.strategy) for result in results}


def test_every_cell_of_every_manifest(tmp_path):
    """In float64 against the golden reference, then timed in float32; nothing is skipped where there are GPUs."""
    results = run(tmp_path / "all", "--workload", "mnist_cnn", "--size", "tiny", "--preset", "smoke")
    frameworks = {result.spec.framework for result in results}
    assert {"torch", "jax"} <= frameworks
    expected = {(name, strategy.name) for name in frameworks for strategy in registry.framework(name).strategies}
    assert names(results) == expected
    for result in results:
        assert result.status == "ok", f"{result.spec.cell}: {result.reason}"
        assert result.peak_kind == "device"
        assert max(result.precision_errors.values()) < 1e-6, "float32, and not TF32"
        assert result.bare_block_seconds[0] or result.spec.strategy not in ("single", "ddp", "pmap", "mirrored")


def test_tuned_cells_compute_the_same_and_in_tf32_where_asked(tmp_path):
    chosen = "single,data_parallel,ddp,average_gradients,pmap,jit_sharding,mirrored"
    arguments = ("--workload", "resnet50", "--size", "tiny", "--track", "tuned", "--precision", "tf32")
    results = run(tmp_path / "tuned", *arguments, "--strategy", chosen, "--preset", "smoke", "--global-batch", "16")
    assert len(results) >= 7
    for result in results:
        assert result.status == "ok", f"{result.spec.cell}: {result.reason}"
        assert min(result.precision_errors.values()) > 1e-5, "TF32"
    states = {(r.spec.framework, r.spec.strategy): r.compile_cache for r in results}
    assert (states["torch", "single"], states["torch", "data_parallel"]) == ("cold", "none")


def test_a_killed_harness_leaves_nothing_on_the_gpus(tmp_path):
    command = harness("run", "--strategy", "ddp", "--preset", "standard", "--out", str(tmp_path / "killed"))
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL) as process:
        ranks: list[psutil.Process] = []
        limit = time.monotonic() + 120
        while len(ranks) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            family = psutil.Process(process.pid).children(recursive=True)
            ranks = [child for child in family if "harness.worker" in " ".join(child.cmdline())]
        assert len(ranks) >= 2
        time.sleep(8)  # let them take memory on the GPUs
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert gone and not alive
