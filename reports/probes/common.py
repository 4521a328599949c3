"""What the probes share: programs of the suite built outside its harness, each in processes of its own.

A probe is one script. Called with `--worker FOLDER --rank R` it is one rank of one program: it reads FOLDER/order.json
and builds what that says, with nothing imported but what the suite's workers import. Called otherwise it launches such
programs, and gathers what they leave in FOLDER.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.planning import strategy_options, track_settings
from harness.planning.run_request import Request
from harness.spec import OptimizerSpec, Platform, SettingCell, Track, registry

# NVLink's multicast stays off in every process
CAREFUL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
FRAMES = 12  # of a program that is ended, from the innermost
LOGGED = 6  # its last lines before that
# the smallest size of the network, with momentum and a rate at which its loss falls
TINY_OPTIMIZER = OptimizerSpec(name="sgd", learning_rate=0.02, momentum=0.9)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that all probes have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for results.json; default: the probe's own")
    parser.add_argument("--tiny", action="store_true", help="a small network on two CPU devices: tries the script only")
    parser.add_argument("--only", default="", help="names of variants, joined by commas; default: all")
    parser.add_argument("--devices", type=int, default=0, help="GPUs to use; default: all, two at most")
    parser.add_argument("--interpreter", action="append", default=[], metavar="FRAMEWORK=PYTHON")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), help="where programs leave weights and traces")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def interpreters(given: list[str]) -> dict[str, str]:
    """The Python of each framework that can be used: TensorFlow's only if it is given."""
    named = dict(each.split("=", 1) for each in given)
    return {"torch": sys.executable, "jax": sys.executable} | {
        framework: str(Path(python).expanduser().absolute()) for framework, python in named.items()
    }


def gpus() -> list[dict[str, Any]]:
    """The visible GPUs: what CUDA_VISIBLE_DEVICES takes for it, name, bytes, power limit. [] without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found.append(
            {
                "token": pynvml.nvmlDeviceGetUUID(handle),
                "index": str(index),
                "name": pynvml.nvmlDeviceGetName(handle),
                "bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
                "max_sm_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "driver": pynvml.nvmlSystemGetDriverVersion(),
            }
        )
    pynvml.nvmlShutdown()
    chosen = [token.strip() for token in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if token.strip()]
    known = [gpu for token in chosen for gpu in found if token == gpu["index"] or gpu["token"].startswith(token)]
    return known if chosen else found


def devices(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The devices to use: in `--tiny` two of the CPU."""
    if options.tiny:
        return [{"token": str(index), "name": "CPU", "bytes": 1 << 40} for index in range(options.devices or 2)]
    found = gpus()[: options.devices or 2]
    if len(found) < max(1, options.devices):
        raise SystemExit(f"--devices {options.devices}: NVML shows {len(found)} GPUs; give fewer, or --tiny")
    return found


class Clocks(threading.Thread):
    """Samples a launch's GPUs from `start` to `stop`, twice a second. Reading them more often might slow down programs
    whose host sets the pace (harness/machine/telemetry.py)."""

    def __init__(self, tokens: list[str]) -> None:
        super().__init__(daemon=True)
        self.tokens, self.ended = tokens, threading.Event()
        self.samples: list[tuple[float, list[Any]]] = []  # when (time.monotonic), and of each GPU

    def run(self) -> None:
        import pynvml

        from harness.machine import nvml

        with suppress(pynvml.NVMLError), nvml.opened():  # without NVML, the devices are the CPU's
            while not self.ended.wait(0.5):
                self.samples.append((time.monotonic(), [nvml.sample(token) for token in self.tokens]))

    def stop(self) -> None:
        self.ended.set()
        self.join()

    def within(self, spans: list[tuple[float, float]]) -> dict[str, list[float]]:
        """The mean SM clock in MHz and power in watts of each GPU over the samples within `spans`, if it has them."""
        kept = [of_each for when, of_each in self.samples if any(begin <= when <= end for begin, end in spans)]
        found = {}
        for name, column in (("sm_mhz", "sm_clock_mhz"), ("watts", "power_watts")):
            read = [[getattr(sample, column) for sample in of_gpu] for of_gpu in zip(*kept, strict=True)]
            if read and not any(None in of_gpu for of_gpu in read):
                found[name] = [round(fmean(of_gpu), 1) for of_gpu in read]
        return found


def about(options: argparse.Namespace, used: list[dict[str, Any]]) -> dict[str, Any]:
    """What a reader must know of the run."""
    describe = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    ran = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),  # published: give --out a relative path
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": ran.stdout.strip(),
        "tiny": options.tiny,
        "devices": [{key: value for key, value in gpu.items() if key != "token"} for gpu in used],
        "cores": len(os.sched_getaffinity(0)),
    }


