"""From the ranks' answers to a trial's result: is it proved, and does its timed run follow the golden reference?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.gate import parity, precision_probe
from harness.launch.launcher import Outcome
from harness.spec import (
    CHECKED_LOSSES,
    Cause,
    Check,
    Parity,
    Precision,
    Quantity,
    RankResult,
    Timing,
    TrialResult,
    TrialSpec,
    registry,
)

LOSS_TOLERANCES: dict[Precision, float] = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}
"""How far the timed run's first loss may be from the golden reference, relative. This check shows what the parity phase
cannot see: a wrong path for another precision or batch. Measured distances are 1e-7 in fp32 and 2e-3 in bf16."""
LATER, LATER_WITH_BATCH_NORM = 10, 100
"""The next few losses may be so many times as far, relative to the largest loss so far: an error at a high loss is
still there when the loss has fallen. BatchNorm amplifies rounding: of 22 right cells of ResNet-50 tiny in fp32 with
Adagrad, 12 were off by 2e-3 to 7e-3, in all three frameworks, and two by 5e-2 (harness/gate/timed_curve.py)."""
TOO_GOOD = 1e-5
"""In a real bf16 run, some loss is further than this from the golden reference. A strategy that loses the cast to bf16
on its way shows here."""
ASYNCHRONOUS_TOLERANCE = 0.25
"""How far a timed asynchronous run's first losses may be from the reference, in which workers wait for each other."""


CURVE: tuple[Quantity, ...] = (
    "timed losses",
    "timed parameters",
    "timed movement",
    "timed tensor movement",
    "curve after the blocks",
    "replayed block",
    "losses after the blocks",
    "parameters after the blocks",
    "movement after the blocks",
    "tensor movement after the blocks",
)
"""Checks of what a timed program computed. All others are about how: in which number format, on which device."""

SAME_LOSS = 1e-6
"""How far the loss of the whole batch may differ between ranks, relative: they may sum it in another order."""


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
    if off := precision_probe.wrong(replace(result, ranks=_measured(outcome)).precision_errors, "fp64"):
        return replace(result, status="parity_failed", reason=off, cause=Cause(kind="precision"))
    merged = parity.merge(proofs)
    if merged.passed:
        return replace(result, parity=merged)
    cause = _gate(merged.checks)
    return replace(result, status="parity_failed", reason=_wrong(merged.checks), cause=cause, parity=merged)


def judged_by(proof: TrialResult, framework: str) -> TrialResult:
    """The result of a parity phase whose reference came from a framework. "": it came from NumPy."""
    if not framework:
        return proof
    parity = replace(proof.parity, judge=framework) if proof.parity else None
    differs = proof.status == "parity_failed" and parity is not None
    title = registry.framework(framework).title
    reason = f"differs from {title}'s model, by which it is judged: {proof.reason}" if differs else proof.reason
    return replace(proof, parity=parity, reason=reason)


def _gate(checks: Sequence[Check]) -> Cause:
    """The quantities that are off."""
    return Cause(kind="gate", data={"quantities": sorted({check.quantity for check in checks if not check.passed})})


SINGLE_PRECISION = 1e-10, 1e-6
"""Relative errors of a float64 computation in which something is rounded to float32: a network with Keras' GELU, whose
constant is a float32, was off by 9e-10 to 3e-8. Rounding to float64 alone is off by far less."""


def _wrong(checks: Sequence[Check]) -> str:
    """The checks that failed, as text."""
    failed = [check for check in checks if not check.passed]
    smallest, largest = SINGLE_PRECISION
    hint = "; errors of this size are float32's: something in the model may compute in it (docs/own-model.md)"
    of_float32 = failed and all(smallest <= check.error <= largest for check in failed)
    return "; ".join(map(str, failed)) + (hint if of_float32 else "")


