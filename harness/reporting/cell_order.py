"""The order of rows in a report."""

from __future__ import annotations

from harness.spec import TrialSpec, registry


def manifest_order(spec: TrialSpec) -> tuple:
    """A key that sorts cells as the manifests do; what this installation does not know comes last."""
    names = list(registry.packages())
    framework = names.index(spec.framework) if spec.framework in names else len(names)
    known = (
        [strategy.name for strategy in registry.framework(spec.framework).strategies] if framework < len(names) else []
    )
    strategy = known.index(spec.strategy) if spec.strategy in known else len(known)
    numbers = tuple(value for _, value in sorted(spec.options.items()) if isinstance(value, int | float))
    return (
        spec.protocol != "resident", spec.workload, spec.size, framework, spec.framework, strategy, spec.strategy,
        spec.devices, spec.hosts, spec.track, numbers, spec.global_batch, spec.cell,
    )  # fmt: skip
