"""One rank of one trial: builds the program, and proves it or times it. Runs under the framework's own interpreter.

    python -m harness.worker FOLDER --rank R

FOLDER/job.json says what to do; FOLDER/rank<R>.json is the answer, whatever happens; FOLDER/rank<R>.progress says how
far it is. Standard output and error belong to the frameworks: they go to a log that nobody parses.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import importlib.metadata
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import parity, timing, workloads
from harness.contract import DevicesMissing, Job, World
from harness.data import Batches
from harness.environment import recorded
from harness.golden import Golden
from harness.specs import OptimizerSpec, TrialSpec

EXPLODED = 10.0  # a loss this many times the first one, or not finite, counts as diverged
RESIDENT_BATCHES = 4  # batches that wait on the devices during the timed blocks, used in turn


class Diverged(Exception):
    """The loss left the range in which a speed means anything."""


class Unavailable(Exception):
    """The framework cannot be imported."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the supervisor asks a hung rank where it is
    answer = run(arguments.folder, arguments.rank)
    write_json(arguments.folder / f"rank{arguments.rank}.json", answer)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads abort the interpreter's shutdown now and then, after all work is done
    # (pytorch/pytorch#190489).
    os._exit(0 if answer["status"] == "ok" else 1)


def run(folder: Path, rank: int) -> dict[str, Any]:
    """Do the job; the one place where every error is caught, so that it becomes a row and not silence."""
    answer: dict[str, Any] = {"rank": rank, "status": "ok", "reason": "", "traceback": ""}
    try:
        work(folder, rank, answer)
    except Diverged as error:
        answer |= {"status": "diverged", "reason": str(error)}
    except BaseException as error:
        status = "oom" if is_out_of_memory(error) else "crashed"
        if isinstance(error, Unavailable | DevicesMissing):
            status = "unavailable"
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
        answer |= {"status": status, "reason": reason, "traceback": traceback.format_exc()}
        print(answer["traceback"], file=sys.stderr, flush=True)  # noqa: T201 -- into this rank's log
    answer["ended"] = time.time()
    return answer


def work(folder: Path, rank: int, answer: dict[str, Any]) -> None:
    """Build the program and run the phase that job.json names, filling `answer` as results come."""

    def progress(text: str) -> None:
        (folder / f"rank{rank}.progress").write_text(text)

    orders = json.loads((folder / "job.json").read_text())
    spec = trial_spec(orders["spec"])
    in_parity = orders["phase"] == "parity"
    precision = "fp64" if in_parity else spec.precision
    world = World(rank=rank, **orders["world"])
    workload = workloads.get(spec.workload, spec.size)

    answer["environment"] = recorded(os.environ)  # as this process has it, whatever its interpreter's wrapper added
    progress("importing")
    runtime = import_runtime(orders["package"])
    answer["versions"] = {name: version(name) for name in orders["distributions"]}
    progress("starting")
    runtime.start(world, precision)
    answer["versions"] |= {"python": sys.version.split()[0], "numpy": np.__version__} | runtime.versions(world)

    progress("building")
    job = Job(
        world=world,
        workload=workload,
        params=workload.init_params(spec.seed),
        optimizer=spec.optimizer,
        precision=precision,
        global_batch=spec.parity_batch if in_parity else spec.global_batch,
        options=spec.parity_options if in_parity else spec.options,
        keep_gradients=in_parity,
    )
    with np.load(orders["inputs"], allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=spec.seed, transform=workload.transform)
    started = time.perf_counter()
    build = importlib.import_module(f"{orders['package']}.strategies.{spec.strategy}").build
    program = build(job)
    program.sync()
    answer["build_seconds"] = time.perf_counter() - started

    if not in_parity and spec.protocol == "from_host":
        measure_from_host(partial(build, job), spec, batches, runtime, world, answer, progress)
    elif in_parity:
        prove(program, spec, batches, Golden.load(Path(orders["golden"])), orders["groups"], answer, progress)
    else:
        agree = Agreement(folder, rank, lambda: runtime.barrier(world))
        measure(program, spec, batches, agree, answer, progress)
    peak = runtime.peak_bytes(world)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    answer["peak_bytes"], answer["peak_kind"] = (resident, "process") if peak is None else (peak, "device")
    progress("finishing")
    runtime.barrier(world)  # no rank leaves while another still needs it


def prove(program, spec: TrialSpec, batches: Batches, golden: Golden, groups: int, answer: dict, progress) -> None:
    """Train `parity_steps` in float64 and hold everything against the golden reference."""
    losses, gradients = [], None
    for step in range(spec.parity_steps):
        progress(f"parity step {step + 1}/{spec.parity_steps}")
        program.step(program.place(batches.batch(step, spec.parity_batch)))
        program.sync()
        losses.append(program.loss())
        if step == 0:
            gradients = program.gradients()
    verdict = parity.compare(
        golden, losses=losses, gradients=gradients, replicas=program.export(), batch=spec.parity_batch, groups=groups
    )
    answer["parity"] = asdict(verdict)