def timed(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a timing phase. `curve`: the golden losses."""
    result = checked(replace(result, parity=proof, golden_losses=curve, ranks=_measured(outcome)))
    if result.status == "ok":
        return result
    return replace(result, ranks=tuple(_without_times(rank) for rank in result.ranks))


def trained(result: TrialResult, outcome: Outcome, proof: Parity | None, curve: tuple[float, ...]) -> TrialResult:
    """The result of a training phase, as far as it came. `curve`: the golden losses."""
    return checked(replace(result, parity=proof, golden_losses=curve, ranks=_measured(outcome)))


def _measured(outcome: Outcome) -> tuple[RankResult, ...]:
    return tuple(answer.measured for answer in outcome.answers)


def _without_times(rank: RankResult) -> RankResult:
    """What a failed launch keeps of its timing phase: no one may take the time of a wrong or unfinished run."""
    kept = replace(
        rank.timing or Timing(),
        first_step_seconds=None,
        steps_per_block=0,
        block_seconds=(),
        block_starts=(),
        bare_block_seconds=(),
        step_seconds=(),
        call_seconds=(),
        spans=(),
    )
    return replace(rank, timing=kept, peak_bytes=None, peak_kind="", build_seconds=None)


def checked(result: TrialResult) -> TrialResult:
    """The result, void if it ended well but computed something else."""
    wrong = [check for timing in result.timings for check in timing.checks if not check.passed]
    if result.status != "ok":
        # as in the parity phase, a failed check counts however the ranks ended
        # a training whose state is not what it says may diverge from there
        again = [check for check in _of_training(result) if check.quantity == "replayed block"]
        if not wrong and not again:
            return result
        void = _void(result, wrong) if wrong else _void_training(result, again)
        return replace(void, reason=f"{void.reason}; {result.reason}")
    if off := _unequal_losses(result):
        return replace(result, status="diverged", reason=off, cause=Cause(kind="loss"))
    if wrong:
        return _void(result, wrong)
    if wrong := _of_training(result):
        return _void_training(result, wrong)
    if off := off_golden(result.losses, result.golden_losses, result.spec, deep=result.described.normalizes):
        return replace(result, status="diverged", reason=off, cause=Cause(kind="loss"))
    if off := precision_probe.wrong(result.precision_errors, result.spec.precision):
        return replace(result, status="parity_failed", reason=off, cause=Cause(kind="precision"))
    return result


def _of_training(result: TrialResult) -> list[Check]:
    """The failed checks of a training."""
    return [check for rank in result.ranks if rank.training for check in rank.training.checks if not check.passed]


def _void(result: TrialResult, wrong: Sequence[Check]) -> TrialResult:
    """The result of a timed program with failed checks. Its curve goes first: it says most about the training.

    Of the quantities that are wrong, the reason names the one that was checked first, where it is worst.
    """
    curve = [check for check in wrong if check.quantity in CURVE]
    earliest = [check for check in curve or wrong if check.quantity == (curve or wrong)[0].quantity]
    worst = max(earliest, key=lambda check: check.error)
    return replace(
        result,
        status="diverged" if curve else "parity_failed",
        reason=f"the timed program is not the one that was proved: {worst}",
        cause=Cause(kind="loss" if curve else "gate", data={"quantities": sorted({check.quantity for check in wrong})}),
    )


def _void_training(result: TrialResult, wrong: Sequence[Check]) -> TrialResult:
    """The result of a training with failed checks. Nobody may take its accuracy or its time to the target."""
    ranks = (
        replace(rank, training=replace(rank.training, epochs=())) if rank.training else rank for rank in result.ranks
    )
    return replace(
        result,
        status="parity_failed",
        reason=f"the training is not what it says: {'; '.join(dict.fromkeys(map(str, wrong)))}",
        cause=Cause(kind="gate", data={"quantities": sorted({check.quantity for check in wrong})}),
        ranks=tuple(ranks),
    )


def _unequal_losses(result: TrialResult) -> str:
    """How the ranks' losses differ, or "": each rank reports the loss of the whole batch."""
    phases = [rank.timing or rank.training for rank in result.ranks]
    curves = [phase.losses for phase in phases if phase is not None and phase.losses]
    for number, curve in enumerate(curves[1:], 1):
        for step, (loss, first) in enumerate(zip(curve, curves[0], strict=False)):
            if not abs(loss - first) <= SAME_LOSS * abs(first):
                return f"loss {loss:.6g} of step {step} on rank {number} is not {first:.6g}, as on rank 0"
    return ""


def off_golden(losses: Sequence[float], golden_losses: Sequence[float], spec: TrialSpec, *, deep: bool = False) -> str:
    """How the timed run's first losses differ from the golden reference, or "" if they follow it. `deep`: the network
    has BatchNorm."""
    named = spec.judged_precision
    largest = 0.0
    for step, (loss, right) in enumerate(zip(losses[:CHECKED_LOSSES], golden_losses, strict=False)):
        largest = max(largest, abs(right))
        allowed = LOSS_TOLERANCES[named] * (1 if step == 0 else LATER_WITH_BATCH_NORM if deep else LATER)
        if spec.algorithm == "asynchronous":
            allowed = max(allowed, ASYNCHRONOUS_TOLERANCE)
        if not abs(loss - right) <= allowed * largest:
            return (
                f"loss {loss:.6g} of step {step} is not the golden reference's {right:.6g} "
                f"(tolerance in {named}: {allowed:.0e})"
            )
    pairs = [(loss, right) for loss, right in zip(losses, golden_losses, strict=False) if right]
    distances = [abs(loss - right) / abs(right) for loss, right in pairs]
    if spec.precision == "bf16" and len(distances) >= CHECKED_LOSSES and max(distances) < TOO_GOOD:
        return f"in bf16 no loss is off by more than {max(distances):.0e}, so it was computed in float32"
    return ""
