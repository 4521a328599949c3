"""What every cell of a workload is held against: samples, golden references and golden loss curves, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import golden, parity, registry, workloads
from harness.data import Batches, DataError
from harness.display import Display
from harness.errors import UsageError
from harness.layers import Arrays
from harness.plan import normalization_groups
from harness.specs import StrategySpec, TrialSpec
from harness.verdicts import CHECKED_LOSSES

GOLDEN_FLOPS = 1e11  # a golden loss curve that costs more than this, some ten seconds of numpy, is cut to what fits


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the parent prepares once for each workload: its samples, as a file and as batches."""

    path: Path
    batches: Batches


class References:
    """Computes on demand and keeps; files go to the folder `work`."""

    def __init__(self, work: Path, *, data: Path | None, display: Display) -> None:
        self.work, self.data, self.display = work, data, display
        self.inputs: dict[str, Inputs] = {}
        self.curves: dict[tuple, tuple[float, ...]] = {}

    def prepare(self, spec: TrialSpec) -> None:
        """Load a workload's samples, once. Raises UsageError for bad --data."""
        key = f"{spec.workload}-{spec.size}"
        if key in self.inputs:
            return
        self.display.phase(f"preparing {key}")
        workload = workloads.get(spec.workload, spec.size)
        try:
            arrays = workload.load("train", self.data if workload.takes_data else None)
        except DataError as error:
            raise UsageError(str(error)) from error
        np.savez(self.work / f"{key}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        batches = Batches(arrays, seed=spec.seed, transform=workload.transform)
        self.inputs[key] = Inputs(path=self.work / f"{key}.npz", batches=batches)

    def golden_losses(self, spec: TrialSpec) -> tuple[float, ...]:
        """The golden loss curve of a cell's timed run: all of it, or its first loss, or nothing, by what it costs."""
        if spec.protocol == "from_host":
            return ()  # its batches are made on the spot
        workload = workloads.get(spec.workload, spec.size)
        groups = normalization_groups(_strategy(spec), batch=spec.global_batch, devices=spec.devices, **spec.options)
        if not workload.normalizes:
            groups = (spec.global_batch,)  # the same for all strategies, so computed once
        key = (spec.workload, spec.size, groups)
        if key not in self.curves:
            step_flops = workload.flops_per_unit() * spec.global_batch
            affordable = int(GOLDEN_FLOPS // step_flops)
            # with BatchNorm every grouping has a curve of its own, so only what is checked is computed
            wanted = CHECKED_LOSSES if workload.normalizes else spec.curve_steps
            steps = min(wanted, affordable)
            curve: list[float] = []
            if steps:
                params, samples = workload.init_params(spec.seed), self.samples(spec, steps, spec.global_batch)
                run = golden.train(workload, params, samples, optimizer=spec.optimizer, groups=groups)
                curve = run.losses.tolist()
            self.curves[key] = tuple(curve)
        return self.curves[key]

    def samples(self, spec: TrialSpec, steps: int, batch: int) -> Iterator[Arrays]:
        """The first batches of a cell's workload."""
        batches = self.inputs[f"{spec.workload}-{spec.size}"].batches
        return (batches.batch(step, batch) for step in range(steps))

    def reference(self, spec: TrialSpec) -> tuple[Path, tuple[int, ...]]:
        """The file with a cell's golden reference, computed when first asked for, and its normalization groups.

        Raises UsageError if the reference itself diverges: then no program can be judged.
        """
        groups = normalization_groups(
            _strategy(spec), batch=spec.parity_batch, devices=spec.devices, **spec.parity_options
        )
        path = self.work / f"golden-{spec.workload}-{spec.size}-{'+'.join(map(str, groups))}.npz"
        if not path.exists():
            self.display.phase(f"preparing the golden reference of {spec.workload} {spec.size}")
            workload = workloads.get(spec.workload, spec.size)
            params = workload.init_params(spec.seed)
            samples = self.samples(spec, spec.parity_steps, spec.parity_batch)
            with np.errstate(all="ignore"):
                found = parity.make_reference(workload, params, samples, optimizer=spec.optimizer, groups=groups)
            if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
                rate = spec.optimizer.learning_rate
                raise UsageError(
                    f"--optimizer: the golden reference itself diverges at learning_rate {rate:g}; lower it"
                )
            found.save(path)
        return path, groups


def _strategy(spec: TrialSpec) -> StrategySpec:
    return registry.framework(spec.framework).strategy(spec.strategy)
