"""One rank of one trial: builds the program, and proves, times or trains it, under the framework's own interpreter.

    python -m harness.worker.main FOLDER --rank R

FOLDER holds the order; the answer and the progress go there, too: harness/messages.py. There is an answer whatever
happens. Standard output and error belong to the frameworks: they go to a log that nobody parses.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import importlib.metadata
import os
import platform
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import workloads
from harness.contract import DevicesMissing, Job, World
from harness.datasets import Batches
from harness.gate import xla
from harness.messages import ORDER, TIMED, Order
from harness.spec import (
    Cause,
    CauseKind,
    Precision,
    Status,
    TrialSpec,
    codec,
    locks,
    partition,
    run_options,
    workload_packages,
)
from harness.spec.processes import die_with_parent
from harness.spec.recorded_variables import recorded
from harness.worker import compile_cache, libraries, memory, pauses
from harness.worker.context import Context
from harness.worker.divergence import Diverged, TargetMet
from harness.worker.draft import Draft
from harness.worker.phases import PHASES
from harness.worker.rank_agreement import agreement

TRACEBACK_CHARACTERS = 20_000  # of a longer one, its end is recorded


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
    draft = Draft(arguments.folder, arguments.rank)
    run(draft)
    draft.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads abort the interpreter's shutdown now and then, after all work is done
    # (pytorch/pytorch#190489).
    os._exit(0 if draft.answer.status == "ok" else 1)


def run(draft: Draft) -> None:
    """Carry out the order. This is the one place that catches every error, so that it becomes a row of the report."""
    try:
        work(draft)
    except Diverged as error:
        draft.note(status="diverged", reason=str(error), cause=Cause(kind="loss", data={"rank": draft.rank}))
    except TargetMet as error:
        draft.note(status="skipped", reason=str(error), cause=Cause(kind="target_met", data=error.data))
    except BaseException as error:
        status, kind = classify(error)
        reason = first_line(error) + line_of_ones_own(draft.folder, error)
        cause = Cause(kind=kind, data={"rank": draft.rank, "type": type(error).__name__})
        draft.note(status=status, reason=reason, cause=cause, traceback=traceback.format_exc()[-TRACEBACK_CHARACTERS:])
        print(draft.answer.traceback, file=sys.stderr, flush=True)  # noqa: T201 -- into this rank's log
    draft.note(ended=time.monotonic())


def first_line(error: BaseException) -> str:
    """An error in one line. Of one that repeats another with more words around it, as Keras makes them, the other."""
    while (inner := error.__context__) and type(inner) is type(error) and str(inner) and str(inner) in str(error):
        error = inner
    return workload_packages.first_line(error, most=500)


def line_of_ones_own(folder: Path, error: BaseException) -> str:
    """ " (gated_mlp/torch_model.py:12)": where an error was raised in a model of one's own; "" for all others."""
    with contextlib.suppress(Exception):  # the error itself must be told in any case
        workload = codec.loads(Order, (folder / ORDER).read_text("utf-8")).spec.workload
        if not workload_packages.is_ours(workload) and (line := workload_packages.innermost_line(error, workload)):
            return f" ({line})"
    return ""


def classify(error: BaseException) -> tuple[Status, CauseKind]:
    """What an error makes of the trial, and its cause."""
    if isinstance(error, Unavailable | DevicesMissing):
        return "unavailable", "no_framework"
    if is_out_of_memory(error):
        return "oom", "out_of_memory"
    return "crashed", "exception"


