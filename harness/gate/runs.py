"""Golden runs: the references that cells are compared with, computed from a cell's spec alone.

    python -m harness.gate.runs FOLDER

computes the run that FOLDER/run.json describes, and writes FOLDER/golden.npz. harness/launch/golden_pool.py starts such
processes. The machine affects a run only through the rounding of BLAS.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness import checkpoints, workloads
from harness.datasets import Batches, Epochs, Step, epochs_of, parity_steps
from harness.gate import parity, timed_curve
from harness.layers import chain_values, with_rounding
from harness.reference import asynchronous, loops
from harness.reference.golden import Golden
from harness.spec import OptimizerSpec, Precision, TrialSpec, codec
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.spec.partition import normalization_groups
from harness.spec.processes import die_with_parent
from harness.workloads import Workload

THREADS = 2  # trainings at the same time: the reference itself, and those that measure its noise

TRAININGS_AT_RANDOM = 3
"""How many round at random, beside one that rounds to the nearest. A sign that flips, or a place in a max
pool, turns one training in several far away, and not the others: six of mnist_cnn tiny in bf16 with Adam ended 0.07 to
0.39 of a tensor's movement from the exact one."""

FEWER_BITS: dict[Precision, int] = {"fp64": 0, "fp32": 2, "tf32": 0, "bf16": 0}
"""In fp32 such events are rare. With two bits less, four times as many happen, and what else rounding changes is four
times as large. Without BatchNorm that is far below the least tolerances (docs/parity.md)."""

Phase = Literal["parity", "timing"]


@dataclass(frozen=True, kw_only=True)
class GoldenRun:
    """What to compute: the reference of a cell's parity phase, or the losses of its first timed steps."""

    spec: TrialSpec
    phase: Phase
    steps: int
    inputs: Path  # the workload's training samples
    folder: Path  # where golden.npz is written

    @property
    def output(self) -> Path:
        return self.folder / "golden.npz"

    @property
    def batch(self) -> int:
        """The samples of a step."""
        return self.spec.parity_batch if self.phase == "parity" else self.spec.global_batch

    @property
    def step_flops(self) -> float:
        """Floating-point operations of one step of one training."""
        return self.batch * workloads.get(self.spec.workload, self.spec.size).flops_per_unit()

    @property
    def trainings(self) -> int:
        """How many times the network is trained, with those that measure the noise."""
        if self.phase == "parity":
            return 2
        return 2 + TRAININGS_AT_RANDOM if has_noise(self.spec) else 1

    @property
    def flops(self) -> float:
        return self.step_flops * self.steps * self.trainings

    @property
    def memory_bytes(self) -> float:
        """An estimate of the process's peak memory, rather too small than too large.

        The layers of ResNet-50 were measured to keep one float64 for every 640 FLOPs of a step, and those of small
        networks at least three for each of their inputs and outputs. In addition, each training has up to ten copies of
        the parameters, and three more for each worker that trains on its own. All batches of a run are in memory.
        """
        workload = workloads.get(self.spec.workload, self.spec.size)
        copies = 10 + (3 * self.spec.devices if self.spec.algorithm == "local" else 0)
        count = sum(math.prod(parameter.shape) for parameter in workload.parameters())
        kept = max(self.step_flops / 640, 3 * self.batch * chain_values(workload.layers, workload.input_shape))
        batches = self.steps * self.batch * math.prod(workload.input_shape)
        numbers = batches + min(self.trainings, THREADS) * (copies * count + kept)
        return self.inputs.stat().st_size + 8 * numbers


def compute(run: GoldenRun, batches: Batches, *, each: Callable[..., Iterable[Golden]] = map) -> None:
    """Compute one run and write its file. `each` calls a function for each training, one after another or together.

    Raises UsageError for a reference that no program can be compared with.
    """
    spec = run.spec
    with np.errstate(all="ignore"):
        if run.phase == "timing":
            samples = [batches.batch(step, spec.global_batch) for step in range(run.steps)]
            found = timed_reference(spec, samples, each=each)
        else:
            # new weights, even if the training starts from a checkpoint
            params = workloads.get(spec.workload, spec.size).init_params(spec.seed)
            train = training(spec, spec.parity_optimizer, spec.parity_options, parity_samples(spec, batches))
            found = parity.make_reference(train, params, both=each)
            parity.check_reference(found, spec.optimizer)
    run.folder.mkdir(exist_ok=True)
    found.save(run.output)


def timed_reference(
    spec: TrialSpec, samples: Sequence[Arrays], *, each: Callable[..., Iterable[Golden]] = map
) -> Golden:
    """The reference of a cell's first timed steps, with the noise of its precision, if anything is judged by it.

    `each`: as in `compute`.
    """
    exact, params = workloads.get(spec.workload, spec.size), initial_params(spec)
    if not has_noise(spec):
        return training(spec, spec.optimizer, spec.options, samples)(params)
    rounding = partial(with_rounding, exact.layers, spec.precision)
    dice = [np.random.default_rng([spec.seed, number]) for number in range(TRAININGS_AT_RANDOM)]
    layers = [rounding(), *(rounding(dice=own, fewer_bits=FEWER_BITS[spec.precision]) for own in dice)]
    reference, nearest, *at_random = each(
        lambda workload: training(spec, spec.optimizer, spec.options, samples, workload=workload)(params),
        (exact, *(replace(exact, layers=rounded) for rounded in layers)),
    )
    return timed_curve.with_noise(reference, nearest, at_random=at_random)