def write_json(path: Path, content: Any) -> None:
    """Write so that a reader sees all or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, separators=(",", ":")))
    temporary.replace(path)


def workload_of(order: dict[str, Any]) -> workloads.Workload:
    """The network of an order, ResNet-50 where it names none, as the suite times it or in its smallest size.

    The smallest size has an optimizer of the probes', unless the order asks for its `own_optimizer`.
    """
    workload = workloads.get(order.get("workload", "resnet50"), order["size"])
    of_probes = order["size"] == "tiny" and not order.get("own_optimizer", False)
    return replace(workload, optimizer=TINY_OPTIMIZER) if of_probes else workload


def order_of(
    framework: str,
    strategy: str,
    *,
    track: Track,
    precision: str,
    tiny: bool,
    workload: str = "resnet50",
    used: int = 1,
    batch: int = 0,
    options: dict[str, Any] | None = None,
    settings: dict[str, bool] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a worker builds: a cell of the suite as its planner resolves it, with `settings` in place of the track's.

    `batch`: samples of a step, on all devices; 0 for the network's usual number on each.
    """
    spec = registry.framework(framework)
    known = track_settings.strategy_on(spec.strategy(strategy), track)
    platform: Platform = "cpu" if tiny else "gpu"
    size = "tiny" if tiny else "imagenet" if workload == "resnet50" else "base"
    network = workloads.get(workload, size)
    batch = batch or network.global_batch * used
    chosen = strategy_options.resolve(known, network, options or {}, devices=used, batch=batch)
    cell = SettingCell(
        workload=workload, normalizes=network.normalizes, platform=platform, optimizer=network.optimizer,
        precision=precision, options=chosen,
    )  # fmt: skip
    obstacle = partial(
        track_settings.not_applicable, strategy=known, workload=network, cell=cell, normalization=known.normalization
    )
    held = track_settings.resolve(spec, known, track, Request(), obstacle, platform=platform)
    return {
        "framework": framework,
        "strategy": strategy,
        "track": track,
        "precision": precision,
        "platform": platform,
        "workload": workload,
        "size": size,
        "devices": used,
        "processes": used if known.processes == "per_device" else 1,
        "batch": batch,
        "options": chosen,
        "settings": held | (settings or {}),
        "normalization": known.normalization,
    } | more


class Launch:
    """The processes of one program, from their start to their end."""

    def __init__(
        self,
        script: str,
        name: str,
        order: dict[str, Any],
        *,
        python: str,
        tokens: list[str],
        scratch: Path,
        extra: dict[str, str] | None = None,
    ) -> None:
        self.name, self.order, self.tokens = name, order, tokens
        self.folder = scratch / name.replace(" ", "_")  # compilers are called with paths in it
        (self.folder / "tmp").mkdir(parents=True)
        processes = order["processes"]
        cores = 1 if order["platform"] == "cpu" else max(1, len(os.sched_getaffinity(0)) // processes)
        world = {"processes": processes, "devices": order["devices"], "platform": order["platform"], "cores": cores}
        world["rendezvous"] = f"file://{self.folder}/rendezvous"
        write_json(self.folder / "order.json", order | {"world": world})
        variables = {key: value for key, value in os.environ.items() if key not in STALE}
        spec = registry.framework(order["framework"])
        variables |= spec.environment.get(order["platform"], {}) | CAREFUL | (extra or {})
        for setting in spec.settings:
            for key, value in setting.environment.items() if order["settings"][setting.name] else ():
                variables[key] = f"{value} {variables.get(key, '')}".strip()
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH", "")]))
        variables |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.folder / "tmp")}
        variables["CUDA_VISIBLE_DEVICES"] = "" if order["platform"] == "cpu" else ",".join(tokens)
        for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            variables[key] = str(cores)
        self.started, self.seconds, self.error = time.monotonic(), 0.0, ""
        self.ranks = []
        for rank in range(processes):
            command = [python, script, "--worker", str(self.folder), "--rank", str(rank)]
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                self.ranks.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=self.folder))

    def running(self) -> bool:
        """Whether it still works. When one rank fails the others are ended."""
        codes = [rank.poll() for rank in self.ranks]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and not self.error:
            self.error = f"rank {failed[0]} ended with {codes[failed[0]]}: {self.last_lines(failed[0])}"
            self.end()
            return False
        if None in codes:
            return True
        self.seconds = self.seconds or time.monotonic() - self.started
        return False

    def last_lines(self, rank: int) -> str:
        """Of a rank's log."""
        text = (self.folder / f"rank{rank}.log").read_text(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])[-2000:]

    def where(self) -> str:
        """Where the ranks that still run are in their code, and what they logged last; "" if none runs."""
        running = [rank for rank, process in enumerate(self.ranks) if process.poll() is None]
        for rank in running:
            self.ranks[rank].send_signal(signal.SIGUSR1)
        time.sleep(1.0 if running else 0.0)
        found = ""
        for rank in running:
            text = (self.folder / f"rank{rank}.log").read_text(errors="replace")
            logged = re.split(r"^(?:Current thread|Thread) 0x.*$", text, maxsplit=1, flags=re.MULTILINE)[0]
            # the main thread comes last
            _, written, frames = text.rpartition("(most recent call first):\n")
            where = frames.splitlines()[:FRAMES] if written else ["no traceback"]
            found += f"rank {rank} was here:\n" + "\n".join(logged.splitlines()[-LOGGED:] + where) + "\n"
        return found

    def end(self, why: str = "") -> None:
        """Ends what is left of it. `why`: the last line of the error, after where it was."""
        if why and not self.error:
            self.error = self.where() + why
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        self.seconds = time.monotonic() - self.started

    def wait(self, deadline: float) -> None:
        """To its end, or to `deadline` (time.monotonic)."""
        while self.running():
            if time.monotonic() > deadline:
                self.end("out of time")
            time.sleep(0.1)

    def answer(self, rank: int = 0) -> dict[str, Any]:
        """What a rank has written so far."""
        path = self.folder / f"answer{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}


