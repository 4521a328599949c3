"""How long a plan will take, roughly, by a rule that needs no launch. docs/usage.md states the rule.

A run then tells the time that is left by its own launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from harness import workloads
from harness.planning import track_settings
from harness.planning.plan import Plan, first_of_each_computation
from harness.planning.side_by_side import at_once
from harness.planning.sweeps import BATCH
from harness.spec import Platform, TrialSpec, registry
from harness.spec.option import as_typed

START_SECONDS: dict[Platform, float] = {"cpu": 10.0, "gpu": 30.0}  # of a launch: processes, imports, compilation
# the same on CPU devices, where one launch of each cell is forked (harness/launch/supervisors.py), and where parity
# phases run side by side, as many as there are cores (harness/planning/side_by_side.py)
FORKED_SECONDS = 4.0
TUNED_START_SECONDS = 60.0  # the same on GPUs, with the settings of the tuned track
FLOPS_A_CORE = 5e9  # per second, of a processor that trains
FLOPS_OF_GPUS = 3e13  # per second
LEAST_STEP_SECONDS = 1e-3  # of a network so small that the host sets the pace
CHECKED_INTERVALS = 9  # about: between two exchanges of workers, made by a timing phase beside its blocks
LONG = 3600.0  # seconds: a plan that takes longer on CPU devices was hardly meant

SamplesOf: TypeAlias = Callable[[TrialSpec], int]
"""The number of samples that a cell trains on."""


class Outlook(Protocol):
    """Says in sentences what a plan will take. `samples`: how many a cell trains on."""

    def __call__(self, *, samples: SamplesOf) -> Sequence[str]: ...


def expected_seconds(plan: Plan, *, cores: int, samples: SamplesOf | None = None) -> float | None:
    """Seconds that the plan will take, off by a factor of three or more. `cores`: of this machine.

    Trainings are taken to need all of their epochs. None for trainings if nobody knows their number of `samples`.
    """
    trials = plan.runnable()
    if samples is None and any(spec.training for spec in trials):
        return None
    rate = FLOPS_OF_GPUS if plan.platform == "gpu" else cores * FLOPS_A_CORE
    cells = {spec.cell: spec for spec in trials}.values()
    replicated = plan.launches > 1
    proved = _proved(plan)
    proofs = sum(
        _start(spec, replicated=False) + _steps(spec, spec.parity_steps, spec.parity_batch, rate) for spec in proved
    )
    if plan.platform == "cpu" and not plan.where.hosts:
        proofs /= at_once(proved, cores=cores)
    measured = [
        _start(spec, replicated=replicated)
        + track_settings.compile_seconds(registry.framework(spec.framework), spec.settings)
        + (_trained(spec, samples(spec), rate) if spec.training and samples else _timed(spec, rate))
        for spec in cells
    ]
    return proofs + plan.launches * sum(measured)


def sentences(plan: Plan, *, size: str | None, cores: int, samples: SamplesOf | None = None) -> list[str]:
    """What a plan takes, for the user: sizes, launches, time. `size`: what --size names. `cores`: of this machine."""
    notes = [*_size_notes(plan, size=size), *_tuned_options(plan)]
    notes += _repeated_samples(plan, samples) if samples else ()
    return [*notes, _outlook(plan, cores=cores, samples=samples)]


def _outlook(plan: Plan, *, cores: int, samples: SamplesOf | None) -> str:
    """How many parity phases and launches a plan has, and how long they will take."""
    cells = len({spec.cell for spec in plan.runnable()})
    if not cells:
        return "No cell will run."
    proofs, launches = len(_proved(plan)), cells * plan.launches
    seconds = expected_seconds(plan, cores=cores, samples=samples)
    said = f"{cells} cell{'s' * (cells != 1)} will run, with {proofs} parity phase{'s' * (proofs != 1)} and "
    said += f"{launches} launch{'es' * (launches != 1)}"
    if seconds is None:
        return f"{said}; how long trainings take is shown while they run."
    trains = any(spec.training for spec in plan.runnable())
    said += f": very roughly {duration(seconds)}{' for all epochs' if trains else ''}, by the rule in docs/usage.md."
    if plan.platform == "cpu" and seconds > LONG:
        batch = f"{flag} or " if (flag := _flag_of_large_batches(plan)) else ""
        said += f" These are CPU devices: take a smaller {batch}--size (see `list workloads`), or set --budget-minutes."
    return said


def _flag_of_large_batches(plan: Plan) -> str:
    """The flag that asked for a larger batch than the workload's own, or ""."""
    asked = [
        spec
        for spec in plan.runnable()
        if spec.batch_growth == "fixed" and spec.global_batch > workloads.get(spec.workload, spec.size).global_batch
    ]
    swept = any(f"{BATCH}=" in spec.variant for spec in asked)
    return ("--values" if swept else "--global-batch") if asked else ""


