"""Golden runs: what a cell is held against, computed from its spec alone; long ones in processes of their own.

    python -m harness.reference.runs FOLDER

computes the run that FOLDER/run.json describes and writes FOLDER/golden.npz. The devices idle until golden references
are there, so all that a plan needs are computed at once, as far as there are cores and memory. Where a run is computed
changes nothing in it but the rounding of BLAS.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from harness import checkpoints, workloads
from harness.datasets import Batches, Epochs, Step, epochs_of, parity_steps
from harness.gate import parity
from harness.layers import Arrays
from harness.machine import environment
from harness.machine.devices import cores
from harness.reference import loops
from harness.reference.loops import Golden
from harness.spec import OUT_OF_TIME, OptimizerSpec, TrialSpec
from harness.spec.errors import UsageError
from harness.spec.partition import normalization_groups
from harness.worker.main import die_with_parent, trial_spec

LONG_FLOPS = 2e10  # about a second of NumPy on a core: a process, which takes half of that to start, is worth it
TRAININGS = 2  # of a reference: the training itself, and its twin from rounded weights, each on a thread of its own
MOST_BLAS_THREADS = 4  # of half the cores: they wait for each other, so all lose where one shares its core with others
POLL_SECONDS = 0.05

Phase = Literal["parity", "timing"]


@dataclass(frozen=True, kw_only=True)
class GoldenRun:
    """What to compute: the reference of a cell's parity phase, or the losses of its first timed steps."""

    spec: TrialSpec
    phase: Phase
    steps: int
    inputs: Path  # the workload's training samples
    folder: Path  # where golden.npz goes

    @property
    def output(self) -> Path:
        return self.folder / "golden.npz"

    @property
    def step_flops(self) -> float:
        """Of one step of one training."""
        batch = self.spec.parity_batch if self.phase == "parity" else self.spec.global_batch
        return batch * workloads.get(self.spec.workload, self.spec.size).flops_per_unit()

    @property
    def flops(self) -> float:
        return self.step_flops * self.steps * (TRAININGS if self.phase == "parity" else 1)

    @property
    def memory_bytes(self) -> float:
        """About what its process needs at most. Measured on ResNet-50, whose layers keep a float64 of their activations
        for every 640 FLOPs of a step; beside them each training has up to ten copies of the parameters, and three for
        each worker that trains on its own."""
        copies = 10 + (3 * self.spec.devices if self.spec.algorithm == "local" else 0)
        parameters = workloads.get(self.spec.workload, self.spec.size).parameters()
        count = sum(math.prod(parameter.shape) for parameter in parameters)
        return self.inputs.stat().st_size + TRAININGS * 8 * (copies * count + self.step_flops / 640)


def compute(run: GoldenRun, batches: Batches, *, both: Callable[..., Iterable[Golden]] = map) -> None:
    """Compute one run into its file; `both` is parity.make_reference's. Raises UsageError for a reference that
    diverges: no program can be judged by it."""
    spec = run.spec
    with np.errstate(all="ignore"):
        if run.phase == "timing":
            samples = [batches.batch(step, spec.global_batch) for step in range(run.steps)]
            losses = training(spec, spec.optimizer, spec.options, samples)(initial_params(spec)).losses
            found = Golden(initial={}, losses=losses, gradients={}, params={})
        else:
            params = workloads.get(spec.workload, spec.size).init_params(spec.seed)  # whatever training begins from
            train = training(spec, spec.parity_optimizer, spec.parity_options, parity_samples(spec, batches))
            found = parity.make_reference(train, params, both=both)
            if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
                rate = spec.optimizer.learning_rate
                raise UsageError(
                    f"--optimizer: the golden reference itself diverges at learning_rate {rate:g}; lower it"
                )
    run.folder.mkdir(exist_ok=True)
    found.save(run.output)


def training(
    spec: TrialSpec, optimizer: OptimizerSpec, options: Mapping[str, Any], samples: Sequence[Arrays]
) -> Callable[[Arrays], Golden]:
    """The golden loop that a cell is held against, as a function of the initial weights alone."""
    workload, groups = workloads.get(spec.workload, spec.size), normalization(spec, options)
    known: dict[str, Any] = {"batches": samples, "optimizer": optimizer}
    if spec.algorithm == "local":
        known |= {"workers": spec.devices, "sync_every": options["sync_every"]}
        known |= {"accumulation_steps": spec.accumulation_steps, "groups": groups if workload.normalizes else None}
        return partial(loops.train_locally, workload, **known)
    if spec.algorithm == "asynchronous":
        return partial(loops.replay, workload, pushes=loops.in_turn(spec.devices, len(samples)), **known)
    return partial(loops.train, workload, groups=groups, **known)


def normalization(spec: TrialSpec, options: Mapping[str, Any]) -> Callable[[int], tuple[int, ...]]:
    """A cell's normalization groups of a batch of some size; where nothing normalizes one for all strategies."""
    if not workloads.get(spec.workload, spec.size).normalizes:
        return lambda batch: (batch,)
    return lambda batch: normalization_groups(spec, batch=batch, options=options)


def parity_samples(spec: TrialSpec, batches: Batches) -> list[Arrays]:
    """The batches of a cell's parity phase: of an uneven last one the true samples alone, or, where each worker's own
    share counts, with the padding that makes the shares."""
    epochs, steps = _parity_steps(spec, batches)
    if spec.algorithm == "synchronous":
        return [batches.gather(step.chosen) for step in steps]
    return [epochs.whole(step, dtype=np.float64) for step in steps]


