"""The timed program is compared with the reference as well: faults that spare the parity phase are caught.

`pytest tests/test_timed_faults.py -s` prints the errors of right programs and of each fault.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_machine, undisturbed

from harness.launch.launcher import Launch
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.reference.golden import read_losses
from harness.results.judge import timed
from harness.spec import Check, TrialResult

sys.path.insert(0, str(Path(__file__).parent / "faults"))
from planted import CAUGHT_BY, TIMED, mark, register_all, until_told

pytestmark = pytest.mark.faults

CELLS = register_all()


def time_it(references, tmp_path, forked, cell: str, fault: str) -> TrialResult:
    """The timing phase of a cell with a fault, which forked/zygote.py plants."""
    how = CELLS[cell]
    known: dict[str, Any] = {"devices": (2,)} | dict(how.known)
    request = Request(
        frameworks=(cell.split()[0],), strategies=(how.strategy,), workloads=(how.workload,), size=how.size,
        platform="cpu", preset="smoke", timeout_seconds=240.0,
        options={option: (value,) for option, value in how.options.items()}, **known,
    )  # fmt: skip
    (spec,) = make_plan(request, make_machine()).runnable()
    spec = replace(spec, blocks=1, steps_per_block=how.block)
    references.prepare(spec)
    planned = Launch(
        spec=replace(spec, options=spec.options | {"fault": fault}), phase="timing", interpreter=forked(spec.framework),
        folder=tmp_path / "trial", inputs=references.inputs_of(spec).train, golden=references.curve(spec),
        devices_in_plan=spec.devices,
    )  # fmt: skip
    outcome = undisturbed(planned)
    ended = TrialResult(spec=spec, status=outcome.status, reason=outcome.reason, traceback=outcome.traceback)
    curve = references.curve(spec)
    return timed(ended, outcome, None, read_losses(curve) if curve else ())


def checks_of(result: TrialResult) -> list[Check]:
    return [check for timing in result.timings for check in timing.checks]


def failures(result: TrialResult) -> set[str]:
    return {check.quantity for check in checks_of(result) if not check.passed}


@pytest.mark.frameworks
@pytest.mark.parametrize("cell", CELLS)
def test_without_a_fault_the_timed_program_passes(references, tmp_path, forked, cell):
    result = time_it(references, tmp_path, forked, cell, "none")
    assert result.status == "ok", result.traceback or result.reason
    judged = {check.quantity for check in checks_of(result)}
    assert judged >= {"replicas", "work after sync", "number formats", "exported parameters", "samples taken"}
    assert {quantity.split()[-1] for quantity in judged} >= {"blocks", "movement", "parameters"}
    assert len({len(timing.step_seconds) for timing in result.timings}) == 1
    for timing in result.timings:
        assert len(timing.call_seconds) == len(timing.step_seconds) >= 1
        assert timing.launch_seconds is not None and 0 < timing.launch_seconds < 1
    assert result.bounds is not None and result.bounds.matrix_flops_per_second and result.bounds.memory_bytes_per_second
    assert (result.bounds.links is None) == (
        result.spec.devices == 1
        or result.spec.strategy == "parameter_server"
        or result.spec.options.get("cross_device") in ("one_device", "hierarchical_copy")
    )
    print("NOISE", cell, {check.quantity: f"{check.error:.1e}" for check in checks_of(result)})


@pytest.mark.frameworks
@pytest.mark.parametrize("fault", TIMED, ids=[f"{cell.split()[0]}-{name}" for name, (cell, _) in TIMED.items()])
def test_a_timed_program_that_is_wrong_is_caught(references, tmp_path, forked, fault):
    result, failed, folder = until_told(
        CAUGHT_BY[fault], tmp_path, lambda folder: time_it(references, folder, forked, TIMED[fault][0], fault), failures
    )
    assert result.status in ("diverged", "parity_failed"), result.traceback or result.reason
    assert any(CAUGHT_BY[fault] in quantity for quantity in failed), result.reason
    assert mark(fault, folder / "trial").exists(), f"caught, but not as {fault}: its code never ran"
    print("FAULT", fault, [str(check) for check in checks_of(result) if not check.passed])
