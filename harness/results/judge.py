"""From the ranks' answers to a trial's result: is it proved, and does its timed run follow the golden reference?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.gate import parity, precision_probe
from harness.launch.local import Outcome
from harness.spec import CHECKED_LOSSES, Check, Epoch, Parity, Precision, Span, TrialResult, TrialSpec

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
    """The result of a parity phase: what went wrong, or the gate's findings on all ranks."""
    if outcome.status != "ok":
        result = replace(result, reason=f"in the parity phase: {result.reason}")
        found = [
            check for answer in outcome.answers if "parity" in answer for check in parity_from(answer["parity"]).checks
        ]
        if wrong := _wrong(found):  # that counts however other ranks ended: a second try must not hide it
            return replace(result, status="parity_failed", reason=f"{wrong}; {result.reason}")
        return result
    if off := precision_probe.wrong(precision_errors(outcome), "fp64"):
        return replace(result, status="parity_failed", reason=off)
    merged = parity.merge(parity_from(answer["parity"]) for answer in outcome.answers)
    if merged.passed:
        return replace(result, parity=merged)
    return replace(result, status="parity_failed", reason=_wrong(merged.checks), parity=merged)


def _wrong(checks: Sequence[Check]) -> str:
    """The checks that failed, as text."""
    return "; ".join(
        f"{check.quantity} off by {check.error:.1e} at {check.worst} (tolerance {check.tolerance:.0e})"
        for check in checks
        if not check.passed
    )


def timed(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a timing phase, with the raw times of every rank."""
    first = next((answer for answer in outcome.answers if answer), {})
    known: dict[str, Any] = {
        "parity": proof,
        "golden_losses": curve,
        "losses": tuple(first.get("losses", ())),
    }
    known |= _voided(outcome, known["losses"], curve, result.spec)
    if outcome.status == "ok" and "status" not in known:
        answers = outcome.answers
        known |= {
            "steps_per_block": first["steps_per_block"],
            "spans": tuple(Span(**span) for span in first.get("spans", ())),
            "build_seconds": max(answer["build_seconds"] for answer in answers),
            "first_step_seconds": max(answer["first_step_seconds"] for answer in answers),
            "bare_block_seconds": tuple(tuple(answer.get("bare_block_seconds", ())) for answer in answers),
            "block_seconds": tuple(tuple(answer["block_seconds"]) for answer in answers),
            "peak_bytes": tuple(answer["peak_bytes"] for answer in answers),
            "peak_kind": first["peak_kind"],
        }
    return replace(result, **known)


def trained(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a training phase, as far as it got."""
    answers = [answer for answer in outcome.answers if answer]
    first = next(iter(answers), {})
    # the slowest rank's clocks count, because ranks wait for each other at the end of every chunk
    clocks = ("seconds", "first_step_seconds", "wait_seconds", "evaluation_seconds", "report_seconds")
    epochs = []
    for same in zip(*(answer.get("epochs", ()) for answer in answers), strict=False):
        epochs.append(Epoch(**same[0] | {name: max(epoch[name] for epoch in same) for name in clocks}))
    known: dict[str, Any] = {
        "parity": proof,
        "golden_losses": curve,
        "losses": tuple(first.get("losses", ())),
        "epochs": tuple(epochs),
        "first_step_seconds": next((epoch.first_step_seconds for epoch in epochs if epoch.steps), None),
    }
    known |= _voided(outcome, known["losses"], curve, result.spec)
    if outcome.status == "ok" and "status" not in known:
        known |= {
            "build_seconds": max(answer["build_seconds"] for answer in answers),
            "peak_bytes": tuple(answer["peak_bytes"] for answer in answers),
            "peak_kind": first["peak_kind"],
        }
    return replace(result, **known)


def _voided(outcome: Outcome, losses: Sequence[float], curve: Sequence[float], spec: TrialSpec) -> dict[str, Any]:
    """Findings on precision and compilation, and the status of a run that succeeded but does not count."""
    found = precision_errors(outcome)
    caches = [answer.get("compile_cache", "") for answer in outcome.answers]
    cache = "cold" if "cold" in caches else next(iter(caches), "")  # cold if any rank had to compile
    known: dict[str, Any] = {"precision_errors": found, "compile_cache": cache}
    if outcome.status != "ok":
        return known
    if off := off_golden(losses, curve, spec):
        return known | {"status": "diverged", "reason": off}
    if off := precision_probe.wrong(found, spec.precision):
        return known | {"status": "parity_failed", "reason": off}
    return known


def precision_errors(outcome: Outcome) -> dict[str, float]:
    """The worst over the ranks."""
    found: dict[str, float] = {}
    for answer in outcome.answers:
        for name, error in answer.get("precision_errors", {}).items():
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


def parity_from(raw: dict[str, Any]) -> Parity:
    """A Parity from its JSON form."""
    return Parity(**{**raw, "checks": tuple(Check(**check) for check in raw["checks"])})