def has_noise(spec: TrialSpec) -> bool:
    """Whether a cell's timed curve is judged by the noise of its precision. Trainings have checks of their own, the
    order of asynchronous updates is unknown, and in float64 nothing is rounded."""
    return spec.training is None and spec.algorithm != "asynchronous" and spec.precision != "fp64"


def training(
    spec: TrialSpec,
    optimizer: OptimizerSpec,
    options: Mapping[str, Any],
    samples: Sequence[Arrays],
    *,
    workload: Workload | None = None,
) -> Callable[[Arrays], Golden]:
    """The reference loop of a cell, as a function of the initial weights alone. `workload`: by default, the cell's."""
    groups = normalization(spec, options)
    own = workloads.get(spec.workload, spec.size)
    workload = workload or own
    known: dict[str, Any] = {"batches": samples, "optimizer": optimizer}
    if spec.algorithm == "local":
        known |= {"workers": spec.devices, "sync_every": spec.option("averaging_interval", of=options)}
        known |= {"accumulation_steps": spec.accumulation_steps, "groups": groups if own.normalizes else None}
        return partial(loops.train_locally, workload, **known)
    if spec.algorithm == "asynchronous":
        interval = spec.push_interval(of=options)
        history = asynchronous.in_turn(spec.devices, len(samples), push_every=interval)
        return partial(asynchronous.replay, workload, history=history, push_every=interval, **known)
    return partial(loops.train, workload, groups=groups, **known)


def normalization(spec: TrialSpec, options: Mapping[str, Any]) -> Callable[[int], tuple[int, ...]]:
    """A cell's normalization groups, as a function of the batch size: one group if there is no BatchNorm."""
    if not workloads.get(spec.workload, spec.size).normalizes:
        return lambda batch: (batch,)
    return lambda batch: normalization_groups(spec, batch=batch, options=options)


def parity_samples(spec: TrialSpec, batches: Batches) -> list[Arrays]:
    """The batches of a cell's parity phase.

    A short last batch has only its true samples. Where workers train on their own shares, it also has the padding that
    completes the shares.
    """
    epochs, steps = _parity_steps(spec, batches)
    if spec.algorithm == "synchronous":
        return [batches.gather(step.chosen) for step in steps]
    return [epochs.whole(step, dtype=np.float64) for step in steps]


def parity_sizes(spec: TrialSpec, batches: Batches) -> list[int]:
    """The number of samples, padding included, in each of these batches."""
    _, steps = _parity_steps(spec, batches)
    return [len(step.chosen) if spec.algorithm == "synchronous" else step.rows for step in steps]


def _parity_steps(spec: TrialSpec, batches: Batches) -> tuple[Epochs, list[Step]]:
    epochs = epochs_of(spec, batches, batch=spec.parity_batch)
    return epochs, parity_steps(spec, epochs, normalizes=workloads.get(spec.workload, spec.size).normalizes)


def initial_params(spec: TrialSpec) -> Arrays:
    """The float64 weights that a cell starts from."""
    found = check_init_from(spec)
    if not found:
        return workloads.get(spec.workload, spec.size).init_params(spec.seed)
    model = {name.removeprefix("model/"): a for name, a in found.items() if name.startswith("model/")}
    return {name: array.astype(np.float64) for name, array in model.items()}


def check_init_from(spec: TrialSpec) -> Arrays:
    """What --init-from gives a cell; nothing without it. Raises UsageError for a checkpoint that does not fit."""
    if spec.training is None or not spec.training.init_from:
        return {}
    parameters = workloads.get(spec.workload, spec.size).parameters()
    shapes = {parameter.name: parameter.shape for parameter in parameters}
    return checkpoints.weights(Path(spec.training.init_from), shapes)


def main() -> None:
    die_with_parent()
    folder = Path(sys.argv[1])
    run = codec.loads(GoldenRun, (folder / "run.json").read_text("utf-8"))
    workload = workloads.get(run.spec.workload, run.spec.size)
    with np.load(run.inputs, allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=run.spec.seed, transform=workload.transform)
    # NumPy releases the interpreter's lock while it computes; its handling of overflows is set for each thread
    with ThreadPoolExecutor(THREADS, initializer=partial(np.seterr, all="ignore")) as threads:
        try:
            compute(run, batches, each=threads.map)
        except UsageError as error:
            (folder / "refused").write_text(str(error), "utf-8", "backslashreplace")


if __name__ == "__main__":
    main()
