"""How reports name what a trial does: framework, options, track, kind of training.

What this installation does not know, because the report is old or a plug-in is missing, keeps the name in the record.
"""

from __future__ import annotations

from harness import workloads
from harness.spec import TrialSpec, registry

TRAINING = {
    "synchronous": "the same",
    "local": "different algorithm (local)",
    "asynchronous": "different algorithm (asynchronous)",
}
NORMALIZED_OVER = {"global": "batch", "per_device": "device", "per_microbatch": "micro-batch"}


def framework_title(name: str) -> str:
    """The framework's name as its makers write it."""
    return registry.framework(name).title if name in registry.packages() else name


def execution(name: str) -> str:
    """How the framework executes steps on the "defaults" track."""
    return registry.framework(name).execution if name in registry.packages() else "-"


def track(spec: TrialSpec) -> str:
    """ "tuned", or how the framework executes steps without its tuned settings: "eager, NCHW"."""
    known = registry.framework(spec.framework).untuned if spec.framework in registry.packages() else ""
    return spec.track if spec.track == "tuned" else known or spec.track


def options(spec: TrialSpec) -> str:
    """ "split_size=20, cut=layer2". A protocol other than "resident" is listed like an option."""
    protocol = f"protocol={spec.protocol_name}" if spec.protocol != "resident" else ""
    return ", ".join(filter(None, [spec.variant, protocol]))


def same_algorithm(spec: TrialSpec) -> bool:
    """Whether it takes the steps that a single device would take, at whatever learning rate."""
    return spec.algorithm == "synchronous"


def same_training(spec: TrialSpec) -> bool:
    """Whether it claims to train like a single device. Only such cells get a speed-up and a rank."""
    return same_algorithm(spec) and spec.optimizer.scaled_by == 1


def training(spec: TrialSpec) -> str:
    """Whether it trains like a single device: "the same", or what differs."""
    scale = spec.optimizer.scaled_by
    if scale > 1 and same_algorithm(spec):
        return f"different: {scale} times the learning rate"
    return TRAINING[spec.algorithm]


def workload(name: str, size: str) -> workloads.Workload | None:
    """The workload, or None if this installation does not have it."""
    try:
        return workloads.get(name, size)
    except (KeyError, ModuleNotFoundError):
        return None


def normalizes(spec: TrialSpec) -> bool:
    """Whether its network has BatchNorm."""
    known = workload(spec.workload, spec.size)
    return known is not None and known.normalizes


def normalized_over(spec: TrialSpec) -> str:
    """Which samples share BatchNorm statistics: "device", "1/2 of device"; "-" without BatchNorm."""
    if not normalizes(spec):
        return "-"
    part = f"1/{spec.accumulation_steps} of " if spec.accumulation_steps > 1 else ""
    return part + NORMALIZED_OVER[spec.normalization]
