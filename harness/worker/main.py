"""One rank of one trial: builds the program, and proves, times or trains it, under the framework's own interpreter.

    python -m harness.worker.main FOLDER --rank R

FOLDER/job.json says what to do. FOLDER/rank<R>.json is the answer, whatever happens. FOLDER/rank<R>.progress holds the
latest progress message. Standard output and error belong to the frameworks: they go to a log that nobody parses.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import workloads
from harness.contract import DevicesMissing, Job, World
from harness.datasets import Batches
from harness.reference.loops import Golden
from harness.spec import Precision, TrialSpec, locks
from harness.spec.codec import decode
from harness.spec.optimizers import scheduled
from harness.spec.processes import die_with_parent
from harness.spec.variables import recorded
from harness.worker import compile_cache, libraries
from harness.worker.agreement import Agreement
from harness.worker.divergence import Diverged
from harness.worker.measure import measure, measure_from_host
from harness.worker.prove import prove
from harness.worker.train import train


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
    """Do the job. The one place that catches every error, so that it becomes a row of the report."""
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
    """Build the program and run the phase that job.json names. `answer` is filled as results come."""

    def progress(text: str) -> None:
        (folder / f"rank{rank}.progress").write_text(text)

    order = json.loads((folder / "job.json").read_text())
    spec = decode(TrialSpec, order["spec"])
    in_parity = order["phase"] == "parity"
    precision = "fp64" if in_parity else spec.precision
    world = World(rank=rank, **order["world"])

    runtime = start_framework(order, world, precision, spec, answer, progress)
    progress("building")
    job = make_job(spec, world, precision, in_parity=in_parity)
    with np.load(order["inputs"], allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=spec.seed, transform=job.workload.transform)
    started = time.perf_counter()
    build = importlib.import_module(f"{order['package']}.strategies.{spec.strategy}").build
    program = build(job)
    program.sync()
    answer["build_seconds"] = time.perf_counter() - started
    answer["cut"] = getattr(program, "cut_after", "")

    cached = compile_cache.files(order["compile_cache"])
    agree = Agreement(folder, rank, lambda: runtime.barrier(world))
    save = partial(write_json, folder / so_far(rank))
    if in_parity:
        golden = Golden.load(Path(order["golden"]))
        groups = order["groups"]
        prove(program, spec, job, batches, golden=golden, groups=groups, answer=answer, progress=progress)
        save(answer)  # a wrong result counts even if another rank fails before the end
    elif order["phase"] == "training":
        train(program, spec, job, batches, order, agree=agree, answer=answer, progress=progress, save=save)
    elif spec.protocol == "from_host":
        make_batches = importlib.import_module(f"{order['package']}.from_host").make_batches
        measure_from_host(
            partial(build, job),
            make_batches,
            spec,
            batches,
            barrier=agree.barrier,
            answer=answer,
            progress=progress,
        )
    else:
        bare = bare_loop(order["package"], spec, job)
        measure(program, spec, batches, agree, answer=answer, progress=progress, bare=bare)
    answer["compile_cache"] = compile_cache.state(cached, compile_cache.files(order["compile_cache"]))
    inspect_process(runtime, world, precision, spec, answer, progress)
    progress("finishing")
    runtime.barrier(world)  # no rank leaves while another still needs it


def start_framework(
    order: dict[str, Any],
    world: World,
    precision: Precision,
    spec: TrialSpec,
    answer: dict[str, Any],
    progress: Callable[[str], None],
) -> Any:
    """Import the framework and start it; returns its runtime module. Records variables, versions and lock file."""
    answer["environment"] = recorded(os.environ)  # as this process sees it, after its interpreter's wrapper, if any
    progress("importing")
    runtime = import_runtime(order["package"])
    answer["versions"] = {name: version(name) for name in order["distributions"]}
    answer["lock"] = locks.matching()
    progress("starting")
    runtime.start(world, precision, spec.settings)
    answer["versions"] |= {"python": sys.version.split()[0], "numpy": np.__version__} | runtime.versions(world)
    return runtime


def make_job(spec: TrialSpec, world: World, precision: Precision, *, in_parity: bool) -> Job:
    """What the strategy is asked to build: the timed program, or in the parity phase its small float64 twin."""
    workload = workloads.get(spec.workload, spec.size)
    return Job(
        world=world,
        workload=workload,
        params=workload.init_params(spec.seed),
        optimizer=spec.parity_optimizer if in_parity else spec.optimizer,
        precision=precision,
        global_batch=spec.parity_batch if in_parity else spec.global_batch,
        options=spec.parity_options if in_parity else spec.options,
        normalization=spec.normalization,
        accumulation_steps=spec.accumulation_steps,
        settings=spec.settings,
        keep_gradients=in_parity,
    )


def inspect_process(
    runtime: Any,
    world: World,
    precision: Precision,
    spec: TrialSpec,
    answer: dict[str, Any],
    progress: Callable[[str], None],
) -> None:
    """Record memory, precision and libraries after the phase. Raises RuntimeError if a setting had no effect."""
    idle = runtime.idle_setting(spec.settings) if hasattr(runtime, "idle_setting") else ""
    if idle:
        raise RuntimeError(f"a setting is not at work: {idle}")
    peak = runtime.peak_bytes(world)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    answer["peak_bytes"], answer["peak_kind"] = (resident, "process") if peak is None else (peak, "device")
    if hasattr(runtime, "probe"):  # after everything that is measured, so that its memory is not counted either
        progress("probing the precision")
        answer["precision_errors"] = runtime.probe(world, precision, spec.settings)
    answer["libraries"] = libraries.loaded() if world.platform == "gpu" else {}


def bare_loop(package: str, spec: TrialSpec, job: Job) -> Any:
    """The framework's bare loop for a cell on GPUs, if it has one. CPU timings are too noisy to show a difference."""
    plain = spec.accumulation_steps == 1 and not scheduled(job.optimizer)
    if spec.platform == "cpu" or not plain or importlib.util.find_spec(f"{package}.bare") is None:
        return None
    return importlib.import_module(f"{package}.bare").LOOPS.get(spec.strategy)


def so_far(rank: int) -> str:
    """The file in which a rank saves its results while it still works."""
    return f"rank{rank}.so-far.json"


def version(distribution: str) -> str:
    """The installed version, or "?": a package installed under another name must not fail the trial."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def import_runtime(package: str) -> Any:
    """The framework package's runtime, which imports the framework. Raises Unavailable."""
    try:
        return importlib.import_module(f"{package}.runtime")
    except Exception as error:  # a broken installation can raise anything
        raise Unavailable(f"cannot import {package}: {type(error).__name__}: {error}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is one of the frameworks' ways of saying that a device or the host is out of memory."""
    named = type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError")
    if named or "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
        return True
    # a CUDA graph's capture that fails raises a second error when it ends
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write so that a reader sees all or nothing. NaN and Infinity are written as Python does, and read back so."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


if __name__ == "__main__":
    main()