def parity_sizes(spec: TrialSpec, batches: Batches) -> list[int]:
    """How many samples, padding included, each of these batches has."""
    _, steps = _parity_steps(spec, batches)
    return [len(step.chosen) if spec.algorithm == "synchronous" else step.rows for step in steps]


def _parity_steps(spec: TrialSpec, batches: Batches) -> tuple[Epochs, list[Step]]:
    epochs = epochs_of(spec, batches, batch=spec.parity_batch)
    return epochs, parity_steps(spec, epochs, normalizes=workloads.get(spec.workload, spec.size).normalizes)


def initial_params(spec: TrialSpec) -> Arrays:
    """The float64 weights that a cell begins from."""
    found = check_init_from(spec)
    if not found:
        return workloads.get(spec.workload, spec.size).init_params(spec.seed)
    model = {name.removeprefix("model/"): a for name, a in found.items() if name.startswith("model/")}
    return {name: array.astype(np.float64) for name, array in model.items()}


def check_init_from(spec: TrialSpec) -> Arrays:
    """What --init-from gives a cell, nothing without it. Raises UsageError for what this network cannot take up."""
    if spec.training is None or not spec.training.init_from:
        return {}
    parameters = workloads.get(spec.workload, spec.size).parameters()
    shapes = {parameter.name: parameter.shape for parameter in parameters}
    return checkpoints.weights(Path(spec.training.init_from), shapes)


def in_processes(
    runs: Sequence[GoldenRun], *, on_progress: Callable[[str], None], over: Callable[[], bool] = lambda: False
) -> dict[Path, str]:
    """Compute runs at the same time, each in a process; on an exception (Ctrl-C) these are ended first, and when it is
    `over`. What fails beside others is tried again alone: most likely there was not memory for all. Returns, by their
    folders, why some were not computed. Raises UsageError for a reference that diverges."""
    at_once = processes_at_once(runs, cores=len(cores()), memory_bytes=psutil.virtual_memory().available)
    threads = max(1, min(MOST_BLAS_THREADS, len(cores()) // (2 * TRAININGS * at_once)))
    waiting = deque(sorted(runs, key=lambda run: -run.flops))  # the longest first: no long one begins last
    running: dict[subprocess.Popen[bytes], GoldenRun] = {}
    reasons: dict[Path, str] = {}  # of those that have ended, the last
    try:
        while waiting or running:
            if over():
                reasons |= {run.folder: OUT_OF_TIME for run in (*waiting, *running.values())}
                break
            while waiting and len(running) < at_once:
                run = waiting.popleft()
                running[start(run, threads)] = run
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                run = running.pop(process)
                reason = failure(run, process.returncode)
                if reason and len(runs) > 1 and run.folder not in reasons:
                    at_once = 1
                    waiting.append(run)
                reasons[run.folder] = reason
            on_progress(f"{len(runs) - len(waiting) - len(running)} of {len(runs)} done, {len(running)} under way")
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
    return {folder: reason for folder, reason in reasons.items() if reason}


def processes_at_once(runs: Sequence[GoldenRun], *, cores: int, memory_bytes: float) -> int:
    """How many of these runs there is room for at a time, at least one."""
    most = max(run.memory_bytes for run in runs)
    return max(1, min(len(runs), cores // TRAININGS, int(memory_bytes // most)))


def start(run: GoldenRun, threads: int) -> subprocess.Popen[bytes]:
    """One process. Its BLAS is told how many threads to have, as it reads that when NumPy is imported."""
    run.folder.mkdir(exist_ok=True)
    content = {"spec": asdict(run.spec), "phase": run.phase, "steps": run.steps, "inputs": str(run.inputs)}
    (run.folder / "run.json").write_text(json.dumps(content))
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    path = os.pathsep.join(filter(None, [str(environment.PROJECT), os.environ.get("PYTHONPATH", "")]))
    with (run.folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.reference.runs", str(run.folder)],
            env=os.environ | limits | {"PYTHONPATH": path, "LIKEFORLIKE_SUPERVISOR": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which then ends the rest
        )


def failure(run: GoldenRun, code: int) -> str:
    """Why a run could not be computed, or "". Raises UsageError for a reference that diverges."""
    refused = run.folder / "refused"
    if refused.exists():
        raise UsageError(refused.read_text())
    if not code:
        return ""
    reason = f"ended by {signal.Signals(-code).name}; out of host memory?" if code < 0 else f"exit code {code}"
    lines = (run.folder / "log").read_text(errors="replace").strip().splitlines()
    what = f"the golden {run.phase} of {run.spec.workload} {run.spec.size} cannot be computed"
    return ": ".join([what, reason, *lines[-1:]])


def main() -> None:
    die_with_parent()
    folder = Path(sys.argv[1])
    order = json.loads((folder / "run.json").read_text())
    spec = trial_spec(order["spec"])
    run = GoldenRun(spec=spec, phase=order["phase"], steps=order["steps"], inputs=Path(order["inputs"]), folder=folder)
    with np.load(run.inputs, allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=spec.seed, transform=workloads.get(spec.workload, spec.size).transform)
    # NumPy lets go of the interpreter's lock wherever it computes; what it does about overflows is each thread's own
    with ThreadPoolExecutor(TRAININGS, initializer=partial(np.seterr, all="ignore")) as threads:
        try:
            compute(run, batches, both=threads.map)
        except UsageError as error:
            (folder / "refused").write_text(str(error))


if __name__ == "__main__":
    main()
