"""Checks in a row of results.jsonl that no launch can have made: with tolerances that the gate does not have, or of
blocks that are not the row's."""

from __future__ import annotations

from harness import workloads
from harness.gate import (
    further_direction,
    further_update,
    local_update,
    parity,
    replay,
    timed_curve,
    timed_program,
    without_gradients,
)
from harness.spec import Check, Quantity, Timing, TrialResult

OF_CURVE: dict[Quantity, float] = {
    "timed losses": timed_curve.MOST.losses,
    "timed parameters": timed_curve.MOST.parameters,
    "timed movement": timed_curve.MOST.movement,
    "timed tensor movement": timed_curve.SIZES,
}
MOST: dict[Quantity, float] = {
    **OF_CURVE,
    **{timed_program.AFTER_BLOCKS[quantity]: most for quantity, most in OF_CURVE.items()},
    "curve after the blocks": timed_curve.MOST.losses,
    "replicas": timed_program.REPLICAS,
    "further loss": timed_program.STALE,
    "update on new batches": max(further_update.UPDATE.values()),
    "further update": max(further_update.UPDATE.values()),
    "further direction": further_direction.DIRECTION,
    "further step size": further_direction.SIZE_WITH_ROUNDING,
    "further weight decay": further_update.DECAY,
    "further statistics": max(further_update.STATISTICS.values()),
    "kept statistics": max(without_gradients.KEPT.values()),
    "averaging": local_update.AVERAGING,
    "pace of the blocks": timed_program.PACE,
    "pace of the watched block": max(timed_program.PACE_OF_WATCHED.values()),
    "share of the matrix rate": max(timed_program.MATRIX_RATE.values()),
    "replayed block": replay.MOST,
}
"""The largest tolerance of each check of a timed program."""

LIKE = 1.5
"""By what factor the blocks may be faster than the check of the matrix rate says. A network's operations may have been
counted differently, but a number of steps that was doubled is seen."""
CLOCK = 1e-6  # seconds by which a block may seem to end after the next has begun


def impossible_checks(result: TrialResult) -> str:
    """Why no launch can have made these checks, or ""."""
    proved = result.parity.checks if result.parity else ()
    timed = [check for timing in result.timings for check in timing.checks]
    allowed = [(each, _most_of_proof(each, result)) for each in proved]
    allowed += [(each, MOST[each.quantity]) for each in timed if each.quantity in MOST]
    for check, most in allowed:
        if check.tolerance > most * (1 + 1e-9):
            return f"the tolerance of {check.quantity!r} is {check.tolerance:.3g}; the gate allows at most {most:.3g}"
    if any(_overlap(timing) for timing in result.timings):
        return "block_starts and block_seconds: a block ends after the next has begun"
    return _speed(result)


def _most_of_proof(check: Check, result: TrialResult) -> float:
    tolerances = result.parity.tolerances if result.parity else "exact"
    limits = parity.TOLERANCES[tolerances] | {"running statistics": parity.RUNNING[tolerances]}
    return max(parity.MOST_ALLOWED, limits.get(check.quantity, 0.0))


def _overlap(timing: Timing) -> bool:
    ends = [start + seconds for start, seconds in zip(timing.block_starts, timing.block_seconds, strict=False)]
    return any(end > later + CLOCK for end, later in zip(ends, timing.block_starts[1:], strict=False))


def _speed(result: TrialResult) -> str:
    """Whether the blocks are faster than the check of the matrix rate says, which saw the same blocks."""
    spec = result.spec
    if not result.timings or spec.workload not in workloads.names() or spec.size not in workloads.sizes(spec.workload):
        return ""
    timing = result.timings[0]
    shares = [check.error for check in timing.checks if check.quantity == "share of the matrix rate"]
    rate = timing.bounds.matrix_flops_per_second if timing.bounds else None
    if not shares or not rate or not timing.block_seconds or not timing.steps_per_block:
        return ""
    operations = spec.global_batch * workloads.get(spec.workload, spec.size).flops_per_unit()
    share = operations / timing.fastest_step_seconds / (rate * spec.devices)
    if share > LIKE * shares[0]:
        return f"its blocks reach {share:.3g} of the matrix rate, and its check says {shares[0]:.3g}"
    return ""