def work(draft: Draft) -> None:
    """Build the program that the order describes, and run the phase that it names."""
    order = codec.loads(Order, (draft.folder / ORDER).read_text("utf-8"))
    if order.phase in TIMED:
        pauses.end_after_pause(draft)
    world = order.worlds[draft.rank]
    draft.note(host=order.hosts[world.host] if order.hosts else "")
    phase = PHASES[order.phase]
    precision = "fp64" if phase.small else order.spec.precision
    runtime = start_framework(order, world, precision, draft)
    draft.progress("building")
    job = make_job(order.spec, world, precision, small=phase.small)
    with np.load(order.inputs, allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=order.spec.seed, transform=job.workload.transform)
    build = partial(importlib.import_module(f"{order.package}.strategies.{order.spec.strategy}").build, job)
    started = time.perf_counter()
    built = [build()]  # nothing else here may refer to the program: see Context.release
    built[0].sync()
    draft.note(build_seconds=time.perf_counter() - started, cut=getattr(built[0], "cut_after", ""))
    cached = compile_cache.files(order.compile_cache)
    phase.run(
        Context(
            order=order,
            job=job,
            build=build,
            built=built,
            batches=batches,
            agree=agreement(world, draft.folder, partial(runtime.barrier, world), at=order.agreement),
            draft=draft,
            runtime=runtime,
        )
    )
    draft.note(compile_cache=compile_cache.state(cached, compile_cache.files(order.compile_cache)))
    inspect_process(runtime, world, precision, order.spec, draft)
    draft.progress("finishing")
    runtime.barrier(world)  # no rank leaves while another still needs it
    if hasattr(runtime, "stop"):
        runtime.stop(world)


def start_framework(order: Order, world: World, precision: Precision, draft: Draft) -> Any:
    """Import the framework and start it; returns its runtime module. Notes variables, versions and the lock file."""
    draft.note(interpreter=f"{platform.python_implementation()} {' '.join(sys.version.split())}")
    draft.note(environment=recorded(os.environ))  # as this process sees it, after its interpreter's wrapper, if any
    draft.progress("importing")
    runtime = import_runtime(order.package)
    draft.note(environment=recorded(os.environ))  # with what the import sets: a forked rank has had it all along
    versions = {name: version(name) for name in order.distributions}
    packages = locks.installed()
    draft.note(versions=versions, packages=packages, lock=locks.matching(packages))
    draft.progress("starting")
    if precision == "fp64" and world.platform == "gpu":
        # not noted: a cell's proof must have the variables of its timed launches, which have another precision
        os.environ["XLA_FLAGS"] = xla.exact(os.environ.get("XLA_FLAGS", ""))
    runtime.start(world, precision, order.spec.settings)
    versions |= {"python": sys.version.split()[0], "numpy": np.__version__} | runtime.versions(world)
    draft.note(versions=versions)
    return runtime


def make_job(spec: TrialSpec, world: World, precision: Precision, *, small: bool) -> Job:
    """What the strategy is asked to build: the timed program, or for `small` the parity phase's float64 twin."""
    workload = workloads.get(spec.workload, spec.size)
    batch, options = (spec.parity_batch, spec.parity_options) if small else (spec.global_batch, spec.options)
    return Job(
        world=world,
        workload=workload,
        params=workload.init_params(spec.seed),
        optimizer=spec.parity_optimizer if small else spec.optimizer,
        precision=precision,
        global_batch=batch,
        options=options,
        normalization=spec.normalization,
        settings=spec.settings,
        statistics_updates=partition.statistics_updates(spec, batch=batch, options=options),
        **run_options.values(spec),
    )


def inspect_process(runtime: Any, world: World, precision: Precision, spec: TrialSpec, draft: Draft) -> None:
    """Note memory, precision, the launch rate of a timed phase, and libraries.

    Raises RuntimeError if a setting had no effect.
    """
    idle = runtime.idle_setting(spec.settings) if hasattr(runtime, "idle_setting") else ""
    if idle:
        raise RuntimeError(f"a setting is not at work: {idle}")
    if draft.answer.peak_bytes is None:
        memory.note_peak(runtime, world, draft)
    if hasattr(runtime, "probe"):  # last, so that the probe's own memory is not counted
        draft.progress("probing the precision")
        draft.note(precision_errors=runtime.probe(world, precision, spec.settings))
    if draft.answer.timing is not None and hasattr(runtime, "launch_seconds"):
        draft.note_timing(launch_seconds=runtime.launch_seconds(world))
    draft.note(libraries=libraries.loaded() if world.platform == "gpu" else {})


def version(distribution: str) -> str:
    """The installed version, or "?": a package with another name or broken metadata must not fail the trial."""
    try:
        return importlib.metadata.version(distribution) or "?"
    except Exception:  # it is not found, or an interrupted installation has left anything
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
    # when the capture of a CUDA graph fails, ending it raises a second error
    return error.__context__ is not None and is_out_of_memory(error.__context__)


if __name__ == "__main__":
    main()
