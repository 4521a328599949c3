"""The gate catches every planted fault, which says that its code ran, and passes the same cells without it.

`pytest tests/test_faults.py -s` prints each cell's noise and how large each fault shows; docs/parity.md lists both.
The faults themselves are in tests/faults/<framework>_faults.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_machine

from harness.launch.launcher import Launch, launch
from harness.launch.local import LocalLauncher
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.results.judge import judge
from harness.spec import TrialResult, registry

FAULTS_FOLDER = Path(__file__).parent / "faults"
sys.path.insert(0, str(FAULTS_FOLDER))
from planted import FAULTS, Cell, mark  # noqa: E402

pytestmark = pytest.mark.faults

CELLS: dict[str, Cell] = {}
for name in registry.FRAMEWORKS:
    CELLS |= importlib.import_module(f"{name}_faults").CELLS


def prove(references, tmp_path, forked, cell: str, fault: str) -> TrialResult:
    """The parity phase of a cell with a fault, which forked/zygote.py plants."""
    how = CELLS[cell]
    request = Request(
        frameworks=(cell.split()[0],), strategies=(how.strategy,), workloads=(how.workload,), size=how.size,
        devices=(2,), platform="cpu", global_batch=12, timeout_seconds=240.0,
        options={option: (value,) for option, value in how.options.items()},
        **how.known,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    (spec,) = make_plan(request, make_machine()).runnable()
    references.prepare(spec)
    golden, groups = references.reference(spec)
    planned = Launch(
        spec=replace(spec, options=spec.options | {"fault": fault}), phase="parity", interpreter=forked(spec.framework),
        folder=tmp_path / "trial", inputs=references.inputs[f"{spec.workload}-{spec.size}"].train, golden=golden,
        groups=len(groups), devices_in_plan=2,
    )  # fmt: skip
    outcome = launch(planned, LocalLauncher(make_machine()))
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


@pytest.mark.frameworks
@pytest.mark.parametrize("cell", CELLS)
def test_without_a_fault_the_gate_passes(references, tmp_path, forked, cell):
    result = prove(references, tmp_path, forked, cell, "none")
    assert result.status == "ok", result.traceback or result.reason
    assert result.parity is not None
    print("NOISE", cell, {check.quantity: f"{check.error:.1e}" for check in result.parity.checks})


@pytest.mark.frameworks
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{cell.split()[0]}-{name}" for name, (cell, _) in FAULTS.items()])
def test_the_gate_catches(references, tmp_path, forked, fault):
    result = prove(references, tmp_path, forked, FAULTS[fault][0], fault)
    assert result.status == "parity_failed", result.traceback or result.reason
    assert result.parity is not None  # every rank came to the end: it was not caught because it crashed
    assert mark(fault, tmp_path / "trial").exists(), f"caught, but not as {fault}: its code never ran"
    failed = {check.quantity: check.error for check in result.parity.checks if not check.passed}
    print("FAULT", fault, {quantity: f"{error:.1e}" for quantity, error in failed.items()})