def version(distribution: str) -> str:
    """Its installed version, or "?": a package may be installed under another name."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "?"


class Built:
    """A program in a worker, with what it was made of."""

    def __init__(self, order: dict[str, Any], rank: int) -> None:
        self.order = order
        self.world = World(rank=rank, local_rank=rank, **order["world"])
        spec = registry.framework(order["framework"])
        self.package = spec.package
        self.runtime = importlib.import_module(f"{self.package}.runtime")
        self.runtime.start(self.world, order["precision"], order["settings"])
        self.versions = {name: version(name) for name in spec.distributions}
        self.versions |= {"python": sys.version.split()[0], "numpy": np.__version__}
        self.versions |= self.runtime.versions(self.world)
        self.workload = workload_of(order)
        self.data = self.workload.load("train", None)
        began = time.monotonic()
        self.program = self.make(order.get("seed", 0))
        self.build_seconds = time.monotonic() - began

    def make(self, seed: int, **changes: Any) -> Any:
        """A program on the initial weights of `seed`."""
        order = self.order
        job = Job(
            world=self.world,
            workload=self.workload,
            params=self.workload.init_params(seed),
            optimizer=self.workload.optimizer,
            precision=order["precision"],
            global_batch=order["batch"],
            options=order["options"],
            normalization=order["normalization"],
            settings=order["settings"],
            accumulation_steps=order.get("accumulation", 1),
        )
        strategy = importlib.import_module(f"{self.package}.strategies.{order['strategy']}")
        program = strategy.build(replace(job, **changes))
        program.sync()
        return program

    def batches(self, seed: int) -> Batches:
        return Batches(self.data, seed=seed, transform=self.workload.transform)

    @property
    def dtype(self) -> type:
        return np.float64 if self.order["precision"] == "fp64" else np.float32

    def barrier(self) -> None:
        self.runtime.barrier(self.world)

    def facts(self) -> dict[str, Any]:
        """Of every worker."""
        peak = self.runtime.peak_bytes(self.world)
        return {"versions": self.versions, "build_seconds": round(self.build_seconds, 2), "peak_bytes": peak}


def die_with_parent() -> None:
    """No process of a probe outlives it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def work(options: argparse.Namespace, do: Callable[[dict[str, Any], Path, int], None]) -> None:
    """One rank: `do(order, folder, rank)`, then the end of the process, whatever threads the frameworks have left."""
    die_with_parent()
    # Launch.where. The signal may reach a thread that runs no Python, which has no frames of its own.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    code = 0
    try:
        do(json.loads((options.worker / "order.json").read_text()), options.worker, options.rank)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def table(rows: list[list[Any]]) -> str:
    """Rows of cells as aligned text, the first one the head."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(
            zip(row, widths, strict=True)))
        for row in cells
    ]  # fmt: skip
    return "\n".join(lines)


class Results:
    """results.json, written anew after everything that is found."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.content, self.lock = folder / "results.json", content, threading.Lock()

    def write(self) -> None:
        with self.lock:
            write_json(self.path, self.content)
