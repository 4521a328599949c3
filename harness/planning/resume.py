"""What lets a run go on: its plan, adapted to what this version of the suite and this machine can do now."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from harness import workloads
from harness.machine import machine_record
from harness.planning import strategy_options
from harness.planning.interpreters import modules_for_checkpoints
from harness.planning.launch_order import rounds
from harness.planning.plan import Plan, cache_folder
from harness.spec import FROM_HOST_VERSION, Hardware, TrialResult, TrialSpec, registry, workload_packages
from harness.spec.errors import UsageError


def as_here(plan: Plan, finished: Iterable[TrialResult], cut: Collection[tuple[str, int]] = ()) -> Plan:
    """The plan of a run that goes on.

    Cells that were unavailable and are available now come after the others, with as many launches. Trials that a budget
    `cut` short, given by cell and launch, come last: they could use up the next budget, too.

    Raises UsageError if a framework that is still needed is no longer available under its interpreter.
    """
    done = {(result.spec.cell, result.spec.launch) for result in finished}
    left = [trial for trial in plan.trials if (trial.spec.cell, trial.spec.launch) not in done]
    unavailable = [trial for trial in plan.trials if trial.status == "unavailable"]
    needed = {trial.spec.framework for trial in left if trial.status == "planned"}
    candidates = {trial.spec.framework for trial in unavailable} | needed
    available = {name for name in candidates if _is_available(plan, name, needed=name in needed)}
    returned = [trial.spec for trial in unavailable if trial.spec.framework in available]
    added = rounds(returned, max(plan.launches, 1 + max(trial.spec.launch for trial in plan.trials)))
    kept = [trial for trial in plan.trials if trial.status != "unavailable" or trial.spec.framework not in available]
    trials = sorted([*kept, *added], key=lambda trial: (trial.spec.cell, trial.spec.launch) in cut)
    return replace(plan, trials=tuple(trials))


def _is_available(plan: Plan, framework: str, *, needed: bool) -> bool:
    """Whether a framework can be imported. Raises UsageError if it cannot and is `needed`."""
    specs = [trial.spec for trial in plan.trials if trial.spec.framework == framework]
    modules = modules_for_checkpoints(spec.training for spec in specs)
    try:
        reason = registry.missing(registry.framework(framework), plan.interpreters[framework], beside=modules)
    except UsageError:
        if needed:
            raise
        return False
    if reason and needed:
        raise UsageError(f"--resume: {reason}; or name a Python that has it: --interpreter {framework}=PATH")
    return not reason


def check_known(plan: Plan) -> None:
    """Raises UsageError for a plan with cells that this version of the suite does not have."""
    for spec in (trial.spec for trial in plan.trials):
        cell = f"--resume: {spec.framework} {spec.strategy} on {spec.workload} {spec.size} was planned, but"
        if not workload_packages.is_found(spec.workload):
            raise UsageError(
                f"{cell} there is no such workload, nor a package of that name: if it is a model of your own, set "
                "PYTHONPATH, or go to the folder in which the run was started; else continue with the version of the "
                "suite that planned it"
            )
        if not _is_known(spec):
            raise UsageError(
                f"{cell} does not exist here or has other options; continue with the version and plug-ins that planned "
                "it, or start a new run"
            )


def _is_known(spec: TrialSpec) -> bool:
    try:
        framework = registry.framework(spec.framework)
        strategy = framework.strategy(spec.strategy)
        workloads.get(spec.workload, spec.size)
    except (KeyError, ModuleNotFoundError):
        return False
    if not strategy_options.are_whole(spec.options, strategy) or strategy.roles(spec.options) != spec.roles:
        return False
    return {setting.name for setting in framework.settings} == set(spec.settings)


def check_consent(plan: Plan, *, interpreters: Mapping[str, str], compile_cache: str) -> None:
    """Raises UsageError for programs that only the run's folder names: it may come from somebody else.

    Those are Pythons other than a new run would choose, and a folder of compiled code, which frameworks load and run.
    `interpreters` and `compile_cache`: what the command line names.
    """
    here = {name: registry.default_interpreter(registry.framework(name)) for name in plan.interpreters}
    missing = [
        f"--interpreter {shlex.quote(f'{name}={path}')}"
        for name, path in plan.interpreters.items()
        if path not in (here[name], interpreters.get(name))
    ]
    cached = plan.compile_cache not in ("", "none")
    if cached and not (compile_cache and cache_folder(compile_cache) == cache_folder(plan.compile_cache)):
        missing.append(f"--compile-cache {shlex.quote(plan.compile_cache)}")
    if missing:
        raise UsageError(
            "--resume: this would run code that only the run's folder names, and that folder may come from somebody "
            f"else; if you trust it, add {' '.join(missing)}"
        )


def check_protocol(plan: Plan) -> None:
    """Raises UsageError for a plan that used a version of a timing protocol that this version no longer has."""
    for spec in (trial.spec for trial in plan.trials):
        if spec.protocol == "from_host" and spec.protocol_version != FROM_HOST_VERSION:
            raise UsageError(
                f"--resume: this run was planned with version {spec.protocol_version} of from_host, this program has "
                f"version {FROM_HOST_VERSION}; continue with the version of the suite that planned it, or start a new "
                "run"
            )


def check_machine(then: Hardware, now: Hardware) -> None:
    """Raises UsageError if a run began on other hardware: its numbers and new ones cannot be compared."""
    differs = machine_record.other_hardware(then, now)
    if differs:
        before, here = _in_words(getattr(then, differs)), _in_words(getattr(now, differs))
        hint = ", or set CUDA_VISIBLE_DEVICES to as many GPUs" if differs == "gpus" else ""
        raise UsageError(
            f"--resume: the run began on another machine: its {differs} was {before}, here it is {here}; continue on "
            f"that machine, or start a new run{hint}"
        )


def _in_words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(gpu.name for gpu in value) or "none"
    return str(value)
