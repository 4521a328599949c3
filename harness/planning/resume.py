"""What lets a run go on: its plan as it can be carried out now, by this version, on this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness import workloads
from harness.machine import environment
from harness.planning.matrix import Plan, beside, rounds
from harness.spec import FROM_HOST_VERSION, TrialResult, registry
from harness.spec.errors import UsageError


def as_here(plan: Plan, finished: Iterable[TrialResult], cut: Collection[tuple[str, int]] = ()) -> Plan:
    """The plan of a run that goes on. What was unavailable when it was made and no longer is comes after the others, as
    often as they; last come the trials `cut` short by a budget, by cell and launch, which could use up the next, too.

    Raises UsageError if a framework that is still needed is here no longer, under its interpreter.
    """
    done = {(result.spec.cell, result.spec.launch) for result in finished}
    left = [trial for trial in plan.trials if (trial.spec.cell, trial.spec.launch) not in done]
    away = [trial for trial in plan.trials if trial.status == "unavailable"]
    needed = {trial.spec.framework for trial in left if trial.status == "planned"}
    here = {name for name in {trial.spec.framework for trial in away} | needed if _is_here(plan, name, name in needed)}
    back = [trial.spec for trial in away if trial.spec.framework in here]
    added = rounds(back, max(plan.launches, 1 + max(trial.spec.launch for trial in plan.trials)))
    stay = [trial for trial in plan.trials if trial not in away or trial.spec.framework not in here]
    trials = sorted([*stay, *added], key=lambda trial: (trial.spec.cell, trial.spec.launch) in cut)
    return replace(plan, trials=tuple(trials))


def _is_here(plan: Plan, framework: str, needed: bool) -> bool:
    specs = [trial.spec for trial in plan.trials if trial.spec.framework == framework]
    needs = beside([spec.training for spec in specs])
    try:
        reason = registry.missing(registry.framework(framework), plan.interpreters[framework], beside=needs)
    except UsageError:
        if needed:
            raise
        return False
    if reason and needed:
        raise UsageError(f"--resume: {reason}; or name a Python that has it: --interpreter {framework}=PATH")
    return not reason


def check_known(plan: Plan) -> None:
    """Raises UsageError for the plan of a run that was made by a version of this suite with other cells."""
    for spec in (trial.spec for trial in plan.trials):
        try:
            framework = registry.framework(spec.framework)
            options = framework.strategy(spec.strategy).options
            workloads.get(spec.workload, spec.size)
            same = (options.keys(), {each.name for each in framework.settings}) == (
                spec.options.keys(),
                {*spec.settings},
            )
        except (KeyError, ModuleNotFoundError):
            same = False
        if not same:
            raise UsageError(
                f"--resume: {spec.framework} {spec.strategy} on {spec.workload} {spec.size}, as it was planned, is not "
                "here or has other options; go on with the version and plug-ins that planned it, or begin anew"
            )


def check_protocol(plan: Plan) -> None:
    """Raises UsageError for the plan of a run that was timed by a version of a protocol that is measured no more."""
    for spec in (trial.spec for trial in plan.trials):
        if spec.protocol == "from_host" and spec.protocol_version != FROM_HOST_VERSION:
            raise UsageError(
                f"--resume: from_host was at version {spec.protocol_version} when this run was planned, and is at "
                f"{FROM_HOST_VERSION} now; go on with the version of the suite that planned it, or begin anew"
            )


def check_machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError if a run began on a machine with other hardware: its numbers and new ones do not compare."""
    differs = environment.other_hardware(then, now)
    if differs:
        there, here = (_words(machine.get(differs)) for machine in (then, now))
        hint = ", or name as many by CUDA_VISIBLE_DEVICES" if differs == "gpus" else ""
        raise UsageError(
            f"--resume: the run began on another machine: {differs} {there} there, {here} here; go on there, or begin "
            f"anew{hint}"
        )


def _words(value: Any) -> str:
    return (", ".join(gpu["name"] for gpu in value) or "none") if isinstance(value, list | tuple) else str(value)
