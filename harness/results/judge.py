"""From the ranks' answers to a trial's result: is it proved, and does its timed run follow the golden reference?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.gate import parity, precision_probe
from harness.launch.launcher import Outcome
from harness.spec import CHECKED_LOSSES, Cause, Check, Epoch, Parity, Precision, TrialResult, TrialSpec

LOSS_TOLERANCES: dict[Precision, float] = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}
"""How far the timed run's first loss may be from the golden reference, relative; the next few may be ten times as far.
This check shows what the parity phase cannot see: a wrong path for another precision or batch. Measured distances are
1e-7 in fp32 and 2e-3 in bf16."""
TOO_GOOD = 1e-5
"""In a real bf16 run, some loss is further than this from the golden reference. A strategy that loses the cast to bf16
on its way shows here."""
ASYNCHRONOUS_TOLERANCE = 0.25
"""How far a timed asynchronous run's first losses may be from the reference, in which workers wait for each other."""


def judge(result: TrialResult, outcome: Outcome) -> TrialResult:
    """The result of a parity phase: what went wrong, or the merged gate results of all ranks."""
    proofs = [answer.parity for answer in outcome.answers if answer.parity is not None]
    if outcome.status != "ok":
        result = replace(result, reason=f"in the parity phase: {result.reason}")
        if wrong := _wrong([check for proof in proofs for check in proof.checks]):
            # counts however other ranks ended: no second try may hide it
            cause = _gate([check for proof in proofs for check in proof.checks])
            return replace(result, status="parity_failed", reason=f"{wrong}; {result.reason}", cause=cause)
        return result
    if off := precision_probe.wrong(precision_errors(outcome), "fp64"):
        return replace(result, status="parity_failed", reason=off, cause=Cause(kind="precision"))
    merged = parity.merge(proofs)
    if merged.passed:
        return replace(result, parity=merged)
    cause = _gate(merged.checks)
    return replace(result, status="parity_failed", reason=_wrong(merged.checks), cause=cause, parity=merged)


def _gate(checks: Sequence[Check]) -> Cause:
    """The quantities that are off."""
    return Cause(kind="gate", data={"quantities": sorted({check.quantity for check in checks if not check.passed})})


def _wrong(checks: Sequence[Check]) -> str:
    """The checks that failed, as text."""
    return "; ".join(
        f"{check.quantity} off by {check.error:.1e} at {check.worst} (tolerance {check.tolerance:.0e})"
        for check in checks
        if not check.passed
    )


def timed(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a timing phase, raw times of every rank included. `curve`: the golden losses."""
    timings = [answer.timing for answer in outcome.answers if answer.timing is not None]
    losses = timings[0].losses if timings else ()
    result = _checked(replace(result, parity=proof, golden_losses=curve, losses=losses), outcome)
    if result.status != "ok":
        return result
    return replace(
        _with_process_facts(result, outcome),
        steps_per_block=timings[0].steps_per_block,
        spans=timings[0].spans,
        first_step_seconds=max(timing.first_step_seconds or 0.0 for timing in timings),
        block_seconds=tuple(timing.block_seconds for timing in timings),
        bare_block_seconds=tuple(timing.bare_block_seconds for timing in timings),
    )


def trained(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a training phase, as far as it came. `curve`: the golden losses."""
    trainings = [answer.training for answer in outcome.answers if answer.training is not None]
    losses = trainings[0].losses if trainings else ()
    epochs = tuple(_slowest(ranks) for ranks in zip(*(training.epochs for training in trainings), strict=False))
    first_step = next((epoch.first_step_seconds for epoch in epochs if epoch.steps), None)
    result = replace(result, parity=proof, golden_losses=curve, losses=losses, epochs=epochs)
    result = _checked(replace(result, first_step_seconds=first_step), outcome)
    return _with_process_facts(result, outcome) if result.status == "ok" else result


def _slowest(ranks: Sequence[Epoch]) -> Epoch:
    """One epoch for all ranks: each clock as the slowest rank read it, for they wait for each other in every chunk."""
    clocks = ("seconds", "first_step_seconds", "wait_seconds", "evaluation_seconds", "report_seconds")
    return replace(ranks[0], **{clock: max(getattr(epoch, clock) for epoch in ranks) for clock in clocks})


def _with_process_facts(result: TrialResult, outcome: Outcome) -> TrialResult:
    """The result with what each rank's process took."""
    answers = outcome.answers
    return replace(
        result,
        build_seconds=max(answer.build_seconds or 0.0 for answer in answers),
        peak_bytes=tuple(answer.peak_bytes or 0 for answer in answers),
        peak_kind=answers[0].peak_kind,
    )


def _checked(result: TrialResult, outcome: Outcome) -> TrialResult:
    """The result with what is known of precision and compilation; void if it ended well but computed something else."""
    found = precision_errors(outcome)
    caches = [answer.compile_cache for answer in outcome.answers]
    cache = "cold" if "cold" in caches else next(iter(caches), "")  # cold if any rank had to compile
    result = replace(result, precision_errors=found, compile_cache=cache)
    if result.status != "ok":
        return result
    if off := off_golden(result.losses, result.golden_losses, result.spec):
        return replace(result, status="diverged", reason=off, cause=Cause(kind="loss"))
    if off := precision_probe.wrong(found, result.spec.precision):
        return replace(result, status="parity_failed", reason=off, cause=Cause(kind="precision"))
    return result


def precision_errors(outcome: Outcome) -> dict[str, float]:
    """The largest error of each product over the ranks."""
    found: dict[str, float] = {}
    for answer in outcome.answers:
        for name, error in answer.precision_errors.items():
            found[name] = max(found.get(name, 0.0), error)
    return found


def off_golden(losses: Sequence[float], golden_losses: Sequence[float], spec: TrialSpec) -> str:
    """How the timed run's first losses differ from the golden reference, or "" if they follow it."""
    named = "bf16" if spec.tolerances == "bf16_gradients" else spec.precision
    for step, (loss, right) in enumerate(zip(losses[:CHECKED_LOSSES], golden_losses, strict=False)):
        allowed = LOSS_TOLERANCES[named] * (1 if step == 0 else 10)
        if spec.algorithm == "asynchronous":
            allowed = max(allowed, ASYNCHRONOUS_TOLERANCE)
        if not abs(loss - right) <= allowed * abs(right):
            return (
                f"loss {loss:.6g} of step {step} is not the golden reference's {right:.6g} "
                f"(tolerance in {named}: {allowed:.0e})"
            )
    distances = [abs(loss - right) / abs(right) for loss, right in zip(losses, golden_losses, strict=False)]
    if spec.precision == "bf16" and len(distances) >= CHECKED_LOSSES and max(distances) < TOO_GOOD:
        return f"in bf16 no loss is off by more than {max(distances):.0e}, so it was computed in float32"
    return ""
