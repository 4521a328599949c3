"""The commands that measure: run, train, sweep and reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from harness.cli.argument_values import split
from harness.cli.arguments import (
    CELLS,
    LAUNCH_DEFAULTS,
    RUN_DEFAULTS,
    TRAIN_DEFAULTS,
    BudgetMinutes,
    Data,
    DryRun,
    Guard,
    LaunchArguments,
    Out,
    Resume,
    RunArguments,
    Sampled,
    TrainArguments,
    check_budget,
    given,
    request_of,
)
from harness.cli.sessions import resume_and_show, start_and_show
from harness.machine.devices import machine
from harness.planning import recipes
from harness.planning.matrix import make_plan
from harness.planning.request_checks import resolve_platform
from harness.planning.sweeps import BATCH, batch_sweep_request, sweep_request
from harness.spec.errors import UsageError, check_name


def run(
    arguments: RunArguments = RUN_DEFAULTS,
    *,
    out: Out = None,
    data: Data = None,
    resume: Resume = None,
    budget_minutes: BudgetMinutes = None,
    device_guard: Guard = None,
    telemetry: Sampled = None,
    dry_run: DryRun = False,
) -> int:
    """Check every cell against the reference, time those that pass, and write a report.

    python -m harness run --framework all
    python -m harness run --framework torch,jax --workload toy --devices 4
    """
    check_budget(budget_minutes)
    if resume is not None:
        others = named(out=out, data=data, telemetry=telemetry, **{"dry-run": dry_run or None})
        check_alone([*given(replace(arguments, compile_cache="")), *others])
        return resume_and_show(resume, arguments, budget_minutes, device_guard)
    plan = make_plan(request_of(arguments), machine())
    command = ["run", *given(arguments)]
    return start_and_show(
        plan,
        command,
        size=arguments.size,
        out=out,
        data=data,
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry,
        dry_run=dry_run,
    )


def train(
    arguments: RunArguments = RUN_DEFAULTS,
    training: TrainArguments = TRAIN_DEFAULTS,
    *,
    out: Out = None,
    data: Data = None,
    resume: Resume = None,
    budget_minutes: BudgetMinutes = None,
    device_guard: Guard = None,
    telemetry: Sampled = None,
    dry_run: DryRun = False,
) -> int:
    """Check every cell against the reference, train those that pass, and write a report with learning curves.

    python -m harness train --workload mnist_cnn --epochs 5
    python -m harness train --target-accuracy 0.97 --seeds 5 --strategy ddp,pmap
    python -m harness train --strategy ddp --input loader --num-workers 0,2,4
    """
    check_budget(budget_minutes)
    if resume is not None:
        others = named(out=out, data=data, telemetry=telemetry, **{"dry-run": dry_run or None})
        check_alone([*given(replace(arguments, compile_cache="")), *given(training), *others])
        return resume_and_show(resume, arguments, budget_minutes, device_guard, trainings=True)
    plan = make_plan(request_of(arguments, training), machine())
    command = ["train", *given(arguments), *given(training)]
    return start_and_show(
        plan,
        command,
        size=arguments.size,
        out=out,
        data=data,
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry,
        dry_run=dry_run,
    )


def sweep(
    swept: str,
    /,
    *,
    values: Annotated[str, Parameter(group=CELLS)],
    arguments: RunArguments = RUN_DEFAULTS,
    out: Out = None,
    data: Data = None,
    budget_minutes: BudgetMinutes = None,
    device_guard: Guard = None,
    telemetry: Sampled = None,
    dry_run: DryRun = False,
) -> int:
    """Compare several values of one strategy option, with single and model_parallel as baselines; or global batches.

    python -m harness sweep split_size --workload resnet50 --values 1,3,12,20,60
    python -m harness sweep schedule --framework torch --values gpipe,1f1b
    python -m harness sweep global_batch --strategy ddp,fsdp --values 64:

    Parameters
    ----------
    swept
        The option: a number, e.g. split_size, or a choice, e.g. schedule. Or global_batch.
    values
        Its values, as a comma-separated list.
        Batches may double: 64:1024 up to 1024; 64: on GPUs until nothing fits, at most to 65536.
        A cell that is out of memory is skipped at larger batches, and has not failed.
        The learning rate is the same at all batches.
    """
    check_budget(budget_minutes)
    request, texts = request_of(arguments), tuple(split("--values", values))
    if swept == BATCH:
        request = batch_sweep_request(request, texts, resolve_platform(request, machine()))
    else:
        request = sweep_request(request, swept, texts)
    plan = make_plan(request, machine())
    command = ["sweep", swept, "--values", values, *given(arguments)]
    return start_and_show(
        plan,
        command,
        size=arguments.size,
        out=out,
        data=data,
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry,
        dry_run=dry_run,
        name=f"sweep-{swept}",
    )


def reproduce(
    recipe: str,
    /,
    *,
    values: Annotated[str | None, Parameter(group=CELLS)] = None,
    arguments: LaunchArguments = LAUNCH_DEFAULTS,
    out: Out = None,
    budget_minutes: BudgetMinutes = None,
    device_guard: Guard = None,
    telemetry: Sampled = None,
    dry_run: DryRun = False,
) -> int:
    """Repeat every step of a publication, and compare its numbers with those measured here.

    python -m harness reproduce tutorial

    The tutorial needs two GPUs, or --platform cpu.
    Its defaults differ from those below.
    GPUs: --size tutorial --launches 3 --precision tf32, as PyTorch convolves.
    CPU devices: --size tiny --launches 1 --precision fp32.

    Parameters
    ----------
    recipe
        tutorial: model and pipeline parallelism across two devices, with PyTorch.
    values
        Split sizes, as a comma-separated list. Default: the tutorial's own.
    """
    check_name("reproduce", recipe, recipes.RECIPES)
    check_budget(budget_minutes)
    sizes = tuple(split("--values", values or ""))
    if values is not None and not sizes:
        raise UsageError("--values: is empty; give a comma-separated list, or leave the flag out")
    return start_and_show(
        recipes.tutorial_plan(request_of(arguments), machine(), values=sizes),
        ["reproduce", recipe, *given(arguments), *(["--values", values] if values else [])],
        size=arguments.size,
        out=out,
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry,
        dry_run=dry_run,
        name=f"reproduce-{recipe}",
        recipe=recipe,
    )


def named(**flags: object) -> list[str]:
    """The names of the flags that were given. None: not given."""
    return [f"--{name}" for name, value in flags.items() if value is not None]


def check_alone(others: Sequence[str]) -> None:
    """Raises UsageError if --resume is given together with other flags."""
    if others:
        raise UsageError(f"--resume: the run already has its arguments; leave out {' '.join(others)}")
