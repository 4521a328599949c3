"""What every cell of a workload is held against: samples, golden references and golden loss curves, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import checkpoints, golden, parity, workloads
from harness.data import Batches, DataError, epochs_of, parity_steps
from harness.display import Display
from harness.errors import UsageError
from harness.layers import Arrays
from harness.partition import normalization_groups
from harness.specs import CHECKED_LOSSES, OptimizerSpec, TrialSpec

GOLDEN_FLOPS = 1e11  # a golden loss curve that costs more than this, some ten seconds of numpy, is cut to what fits


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the parent prepares once for each workload: its samples, in memory and as files."""

    arrays: Arrays
    train: Path
    test: Path | None  # only for `train`


class References:
    """Computes on demand and keeps; files go to the folder `work`."""

    def __init__(self, work: Path, *, data: Path | None, display: Display) -> None:
        self.work, self.data, self.display = work, data, display
        self.inputs: dict[str, Inputs] = {}
        self.curves: dict[tuple, tuple[float, ...]] = {}
        self.files: dict[tuple, Path] = {}

    def prepare(self, spec: TrialSpec) -> None:
        """Load a workload's samples, once. Raises UsageError for bad --data."""
        key = f"{spec.workload}-{spec.size}"
        if key in self.inputs:
            return
        self.display.phase(f"preparing {key}")
        workload = workloads.get(spec.workload, spec.size)
        source = self.data if workload.takes_data else None
        found: dict[str, Arrays] = {}
        for split in ("train", "test") if spec.training else ("train",):
            try:
                found[split] = workload.load(split, source)
            except DataError as error:
                raise UsageError(str(error)) from error
            np.savez(self.work / f"{key}-{split}.npz", **found[split])  # pyright: ignore[reportArgumentType]
        train, test = (self.work / f"{key}-{split}.npz" for split in ("train", "test"))
        self.inputs[key] = Inputs(arrays=found["train"], train=train, test=test if spec.training else None)

    def batches(self, spec: TrialSpec) -> Batches:
        """The training samples of a cell, in the order that its seed gives."""
        transform = workloads.get(spec.workload, spec.size).transform
        return Batches(self.inputs[f"{spec.workload}-{spec.size}"].arrays, seed=spec.seed, transform=transform)

    def impossible(self, spec: TrialSpec) -> str:
        """Why a cell cannot train on these samples, or "". Raises UsageError where none could."""
        if spec.training is None:
            return ""
        epochs = epochs_of(spec, self.batches(spec), batch=spec.global_batch)
        steps = epochs.steps(0)
        if not steps:
            raise UsageError(
                f"--last-batch drop: {spec.workload} has {len(epochs.batches)} training samples, fewer than a global "
                f"batch of {spec.global_batch}; choose a smaller --global-batch, or exact"
            )
        last = steps[-1]
        if last.rows != len(last.chosen) and workloads.get(spec.workload, spec.size).normalizes:
            return (
                f"the last batch of an epoch has {len(last.chosen)} samples and would be padded to {last.rows}, which "
                "would take part in BatchNorm's statistics: choose --last-batch drop, or another --global-batch"
            )
        return ""

    def initial_params(self, spec: TrialSpec) -> Arrays:
        """The float64 weights that a cell begins from."""
        found = self.check_init_from(spec)
        if not found:
            return workloads.get(spec.workload, spec.size).init_params(spec.seed)
        model = {name.removeprefix("model/"): a for name, a in found.items() if name.startswith("model/")}
        return {name: array.astype(np.float64) for name, array in model.items()}

    def check_init_from(self, spec: TrialSpec) -> Arrays:
        """What --init-from gives a cell, nothing without it. Raises UsageError for what this network cannot take up."""
        if spec.training is None or not spec.training.init_from:
            return {}
        parameters = workloads.get(spec.workload, spec.size).parameters()
        shapes = {parameter.name: parameter.shape for parameter in parameters}
        return checkpoints.weights(Path(spec.training.init_from), shapes)

    def golden_losses(self, spec: TrialSpec) -> tuple[float, ...]:
        """The golden loss curve of a cell's timed run: all of it, or its first loss, or nothing, by what it costs."""
        if spec.protocol == "from_host":
            return ()  # its batches are made on the spot
        workload = workloads.get(spec.workload, spec.size)
        groups = self.groups(spec, spec.options)
        key = (*_reference_key(spec, spec.options), spec.optimizer, groups(spec.global_batch))
        if key not in self.curves:
            step_flops = workload.flops_per_unit() * spec.global_batch
            affordable = int(GOLDEN_FLOPS // step_flops)
            # with BatchNorm every grouping has a curve of its own, so only what is checked is computed
            wanted = CHECKED_LOSSES if workload.normalizes else spec.curve_steps
            batches = self.batches(spec)
            if spec.training:  # whole batches, which are those of an epoch as long as it lasts
                wanted = min(CHECKED_LOSSES, len(batches) // spec.global_batch)
            steps = min(wanted, affordable)
            curve: list[float] = []
            if steps:
                samples = [batches.batch(step, spec.global_batch) for step in range(steps)]
                train = training(spec, spec.optimizer, spec.options, samples, groups)
                curve = train(self.initial_params(spec)).losses.tolist()
            self.curves[key] = tuple(curve)
        return self.curves[key]

    def parity_samples(self, spec: TrialSpec) -> list[Arrays]:
        """The batches of a cell's parity phase: of an uneven last one the true samples alone, or, where each worker's
        own share counts, with the padding that makes the shares."""
        epochs = epochs_of(spec, self.batches(spec), batch=spec.parity_batch)
        steps = parity_steps(spec, epochs, normalizes=workloads.get(spec.workload, spec.size).normalizes)
        if spec.algorithm == "synchronous":
            return [epochs.batches.gather(step.chosen) for step in steps]
        return [epochs.whole(step, dtype=np.float64) for step in steps]

    def reference(self, spec: TrialSpec) -> tuple[Path, tuple[int, ...]]:
        """The file with a cell's golden reference, computed when first asked for, and its normalization groups.

        Raises UsageError if the reference itself diverges: then no program can be judged.
        """
        groups = self.groups(spec, spec.parity_options)
        samples = self.parity_samples(spec)
        sizes = tuple(len(batch["x"]) for batch in samples)
        key = (*_reference_key(spec, spec.parity_options), spec.parity_optimizer, groups(spec.parity_batch), sizes)
        if key not in self.files:
            self.display.phase(f"preparing the golden reference of {spec.workload} {spec.size}")
            params = workloads.get(spec.workload, spec.size).init_params(spec.seed)  # whatever training begins from
            with np.errstate(all="ignore"):
                train = training(spec, spec.parity_optimizer, spec.parity_options, samples, groups)
                found = parity.make_reference(train, params)
            if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
                rate = spec.optimizer.learning_rate
                raise UsageError(
                    f"--optimizer: the golden reference itself diverges at learning_rate {rate:g}; lower it"
                )
            self.files[key] = self.work / f"golden-{len(self.files)}.npz"
            found.save(self.files[key])
        return self.files[key], groups(spec.parity_batch)

    def groups(self, spec: TrialSpec, options: Mapping[str, Any]) -> Callable[[int], tuple[int, ...]]:
        """A cell's normalization groups of a batch of some size; where nothing normalizes one for all strategies."""
        if not workloads.get(spec.workload, spec.size).normalizes:
            return lambda batch: (batch,)
        return lambda batch: normalization_groups(spec, batch=batch, options=options)


def training(
    spec: TrialSpec,
    optimizer: OptimizerSpec,
    options: Mapping[str, Any],
    samples: Sequence[Arrays],
    groups: Callable[[int], Sequence[int]],
) -> Callable[[Arrays], golden.Golden]:
    """The golden loop that a cell is held against, as a function of the initial weights alone."""
    workload = workloads.get(spec.workload, spec.size)
    known: dict[str, Any] = {"batches": samples, "optimizer": optimizer}
    if spec.algorithm == "local":
        known |= {"workers": spec.devices, "sync_every": options["sync_every"]}
        known |= {"accumulation_steps": spec.accumulation_steps, "groups": groups if workload.normalizes else None}
        return partial(golden.train_locally, workload, **known)
    if spec.algorithm == "asynchronous":
        return partial(golden.replay, workload, pushes=golden.in_turn(spec.devices, len(samples)), **known)
    return partial(golden.train, workload, groups=groups, **known)


def _reference_key(spec: TrialSpec, options: Mapping[str, Any]) -> tuple:
    own = () if spec.algorithm == "synchronous" else (spec.devices, spec.accumulation_steps, options.get("sync_every"))
    own += (spec.training.init_from,) if spec.training else ()
    return (spec.workload, spec.size, spec.seed, spec.algorithm, *own)