class Agreement:
    """The ranks' meeting point, and a number that rank 0 decides for all."""

    def __init__(self, folder: Path, rank: int, barrier: Callable[[], None]) -> None:
        self.folder, self.rank, self.barrier = folder, rank, barrier

    def on(self, name: str, value: float) -> float:
        """Rank 0's `value` on every rank."""
        path = self.folder / f"agreed-{name}"
        if self.rank == 0:
            path.write_text(repr(value))
        self.barrier()
        return float(path.read_text())


def measure(program, spec: TrialSpec, batches: Batches, agree: Agreement, answer: dict, progress) -> None:
    """First step, loss curve, pilot, warm-up, then the timed blocks."""
    losses: list[float] = answer.setdefault("losses", [])
    dtype = np.float64 if spec.precision == "fp64" else np.float32
    for step in range(spec.curve_steps):
        progress(f"loss curve, step {step + 1}/{spec.curve_steps}")
        placed = program.place(batches.batch(step, spec.global_batch, dtype=dtype))
        if step == 0:
            answer["first_step_seconds"] = timing.time_first_step(
                program, placed, clock=time.perf_counter, barrier=agree.barrier
            )
        else:
            program.step(placed)
        losses.append(program.loss())
        check_loss(losses, step)
    steps = range(spec.curve_steps, spec.curve_steps + RESIDENT_BATCHES)
    resident = [program.place(batches.batch(step, spec.global_batch, dtype=dtype)) for step in steps]
    timed = partial(timing.time_blocks, program, resident, clock=time.perf_counter, barrier=agree.barrier)
    # The pilot also warms up the pattern that is timed: steps without a look at the loss between them.
    progress("pilot")
    (pilot,) = timed(blocks=1, steps_per_block=spec.steps_per_block)
    step_seconds = agree.on("step_seconds", pilot / spec.steps_per_block)
    if spec.warmup_seconds:
        progress("warm-up")  # clocks rise from idle within about a second
        timed(blocks=1, steps_per_block=timing.steps_for(spec.warmup_seconds, step_seconds=step_seconds, at_least=1))
    steps = timing.steps_for(spec.block_seconds, step_seconds=step_seconds, at_least=spec.steps_per_block)
    answer["steps_per_block"] = steps
    answer["block_seconds"] = timed(
        blocks=spec.blocks,
        steps_per_block=steps,
        progress=lambda block: progress(f"block {block + 1}/{spec.blocks}"),
    )
    check_loss([*losses[:1], program.loss()], spec.curve_steps + spec.blocks * steps)
    if hasattr(program, "trace") and spec.launch == 0:
        progress("tracing one step")
        answer["spans"] = [asdict(span) for span in program.trace(resident[0])]


def measure_from_host(build, spec: TrialSpec, batches: Batches, runtime, world: World, answer: dict, progress) -> None:
    """Time as tutorials do, to compare with what they print: see TrialSpec.protocol."""
    losses: list[float] = answer.setdefault("losses", [])
    seconds = []
    rng = np.random.default_rng(spec.seed)
    like = batches.batch(0, spec.global_batch, dtype=np.float32)
    for block in range(spec.blocks):
        progress(f"block {block + 1}/{spec.blocks}")
        program = build()
        program.sync()
        runtime.barrier(world)
        start = time.perf_counter()
        for _ in range(spec.steps_per_block):
            # made on the host inside the timed part: that is what this protocol is about
            x = rng.standard_normal(like["x"].shape, dtype=np.float32)
            program.step(program.place({"x": x, "y": rng.permutation(like["y"])}))
        seconds.append(time.perf_counter() - start)  # without waiting for the last step: as the tutorial does
        if block == 0:
            answer["first_step_seconds"] = seconds[0] / spec.steps_per_block
        losses.append(program.loss())
        check_loss([losses[-1]], block)
    answer["steps_per_block"], answer["block_seconds"] = spec.steps_per_block, seconds


def check_loss(losses: list[float], step: int) -> None:
    """Raises Diverged if the last loss is not finite or has exploded."""
    if not math.isfinite(losses[-1]) or losses[-1] > EXPLODED * max(losses[0], 1.0):
        raise Diverged(f"loss {losses[-1]:.4g} at step {step}, from {losses[0]:.4g} at the start")


def version(distribution: str) -> str:
    """Its installed version, or "?": a package may be installed under another name, and that fails no trial."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def trial_spec(raw: dict[str, Any]) -> TrialSpec:
    """A TrialSpec from its JSON."""
    return TrialSpec(**{**raw, "optimizer": OptimizerSpec(**raw["optimizer"])})


def import_runtime(package: str) -> Any:
    """The framework package's runtime, which imports the framework. Raises Unavailable."""
    try:
        return importlib.import_module(f"{package}.runtime")
    except Exception as error:  # a broken installation can raise anything
        raise Unavailable(f"cannot import {package}: {type(error).__name__}: {error}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says, in one of the frameworks' ways, that a device or the host has no memory left."""
    named = type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError")
    return named or "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def die_with_parent() -> None:
    """On Linux, ask for SIGKILL when the supervisor dies, even by SIGKILL itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.environ.get("LIKEFORLIKE_SUPERVISOR") != str(os.getppid()):  # it died while this process was starting
            os._exit(1)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write so that a reader sees all or nothing. Python writes NaN and Infinity, and the reader takes them back."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


if __name__ == "__main__":
    main()
