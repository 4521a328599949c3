"""What all cells of a plan have in common: the request, checked, and what it means on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from harness.machine.devices import Machine
from harness.planning import request_checks
from harness.planning.hosts import Spread, spread_of
from harness.planning.presets import PRESETS
from harness.planning.run_request import Request
from harness.spec import Normalization, Platform, Precision, Track
from harness.spec.errors import UsageError, check_name
from harness.spec.limits import check_limits


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The request, and its names as the kinds they stand for. None stands for the cell's own value."""

    request: Request
    platform: Platform
    device_counts: tuple[int, ...]
    spread: Spread
    preset: str
    tracks: tuple[Track, ...]
    ladder: bool  # whether --track has it
    precision: Precision | None
    batch_norm: Normalization | None
    timeout_seconds: float
    init_from: str  # the checkpoint that training starts from, or ""

    def precision_of(self, track: Track) -> Precision:
        """The precision of the timing phase: the requested one; else bf16 on the tuned track on GPUs; else fp32."""
        if self.precision:
            return self.precision
        return "bf16" if track == "tuned" and self.platform == "gpu" else "fp32"


def make_scope(request: Request, machine: Machine) -> Scope:
    """Check all of a request that depends on no framework and no workload.

    Raises UsageError for a request that cannot be met, MachineUnfit for a broken driver.
    """
    precision, batch_norm = request.precision, request.batch_norm
    checked_precision = request_checks.precision(precision) if precision else None
    known = (*request_checks.TRACKS, request_checks.LADDER)
    wanted = [request_checks.one_of("--track", track, known) for track in request.tracks]
    platform = request_checks.resolve_platform(request, machine)
    device_counts = request_checks.device_counts(request, machine, platform)
    preset = request.preset or ("smoke" if platform == "cpu" else "standard")
    check_name("--preset", preset, PRESETS)
    check_limits(request)
    if request.training:
        request_checks.check_training(request.training)
        if request.launches is not None:
            raise UsageError(
                f"--launches {request.launches}: not allowed under train; --seeds sets how often it trains"
            )
    return Scope(
        request=request,
        platform=platform,
        device_counts=device_counts,
        spread=spread_of(request, machine, platform),
        preset=preset,
        tracks=tuple(track for track in request_checks.TRACKS if track in wanted),
        ladder=request_checks.LADDER in wanted,
        precision=checked_precision,
        batch_norm=request_checks.one_of("--batch-norm", batch_norm, request_checks.NORMALIZATIONS)
        if batch_norm
        else None,
        timeout_seconds=request_checks.timeout_seconds(request),
        init_from=request_checks.init_from(request),
    )
