"""Known publications as recipes: which cells to run to redo their every step.

`tutorial` is the model-parallel tutorial: a toy network and ResNet-50 across two GPUs, then the same as a pipeline,
then a search for the best split size; each number there is the mean of ten repeats of three batches of 120 images.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harness import workloads
from harness.machine.devices import Machine
from harness.planning.matrix import Plan, Planned, make_plan
from harness.planning.run_request import Request
from harness.spec import FROM_HOST_VERSION
from harness.spec.errors import UsageError, check_name

RECIPES = ("tutorial",)
REPEATS, BATCHES = 10, 3  # the tutorial's num_repeat and num_batches
LAUNCHES = 3  # on GPUs
SPLIT_SIZES = (1, 3, 5, 8, 10, 12, 20, 40, 60)  # the tutorial's sample points


def tutorial_plan(request: Request, machine: Machine, *, values: tuple[str, ...] = ()) -> Plan:
    """All cells of the tutorial, each timed twice: as it does (from_host), and with resident batches after a warm-up.

    On GPUs at its own size, on CPU devices at the tiny one, unless the request names a size. Raises UsageError.
    """
    platform = make_plan(replace(request, frameworks=("torch",), workloads=("toy",), size=None), machine).platform
    if platform == "gpu" and len(machine.gpus) < 2:
        raise UsageError("reproduce tutorial: needs 2 GPUs, 1 is visible; pass --platform cpu for virtual CPU devices")
    size = request.size or ("tutorial" if platform == "gpu" else "tiny")
    check_name("--size of resnet50", size, workloads.sizes("resnet50"))
    batch = workloads.get("resnet50", size).global_batch
    values = values or tuple(
        str(value) for value in (*SPLIT_SIZES, *((2, 4, 6) if batch < 20 else ())) if value <= batch
    )
    launches = request.launches or (LAUNCHES if platform == "gpu" else 1)
    # what the tutorial's code does on a GPU of today: PyTorch lets convolutions use TF32
    request = replace(request, precision=request.precision or ("tf32" if platform == "gpu" else "fp32"))
    base = replace(request, frameworks=("torch",), devices=(2,), preset="smoke", launches=launches)
    toy = make_plan(replace(base, workloads=("toy",), size=None, strategies=("single", "model_parallel")), machine)
    resnet = make_plan(
        replace(
            base,
            workloads=("resnet50",),
            size=size,
            strategies=("single", "model_parallel", "pipeline"),
            options={"split_size": values},
        ),
        machine,
    )
    trials: list[Planned] = list(toy.trials)
    blocks = math.ceil(REPEATS / launches)  # of each launch: in all no fewer than the tutorial's repeats
    warmup = 1.0 if platform == "gpu" else 0.0
    for trial in resnet.trials:
        timed = {"blocks": blocks, "steps_per_block": BATCHES, "block_seconds": 0.0, "warmup_seconds": warmup}
        proper = replace(trial.spec, **timed)
        trials.append(replace(trial, spec=proper))
        trials.append(replace(trial, spec=replace(proper, protocol="from_host", protocol_version=FROM_HOST_VERSION)))
    return replace(resnet, trials=tuple(trials))
