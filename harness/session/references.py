"""What every cell of a workload is compared with: golden references and loss curves, and the samples behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import workloads
from harness.datasets import Batches, digest, epochs_of
from harness.gate import runs
from harness.gate.runs import GoldenRun, Phase, normalization
from harness.launch import golden_pool
from harness.launch.golden_pool import Failure
from harness.planning import samples
from harness.spec import CHECKED_LOSSES, TrialSpec, run_options, workload_packages
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.spec.progress import Display

GOLDEN_FLOPS = 1e11  # of one training, some ten seconds of NumPy; a longer golden loss curve is cut to what fits


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The samples of a workload, in memory and as files."""

    arrays: Arrays
    train: Path
    validation: Path | None  # only for `train`
    test: Path | None  # likewise
    digests: tuple[str, ...]  # of the samples of each


class References:
    """Computes each item once, when it is first needed. Files go to the folder `work`."""

    def __init__(self, work: Path, *, data: Path | None, display: Display) -> None:
        self.work, self.data, self.display = work, data, display
        self.inputs: dict[str, Inputs] = {}
        self.golden: dict[tuple, Path] = {}
        self.failed: dict[tuple, Failure] = {}  # why golden runs could not be computed

    def prepare(self, spec: TrialSpec) -> None:
        """Load a workload's samples, once. Raises UsageError for bad --data."""
        key = f"{spec.workload}-{spec.size}"
        if key in self.inputs:
            return
        self.display.phase(f"preparing {key}")
        workload = workloads.get(spec.workload, spec.size)
        arrays = samples.load(workload, validation_share=samples.validation_share(spec), data=self.data)
        for split, held in arrays.items():
            np.savez(self.work / f"{key}-{split}.npz", **held)  # pyright: ignore[reportArgumentType]
        train, validation, test = (self.work / f"{key}-{split}.npz" for split in ("train", "validation", "test"))
        self.inputs[key] = Inputs(
            arrays=arrays["train"],
            train=train,
            validation=validation if spec.training else None,
            test=test if spec.training else None,
            digests=tuple(digest(split) for split in arrays.values()),
        )

    def inputs_of(self, spec: TrialSpec) -> Inputs:
        """The samples of a cell's workload, which must have been prepared."""
        return self.inputs[f"{spec.workload}-{spec.size}"]

    def batches(self, spec: TrialSpec) -> Batches:
        """The training samples of a cell, in the order that its seed gives."""
        transform = workloads.get(spec.workload, spec.size).transform
        return Batches(self.inputs_of(spec).arrays, seed=spec.seed, transform=transform)

    def data_digest(self, spec: TrialSpec) -> str:
        """What identifies the samples of a cell, those for tests included."""
        return " ".join(self.inputs_of(spec).digests)

    def impossible(self, spec: TrialSpec) -> str:
        """Why a cell cannot train on these samples, or "". Raises UsageError if no cell could."""
        if spec.training is None:
            return ""
        epochs = epochs_of(spec, self.batches(spec), batch=spec.global_batch)
        steps = epochs.steps(0)
        if not steps:
            raise UsageError(
                f"--last-batch drop: {spec.workload} has {len(epochs.batches)} training samples, fewer than one global "
                f"batch of {spec.global_batch}; choose a smaller --global-batch, or --last-batch exact"
            )
        last = steps[-1]
        if last.rows != len(last.chosen) and workloads.get(spec.workload, spec.size).normalizes:
            return (
                f"the last batch of an epoch has {len(last.chosen)} samples and would be padded to {last.rows}; the "
                "padding would change BatchNorm's statistics: choose --last-batch drop, or another --global-batch"
            )
        return ""

    def compute(
        self,
        wanted: Iterable[tuple[TrialSpec, Phase]],
        *,
        over: Callable[[], bool] = lambda: False,
        before_long: Callable[[], None] = lambda: None,
    ) -> None:
        """Compute golden references ("parity") and golden loss curves ("timing") that do not exist yet.

        It stops as soon as `over` says that there is no time left. `before_long`: called before runs that take long.
        Raises UsageError if a reference itself diverges.
        """
        missing: dict[tuple, GoldenRun] = {}
        for spec, phase in wanted:
            steps = spec.parity_steps if phase == "parity" else self.curve_steps(spec)
            key, by_numpy = self.key(spec, phase), workloads.get(spec.workload, spec.size).has_reference
            if steps and by_numpy and not any(key in done for done in (self.golden, self.failed, missing)):
                number = len(self.golden) + len(self.failed) + len(missing)
                inputs, folder = self.inputs_of(spec).train, self.work / f"golden-{number}"
                missing[key] = GoldenRun(spec=spec, phase=phase, steps=steps, inputs=inputs, folder=folder)
        self.failed |= {key: failed for key, run in missing.items() if (failed := golden_pool.too_large(run))}
        missing = {key: run for key, run in missing.items() if key not in self.failed}
        if not missing:
            return
        names = sorted({f"{run.spec.workload} {run.spec.size}" for run in missing.values()})
        self.display.phase(f"preparing the golden runs of {', '.join(names)}")
        long = [run for run in missing.values() if run.flops > golden_pool.LONG_FLOPS]
        for run in missing.values():
            if run not in long:
                self._compute_here(run)
        if long:
            before_long()
        failed = golden_pool.in_processes(long, on_progress=self.display.detail, over=over) if long else {}
        self.failed |= {key: failed[run.folder] for key, run in missing.items() if run.folder in failed}
        self.golden |= {key: run.output for key, run in missing.items() if run.folder not in failed}

    def _compute_here(self, run: GoldenRun) -> None:
        """Compute a short golden run. Raises UsageError as `runs.compute`, and for layers of one's own that fail."""
        try:
            runs.compute(run, self.batches(run.spec))
        except (UsageError, MemoryError):
            raise
        except Exception as error:  # somebody else's code can raise anything
            workload = workloads.get(run.spec.workload, run.spec.size)
            if workload_packages.is_ours(workload.name):
                raise
            said = workload_packages.described(error, workload.name)
            raise UsageError(f"{workload.title}: its golden {run.phase} cannot be computed: {said}") from error

    def failure(self, spec: TrialSpec) -> Failure | None:
        """Why a cell's reference or loss curve could not be computed; None if none has failed."""
        phases: tuple[Phase, ...] = ("parity", "timing")
        return next((self.failed[key] for phase in phases if (key := self.key(spec, phase)) in self.failed), None)

    def curve(self, spec: TrialSpec) -> Path | None:
        """The file with the golden loss curve of a cell's timed run; None if NumPy cannot afford a step."""
        if not self.curve_steps(spec):
            return None
        self.compute([(spec, "timing")])
        return self.golden.get(self.key(spec, "timing"))

    def curve_steps(self, spec: TrialSpec) -> int:
        """How many steps of a cell's timed run have a golden loss."""
        workload = workloads.get(spec.workload, spec.size)
        if spec.protocol == "from_host" or not workload.has_reference:
            return 0  # from_host makes each of its batches in the timed part
        # With BatchNorm every normalization group size has a curve of its own, so only the checked losses are computed.
        wanted = CHECKED_LOSSES if workload.normalizes else spec.curve_steps
        if spec.training:  # only the whole batches of the first epoch
            wanted = min(CHECKED_LOSSES, len(self.batches(spec)) // spec.global_batch)
        affordable = int(GOLDEN_FLOPS // (workload.flops_per_unit() * spec.global_batch))
        return min(wanted, affordable) // spec.steps_per_call * spec.steps_per_call

    def reference(self, spec: TrialSpec) -> tuple[Path, tuple[int, ...]]:
        """The file with a cell's golden reference, computed if it does not exist, and its normalization groups.

        Raises UsageError if the reference itself diverges, RuntimeError if it cannot be computed.
        """
        self.compute([(spec, "parity")])
        if failure := self.failure(spec):
            raise RuntimeError(failure.reason)
        return self.golden[self.key(spec, "parity")], normalization(spec, spec.parity_options)(spec.parity_batch)

    def key(self, spec: TrialSpec, phase: Phase) -> tuple:
        """All that a golden run depends on. Cells with the same key share the run."""
        if phase == "parity":
            options, batch = spec.parity_options, spec.parity_batch
            own = (spec.parity_optimizer, *runs.parity_sizes(spec, self.batches(spec)))
        else:
            options, batch, own = spec.options, spec.global_batch, (spec.optimizer, spec.precision)
        key = (phase, spec.workload, spec.size, spec.seed, spec.algorithm, normalization(spec, options)(batch), *own)
        key += tuple(run_options.values(spec).items())
        if spec.algorithm != "synchronous":
            key += (spec.devices, spec.option("averaging_interval", of=options), spec.push_interval(of=options))
        return (*key, spec.training.init_from) if spec.training else key