def _repeated_samples(plan: Plan, samples: SamplesOf) -> list[str]:
    """On which workloads a batch holds samples more than once. In trainings none does: a last batch is short."""
    batches = {(each.workload, each.size, each.global_batch): each for each in plan.runnable() if not each.training}
    return [
        f"The global batch {batch:,} is larger than {name}'s {count:,} samples, so a batch holds samples repeatedly."
        for (name, _, batch), spec in batches.items()
        if batch > (count := samples(spec))
    ]


def _tuned_options(plan: Plan) -> list[str]:
    """Which options of its strategies the tuned track sets, of those that no cell's name says."""
    found: dict[str, None] = {}
    for spec in plan.runnable():
        if spec.track == "tuned":
            framework = registry.framework(spec.framework)
            shown = spec.variant.split(", ")
            tuned = framework.strategy(spec.strategy).tuned.keys() & spec.options.keys()
            hidden = {name: spec.options[name] for name in sorted(tuned) if f"{name}={spec.options[name]}" not in shown}
            if hidden:
                listed = ", ".join(f"{name}={as_typed(value)}" for name, value in hidden.items())
                found[f"{listed} of {framework.title} {spec.strategy}"] = None
    return [f"The tuned track sets {'; '.join(found)}."] if found else []


def _size_notes(plan: Plan, *, size: str | None) -> list[str]:
    """Which workloads take another size here than on GPUs, because the request names none (`size` is None)."""
    names = dict.fromkeys(trial.spec.workload for trial in plan.trials)
    changed = [(name, *(workloads.default_size(name, platform) for platform in ("cpu", "gpu"))) for name in names]
    return [
        f"{name} takes its size {here} on CPU devices; on GPUs it would take {usual}, which --size {usual} asks for."
        for name, here, usual in changed
        if size is None and plan.platform == "cpu" and here != usual
    ]


def duration(seconds: float) -> str:
    """A rough time in words: "40 s", "7 min", "3 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.0f} h"


def _proved(plan: Plan) -> list[TrialSpec]:
    return first_of_each_computation(plan.runnable())


def _start(spec: TrialSpec, *, replicated: bool) -> float:
    """Seconds until a launch makes its first step. `replicated`: its times are compared with those of others."""
    if spec.platform == "cpu" and not replicated:
        return FORKED_SECONDS
    return TUNED_START_SECONDS if spec.platform == "gpu" and spec.track == "tuned" else START_SECONDS[spec.platform]


def _timed(spec: TrialSpec, rate: float) -> float:
    """Seconds of a launch's timing phase. Each block has whole intervals between exchanges of the workers."""
    steps = math.ceil(spec.steps_per_block / spec.whole_rounds) * spec.whole_rounds
    block = max(_steps(spec, steps, spec.global_batch, rate), spec.block_seconds)
    others = spec.curve_steps + (CHECKED_INTERVALS * spec.exchange_interval if spec.exchange_interval > 1 else 0)
    return _steps(spec, others, spec.global_batch, rate) + spec.warmup_seconds + spec.blocks * block


def _trained(spec: TrialSpec, samples: int, rate: float) -> float:
    """Seconds of a training with all of its epochs, without its evaluations."""
    epochs = spec.training.epochs if spec.training else 0
    return _steps(spec, epochs * math.ceil(samples / spec.global_batch), spec.global_batch, rate)


def _steps(spec: TrialSpec, count: int, batch: int, rate: float) -> float:
    """Seconds that some steps take. `rate`: floating-point operations per second."""
    flops = workloads.get(spec.workload, spec.size).flops_per_unit() * batch
    return count * max(flops / rate, LEAST_STEP_SECONDS)
