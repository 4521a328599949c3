"""One rank of one trial: builds the program, and proves it or times it. Runs under the framework's own interpreter.

    python -m harness.worker.main FOLDER --rank R

FOLDER/job.json says what to do; FOLDER/rank<R>.json is the answer, whatever happens; FOLDER/rank<R>.progress says how
far it is. Standard output and error belong to the frameworks: they go to a log that nobody parses.
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

from harness import checkpoints, workloads
from harness.contract import DevicesMissing, Job, World
from harness.datasets import Batches
from harness.reference.loops import Golden
from harness.spec import TrialSpec, locks
from harness.spec.codec import trial_spec
from harness.spec.optimizers import scheduled
from harness.spec.processes import die_with_parent
from harness.spec.variables import recorded
from harness.worker import compile_cache, libraries
from harness.worker.phases import Agreement, Diverged, measure, measure_from_host, prove
from harness.worker.training import Position, Trainer


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
    answer["lock"] = locks.matching()
    progress("starting")
    runtime.start(world, precision, spec.settings)
    answer["versions"] |= {"python": sys.version.split()[0], "numpy": np.__version__} | runtime.versions(world)

    progress("building")
    job = Job(
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
    with np.load(orders["inputs"], allow_pickle=False) as inputs:
        batches = Batches(dict(inputs), seed=spec.seed, transform=workload.transform)
    started = time.perf_counter()
    build = importlib.import_module(f"{orders['package']}.strategies.{spec.strategy}").build
    program = build(job)
    program.sync()
    answer["build_seconds"] = time.perf_counter() - started
    answer["cut"] = getattr(program, "cut_after", "")

    cached = compile_cache.files(orders["compile_cache"])
    agree = Agreement(folder, rank, lambda: runtime.barrier(world))
    if orders["phase"] == "training":
        train(program, spec, job, batches, orders, agree, answer, progress, partial(write_json, folder / so_far(rank)))
    elif not in_parity and spec.protocol == "from_host":
        make_batches = importlib.import_module(f"{orders['package']}.from_host").make_batches
        measure_from_host(partial(build, job), make_batches, spec, batches, runtime, world, answer, progress)
    elif in_parity:
        prove(program, spec, job, batches, Golden.load(Path(orders["golden"])), orders["groups"], answer, progress)
        write_json(folder / so_far(rank), answer)  # a wrong result counts, though another rank fail before the end
    else:
        measure(program, spec, batches, agree, answer, progress, bare_loop(orders["package"], spec, job))
    idle = runtime.idle_setting(spec.settings) if hasattr(runtime, "idle_setting") else ""
    if idle:
        raise RuntimeError(f"a setting is not at work: {idle}")
    answer["compile_cache"] = compile_cache.state(cached, compile_cache.files(orders["compile_cache"]))
    peak = runtime.peak_bytes(world)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    answer["peak_bytes"], answer["peak_kind"] = (resident, "process") if peak is None else (peak, "device")
    if hasattr(runtime, "probe"):  # after all that is measured: not even its memory counts
        progress("probing the precision")
        answer["precision_errors"] = runtime.probe(world, precision, spec.settings)
    answer["libraries"] = libraries.loaded() if world.platform == "gpu" else {}
    progress("finishing")
    runtime.barrier(world)  # no rank leaves while another still needs it


def train(
    program: Any,
    spec: TrialSpec,
    job: Job,
    batches: Batches,
    orders: dict[str, Any],
    agree: Agreement,
    answer: dict[str, Any],
    progress: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """The training phase: from a checkpoint where there is one, to its end. `keep`: writes the answer so far."""
    assert spec.training is not None
    position = None
    if orders["checkpoint"]:
        state, about = checkpoints.read(Path(orders["checkpoint"]))
        if about["samples"] != batches.fingerprint():
            raise ValueError("the checkpoint was trained on other samples: give the same --data as before")
        program.load_state(state)
        position = Position(**about["position"])
    elif orders["init_from"]:
        shapes = {name: array.shape for name, array in job.params.items()}
        program.load_state(checkpoints.weights(Path(orders["init_from"]), shapes))
    with np.load(orders["test"], allow_pickle=False) as held:
        test = Batches(dict(held), seed=spec.seed, transform=job.workload.transform)
    known = {"train": batches, "test": test, "unit": job.workload.unit, "agree": agree, "progress": progress}
    trainer = Trainer(program, spec, position=position, note=lambda: keep(answer), **known)
    folder = Path(orders["run_folder"]) if spec.training.save_every else None
    if spec.training.input == "resident":
        trainer.run(loader=None, folder=folder, answer=answer)
        return
    room = importlib.import_module(f"{orders['package']}.input")
    loader = room.make_loader(program, job, trainer.epochs, workers=spec.training.workers)
    try:
        trainer.run(loader=loader, folder=folder, answer=answer)
    finally:
        loader.close()


def bare_loop(package: str, spec: TrialSpec, job: Job) -> Any:
    """The framework's bare loop for a cell on GPUs, if it has one. (On CPU devices no hundredth could be told.)"""
    plain = spec.accumulation_steps == 1 and not scheduled(job.optimizer)
    if spec.platform == "cpu" or not plain or importlib.util.find_spec(f"{package}.bare") is None:
        return None
    return importlib.import_module(f"{package}.bare").LOOPS.get(spec.strategy)


def so_far(rank: int) -> str:
    """The file in which a rank keeps what it has found while it still works."""
    return f"rank{rank}.so-far.json"


def version(distribution: str) -> str:
    """Its installed version, or "?": a package may be installed under another name, and that fails no trial."""
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
    """Whether `error` says, in one of the frameworks' ways, that a device or the host has no memory left."""
    named = type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError")
    if named or "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
        return True
    # the end of a CUDA graph's capture that failed raises an error of its own
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write so that a reader sees all or nothing. Python writes NaN and Infinity, and the reader takes them back."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


if __name__ == "__main__":
    main()
