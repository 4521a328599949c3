"""Known publications as recipes: which cells to run to repeat every step of a publication.

`tutorial` is PyTorch's model-parallel tutorial: a toy network and ResNet-50 across two GPUs, then ResNet-50 as a
pipeline, then a search for the best split size. Each of its numbers is the mean of ten repeats of three batches of
120 images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness import workloads
from harness.machine.devices import Machine
from harness.planning.matrix import make_plan
from harness.planning.plan import Plan, Planned
from harness.planning.run_request import Request
from harness.spec import FROM_HOST_VERSION, Platform
from harness.spec.errors import UsageError, check_name

RECIPES = ("tutorial",)
REPEATS, BATCHES = 10, 3  # the tutorial's num_repeat and num_batches
LAUNCHES = 3  # on GPUs
SPLIT_SIZES = (1, 3, 5, 8, 10, 12, 20, 40, 60)  # the tutorial's values
SMALL_BATCH = 20
MORE_SPLIT_SIZES = (2, 4, 6)  # for a batch so small that few of the tutorial's values fit


def tutorial_plan(request: Request, machine: Machine, *, values: tuple[str, ...] = ()) -> Plan:
    """All cells of the tutorial. Each cell of ResNet-50 is timed twice: in the tutorial's way (from_host), and with
    resident batches after a warm-up.

    On GPUs at the tutorial's size, on CPU devices at the tiny one, unless the request names a size. Raises UsageError.
    """
    platform = make_plan(replace(request, frameworks=("torch",), workloads=("toy",), size=None), machine).platform
    if platform == "gpu" and len(machine.gpus) < 2:
        raise UsageError("reproduce tutorial: needs 2 GPUs, 1 is visible; pass --platform cpu for virtual CPU devices")
    size = request.size or workloads.default_size("resnet50", platform)
    check_name("--size of resnet50", size, workloads.sizes("resnet50"))
    launches = request.launches or (LAUNCHES if platform == "gpu" else 1)
    base = replace(
        request,
        frameworks=("torch",),
        devices=(2,),
        preset="smoke",
        launches=launches,
        # What the tutorial's code does on a current GPU: PyTorch lets convolutions use TF32.
        precision=request.precision or ("tf32" if platform == "gpu" else "fp32"),
    )
    toy = replace(base, workloads=("toy",), size=None, strategies=("single", "model_parallel"))
    resnet = replace(
        base,
        workloads=("resnet50",),
        size=size,
        strategies=("single", "model_parallel", "pipeline"),
        options={"split_size": values or _split_sizes(size)},
    )
    plan = make_plan(resnet, machine)
    trials = [*make_plan(toy, machine).trials, *_timed_twice(plan.trials, platform, launches)]
    return replace(plan, trials=tuple(trials))


def _split_sizes(size: str) -> tuple[str, ...]:
    """The values of split_size to try: those that are no larger than the batch of this size."""
    batch = workloads.get("resnet50", size).global_batch
    candidates = SPLIT_SIZES if batch >= SMALL_BATCH else (*SPLIT_SIZES, *MORE_SPLIT_SIZES)
    return tuple(str(value) for value in candidates if value <= batch)


def _timed_twice(trials: Sequence[Planned], platform: Platform, launches: int) -> Iterator[Planned]:
    """Each trial with resident batches, then as the tutorial times it."""
    for trial in trials:
        resident = replace(
            trial.spec,
            blocks=math.ceil(REPEATS / launches),  # all launches together have at least the tutorial's repeats
            steps_per_block=BATCHES,
            block_seconds=0.0,
            warmup_seconds=1.0 if platform == "gpu" else 0.0,
        )
        from_host = replace(resident, protocol="from_host", protocol_version=FROM_HOST_VERSION)
        yield replace(trial, spec=resident)
        yield replace(trial, spec=from_host)
