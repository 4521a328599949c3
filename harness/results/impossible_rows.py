"""Rows of results.jsonl that have the right form but that no launch can have recorded: altered, or damaged.

A report divides by these numbers and takes the status for what the gate found, so the reader refuses such rows.
"""

from __future__ import annotations

import math

from harness.spec import TrialResult


def impossible(result: TrialResult) -> str:
    """Why no launch can have recorded this, or "" if one can."""
    return _spec(result) or _parity(result) or _timings(result)


def _spec(result: TrialResult) -> str:
    for name in ("devices", "global_batch"):
        if getattr(result.spec, name) < 1:
            return f"spec.{name} must be at least 1"
    return ""


def _parity(result: TrialResult) -> str:
    checks = result.parity.checks if result.parity else ()
    if any(not check.tolerance > 0 for check in checks):
        return "parity.checks: each tolerance must be greater than 0"
    if result.parity is not None and not checks:
        return "parity.checks must not be empty"
    if result.status == "ok" and not (result.parity and result.parity.passed):
        return 'its status is "ok", but it did not pass the gate'
    return ""


def _timings(result: TrialResult) -> str:
    """What is wrong with the times, or with what all ranks of a timed launch have in common."""
    timings = result.timings
    if any(not 0 < seconds < math.inf for timing in timings for seconds in timing.block_seconds):
        return "block_seconds must be greater than 0 and finite"
    if result.status != "ok" or result.spec.training is not None:
        return ""
    if not timings or len(timings) < len(result.ranks):
        return 'its status is "ok", but not every rank was timed'
    for name in ("block_seconds", "bare_block_seconds"):
        if len({len(getattr(timing, name)) for timing in timings}) > 1:
            return f"the ranks have different numbers of {name}"
    if len({timing.steps_per_block for timing in timings}) > 1:
        return "the ranks differ in steps_per_block"
    if not timings[0].block_seconds:
        return 'its status is "ok", but it has no block_seconds'
    if timings[0].steps_per_block < 1:
        return "steps_per_block must be at least 1"
    return ""
