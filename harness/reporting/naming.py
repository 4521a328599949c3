"""How reports name what a trial does: framework, options, track, kind of training.

All of it is in the record: a report never asks this installation, which may have other manifests.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.spec import TrialResult, TrialSpec

TRAINING = {
    "synchronous": "the same",
    "local": "different algorithm (local)",
    "asynchronous": "different algorithm (asynchronous)",
}
NORMALIZED_OVER = {"global": "batch", "per_device": "device", "per_microbatch": "micro-batch"}


def framework(result: TrialResult) -> str:
    """The framework's name as its makers write it."""
    return result.described.framework or result.spec.framework


def execution(result: TrialResult) -> str:
    """How the framework executes steps on the "defaults" track."""
    return result.described.execution or "not recorded"


def track(result: TrialResult) -> str:
    """ "tuned", or how the framework executes steps without its tuned settings: "eager, NCHW"."""
    return result.spec.track if result.spec.track == "tuned" else result.described.untuned or result.spec.track


def options(spec: TrialSpec) -> str:
    """ "split_size=20, cut=layer2". A protocol other than "resident" is listed like an option, and so is a twin."""
    protocol = f"protocol={spec.protocol_name}" if spec.protocol != "resident" else ""
    twin = "A/A twin" if spec.twin else ""
    return ", ".join(filter(None, [spec.variant, protocol, twin]))


def on_devices(spec: TrialSpec) -> str:
    """ "×2"; "×4 over 2 hosts"."""
    return f"×{spec.devices} over {spec.hosts} hosts" if spec.hosts > 1 else f"×{spec.devices}"


def workloads(specs: Sequence[TrialSpec]) -> dict[tuple[str, str], str]:
    """What tells the workloads of a report apart, by workload and size: names, sizes where needed; "" for a single
    one."""
    found = dict.fromkeys((spec.workload, spec.size) for spec in specs)
    if len(found) == 1:
        return dict.fromkeys(found, "")
    names = [name for name, _ in found]
    return {(name, size): name if names.count(name) == 1 else f"{name} {size}" for name, size in found}


def qualifiers(spec: TrialSpec, *, workload: str, mixed: bool) -> str:
    """ "toy, tuned", "trained from a loader with 2 workers": what a title ends with. `workload`: its name, if it is to
    be said. `mixed`: whether the kind of training is."""
    found = [workload, "tuned" if spec.track == "tuned" else ""]
    if spec.training is not None and mixed:
        loader = f" from a loader with {spec.training.workers} workers" if spec.training.input == "loader" else ""
        found.append(f"trained{loader}")
    return ", ".join(filter(None, found))


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


def normalized_over(result: TrialResult) -> str:
    """Which samples share BatchNorm statistics: "device", "1/2 of device"; "-" without BatchNorm."""
    if not result.described.normalizes:
        return "-"
    steps = result.spec.accumulation_steps
    part = f"1/{steps} of " if steps > 1 else ""
    return part + NORMALIZED_OVER[result.spec.normalization]
