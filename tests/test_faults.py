"""The gate catches every planted fault, and passes the same cells without it.

`pytest tests/test_faults.py -s` prints each cell's noise and how large each fault shows; docs/parity.md lists both.
The faults themselves are in tests/faults/<framework>_faults.py.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TESTS, make_machine, python

from harness import environment, registry
from harness.display import PlainDisplay
from harness.launch import Order, launch
from harness.plan import make_plan
from harness.references import References
from harness.request import Request
from harness.specs import TrialResult
from harness.verdicts import judge

FAULTS_FOLDER = Path(__file__).parent / "faults"
sys.path.insert(0, str(FAULTS_FOLDER))
from planted import FAULTS, Cell  # noqa: E402

CELLS: dict[str, Cell] = {}
for name in registry.FRAMEWORKS:
    CELLS |= importlib.import_module(f"{name}_faults").CELLS


@pytest.fixture(scope="session")
def zygotes():
    """Where each framework's zygote listens: started when it is first asked for, ended with the session."""
    with tempfile.TemporaryDirectory() as folder:
        running: dict[str, subprocess.Popen] = {}

        def path_of(name: str) -> str:
            path = Path(folder) / name
            if name not in running:
                framework = registry.framework(name)
                variables = environment.worker_environment(
                    machine=make_machine(), platform="cpu", devices=2, cores=1,
                    own=framework.environment.get("cpu", {}), code=TESTS.parent,
                )  # fmt: skip
                variables["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(FAULTS_FOLDER)])
                command = [python(name), "-m", "zygote", framework.package, f"{name}_faults", str(path)]
                running[name] = subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)
            while not path.exists():
                assert running[name].poll() is None, "the zygote has died"
                time.sleep(0.05)
            return str(path)

        yield path_of
        for process in running.values():
            process.kill()
            process.wait()


def prove(tmp_path, monkeypatch, zygotes, cell: str, fault: str) -> TrialResult:
    """The parity phase of a cell under the faulty worker."""
    monkeypatch.setenv("PYTHONPATH", str(FAULTS_FOLDER))
    (tmp_path / "zygote").write_text(zygotes(cell.split()[0]))
    how = CELLS[cell]
    request = Request(
        frameworks=(cell.split()[0],), strategies=(how.strategy,), workloads=(how.workload,), size=how.size,
        devices=(2,), platform="cpu", global_batch=12, timeout_seconds=120.0,
        options={option: (value,) for option, value in how.options.items()},
        **how.known,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    (spec,) = make_plan(request, make_machine()).runnable()
    references = References(tmp_path, data=None, display=PlainDisplay())
    references.prepare(spec)
    golden, groups = references.reference(spec)
    order = Order(
        spec=replace(spec, options=spec.options | {"fault": fault}), phase="parity", interpreter=python(spec.framework),
        folder=tmp_path / "trial", inputs=references.inputs[f"{spec.workload}-{spec.size}"].train, golden=golden,
        groups=len(groups), devices_in_plan=2,
    )  # fmt: skip
    outcome = launch(order, make_machine(), worker="faulty_worker")
    ended = TrialResult(spec=spec, status=outcome.status, reason=outcome.reason, traceback=outcome.traceback)
    return judge(ended, outcome)


def test_the_documentation_lists_every_fault():
    text = (Path(__file__).parent.parent / "docs" / "parity.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(FAULTS)


def test_every_strategy_has_a_fault_of_its_own():
    faulty = {(CELLS[cell].strategy, cell.split()[0]) for cell, _ in FAULTS.values()}
    for framework in registry.FRAMEWORKS:
        for strategy in registry.framework(framework).strategies:
            assert strategy.needs_gpu or (strategy.name, framework) in faulty, f"{framework} {strategy.name}"


# the plain cells are those of the whole matrix, which tests/test_frameworks.py proves
SPECIAL = [name for name, cell in CELLS.items() if cell.options or cell.known]


@pytest.mark.frameworks
@pytest.mark.parametrize("cell", SPECIAL)
def test_without_a_fault_the_gate_passes(tmp_path, monkeypatch, zygotes, cell):
    result = prove(tmp_path, monkeypatch, zygotes, cell, "none")
    assert result.status == "ok", result.traceback or result.reason
    assert result.parity is not None
    print("NOISE", cell, {check.quantity: f"{check.error:.1e}" for check in result.parity.checks})


@pytest.mark.frameworks
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{cell.split()[0]}-{name}" for name, (cell, _) in FAULTS.items()])
def test_the_gate_catches(tmp_path, monkeypatch, zygotes, fault):
    result = prove(tmp_path, monkeypatch, zygotes, FAULTS[fault][0], fault)
    assert result.status == "parity_failed", result.traceback or result.reason
    assert result.parity is not None
    failed = {check.quantity: check.error for check in result.parity.checks if not check.passed}
    print("FAULT", fault, {quantity: f"{error:.1e}" for quantity, error in failed.items()})
