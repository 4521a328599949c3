"""What a launch reached of what its devices can do."""

from __future__ import annotations

from harness.spec import TrialResult


def share_of_matrix_rate(result: TrialResult) -> float | None:
    """The operations of the fastest block, divided by those of matrix products on the same devices; None: not known."""
    checks = [check for timing in result.timings for check in timing.checks]
    return next((check.error for check in checks if check.quantity == "share of the matrix rate"), None)


def matrix_rate_reached(result: TrialResult) -> float | None:
    """The operations of the fastest block, per second and device; None: not known."""
    share, measured = share_of_matrix_rate(result), result.bounds
    if share is None or measured is None or measured.matrix_flops_per_second is None:
        return None
    return share * measured.matrix_flops_per_second
