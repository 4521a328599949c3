"""A training is checked while it runs: wrong programs that pass the gate are caught when they train.

`pytest tests/test_training_faults.py -s` prints the errors of right programs and of each fault.
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
from harness.reporting.training_proof import checks
from harness.results.judge import trained
from harness.spec import Check, TrialResult

sys.path.insert(0, str(Path(__file__).parent / "faults"))
from planted import SEEN_BY, TRAINED, mark, register_all, until_told
from training_faults import BATCH, CELLS

pytestmark = pytest.mark.faults

register_all()


def train_it(references, tmp_path, forked, cell: str, fault: str) -> TrialResult:
    """The training phase of a cell with a fault, which forked/zygote.py plants."""
    how = CELLS[cell]
    batch: Any = {"global_batch": BATCH} if how.workload == "classifier" else {}
    request = Request(
        frameworks=(cell.split()[0],), strategies=(how.strategy,), workloads=(how.workload,), size=how.size,
        devices=(2,), platform="cpu", preset="smoke", timeout_seconds=240.0,
        options={option: (value,) for option, value in how.options.items()},
        **batch, **how.known,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    (spec,) = make_plan(request, make_machine()).runnable()
    references.prepare(spec)
    inputs = references.inputs_of(spec)
    planned = Launch(
        spec=replace(spec, options=spec.options | {"fault": fault}), phase="training",
        interpreter=forked(spec.framework), folder=tmp_path / "trial", inputs=inputs.train,
        validation=inputs.validation, test=inputs.test, devices_in_plan=2,
    )  # fmt: skip
    outcome = undisturbed(planned)
    ended = TrialResult(spec=spec, status=outcome.status, reason=outcome.reason, traceback=outcome.traceback)
    curve = references.curve(spec)
    return trained(ended, outcome, None, read_losses(curve) if curve else ())


def worst(found: list[Check]) -> dict[str, str]:
    """The largest error of each quantity, as text."""
    return {check.quantity: f"{check.error:.1e}" for check in sorted(found, key=lambda check: check.error)}


def failures(result: TrialResult) -> set[str]:
    return {check.quantity for check in checks(result) if not check.passed}


@pytest.mark.frameworks
@pytest.mark.parametrize("cell", CELLS)
def test_without_a_fault_a_training_passes(references, tmp_path, forked, cell):
    result = train_it(references, tmp_path, forked, cell, "none")
    assert result.status == "ok", result.traceback or result.reason
    wanted = {"samples", "updates", "evaluated losses", "evaluated accuracies", "state after evaluations"}
    wanted |= {"work after sync", "number formats", "state after placing"}
    alone = result.spec.algorithm == "synchronous" and result.spec.steps_per_call == 1 and "past" not in cell
    wanted |= {"step updates"} if alone and result.spec.precision == "fp32" else set()
    wanted |= {"step weight decay"} if alone and result.spec.optimizer.weight_decay else set()
    wanted |= {"step losses"} if result.spec.algorithm == "synchronous" else set()
    waits = result.spec.algorithm != "asynchronous"
    wanted |= {"replayed block", "resumed training", "updates counted"} if waits else set()
    wanted |= {"kept statistics"} if "deep" in cell else set()
    wanted |= {"running statistics"} if "deep" in cell and result.spec.accumulation_steps == 1 else set()
    training = result.ranks[0].training
    assert training is not None
    assert {check.quantity for check in checks(result)} == wanted
    assert wanted | training.unchecked.keys() >= {
        "step losses",
        "step updates",
        "resumed training",
    }  # nothing is left out silently
    print("NOISE", cell, worst(checks(result)))


@pytest.mark.frameworks
@pytest.mark.parametrize("fault", TRAINED, ids=[f"{cell.split()[0]}-{name}" for name, (cell, _) in TRAINED.items()])
def test_a_training_that_is_wrong_is_caught(references, tmp_path, forked, fault):
    named = SEEN_BY.get(fault)  # what a program counts by itself is lost in a fresh one, so that is seen, too
    result, failed, folder = until_told(
        named or "", tmp_path, lambda folder: train_it(references, folder, forked, TRAINED[fault][0], fault), failures
    )
    assert result.status == "parity_failed", result.traceback or result.reason
    assert not result.epochs, "nobody may take the accuracy of a wrong training"
    assert mark(fault, folder / "trial").exists(), f"caught, but not as {fault}: its code never ran"
    also = {"evaluated accuracies"} if named == "evaluated losses" else set()
    by_chance = {"work after sync", "number formats"}  # of two chunks, on busy cores; of a step that was left out
    assert named is None or named in failed <= {named, "resumed training", "replayed block"} | also | by_chance, failed
    print("FAULT", fault, worst([check for check in checks(result) if not check.passed]))
