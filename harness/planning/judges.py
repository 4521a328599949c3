"""Which framework judges another one's models of a network that NumPy cannot train.

No model is judged by itself: each framework's models are judged by the `single` of the next framework of the run, and
those of the last one by that of the first. If one of three differs, it is seen that the other two agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness import workloads
from harness.planning.plan import Plan, Planned
from harness.spec import TrialSpec, registry
from harness.spec.errors import UsageError
from harness.workloads import Workload


def frameworks_of(cells: Sequence[Planned], workload: str, size: str) -> list[str]:
    """The frameworks that have cells of a workload to be run, in their order."""
    known = list(registry.packages())
    found = {
        cell.spec.framework
        for cell in cells
        if cell.status == "planned" and (cell.spec.workload, cell.spec.size) == (workload, size)
    }
    return sorted(found, key=known.index)


def check_judges(cells: Sequence[Planned]) -> None:
    """Raises UsageError if a framework has nobody to judge its models."""
    for name, size in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        if workloads.get(name, size).has_reference:
            continue
        found = frameworks_of(cells, name, size)
        if len(found) == 1:
            raise _alone(name, found[0])


def check_trainable(workload: Workload) -> None:
    """Raises UsageError for a network whose trainings nothing could judge."""
    if not workload.has_reference:
        raise UsageError(
            f"train: {workload.name} has Opaque layers and so no NumPy reference, by which trainings are checked; use "
            "run, or write its layers (docs/own-model.md)"
        )


def _alone(workload: str, framework: str) -> UsageError:
    """The error that nobody can judge a framework's models."""
    return UsageError(
        f"--workload {workload}: it has Opaque layers and so no NumPy reference, its models are judged by each other, "
        f"and of the cells that were asked for, only those of {framework} can run here; choose another --framework, or "
        "a --strategy that another one has (all have single), or write its layers (docs/own-model.md)"
    )


def judge_of(spec: TrialSpec, plan: Plan) -> TrialSpec | None:
    """The cell that judges another one: the same steps by the next framework, on one device. None if NumPy judges.

    Raises UsageError if there is no other framework.
    """
    if workloads.get(spec.workload, spec.size).has_reference:
        return None
    names = frameworks_of(plan.trials, spec.workload, spec.size)
    if len(names) == 1:  # the other ones were there when the run that is resumed was planned
        raise _alone(spec.workload, spec.framework)
    framework = names[(names.index(spec.framework) + 1) % len(names)]
    return plain_single(spec, framework, variant=f"judge of {spec.framework}, {spec.parity_batch} samples")


def plain_single(spec: TrialSpec, framework: str, *, variant: str) -> TrialSpec:
    """The cell that makes the same steps by `single` of a framework, on one device, without any option or setting.

    `variant`: its name.
    """
    manifest = registry.framework(framework)
    single = manifest.strategy("single")
    return replace(
        spec,
        framework=framework,
        strategy="single",
        devices=1,
        hosts=1,
        options=single.defaults,
        roles=single.roles(single.defaults),
        changed_in_parity={},
        variant=variant,
        normalization="global",
        accumulation_steps=1,
        steps_per_call=1,
        tolerances="exact",
        track="defaults",
        settings={setting.name: False for setting in manifest.settings},
        chosen_settings={},
        twin=False,
    )
