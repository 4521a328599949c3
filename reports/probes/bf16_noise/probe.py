"""How far is a right training in bf16, TF32 or fp32 from its float64 twin, and how far is a wrong one?

    python probe.py [--out FOLDER] [--seeds 0,1,2] [--devices N] [--budget 400] [--interpreter tf=PYTHON] [--tiny]

The judge: the suite's PyTorch `single` in float64 on the same device, at the timed batch, for the steps of the curve.
The judged: cells as the suite times them (right), and PyTorch's `single` in bf16 with a fault in it (wrong). Kept of
each: all losses, and per tensor, after some steps, how its movement since the start compares to the judge's.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

STEPS, MOMENTS = 20, (1, 5, 20)
AHEAD = 3  # batches that are gathered while a step runs
JUDGES = {1: "torch fp64", 2: "torch fp64 of two"}
CHECKS = {  # of one run: what would be held against a bound
    "loss 1": "first loss, relative",
    "losses": "worst of all losses, relative to the judge's",
    "curve": "worst of all losses, relative to how far the judge's fall",
    "whole ratio": "norm of the movement of all weights, its distance to 1 as a ratio",
    "whole angle": "1 - cosine between the movements of all weights",
    "median ratio": "per tensor, median",
    "worst ratio": "per tensor, worst",
    "median angle": "per tensor, median of 1 - cosine",
    "worst angle": "per tensor, worst of 1 - cosine",
    "median max": "per tensor, largest error relative to the largest movement: median",
    "worst max": "the same, worst",
    "own ratio": "per tensor relative to what right bf16 programs show in that tensor, worst",
    "own angle": "the same of 1 - cosine",
}


# ---- what runs -----------------------------------------------------------------------------------------------------


def variants(
    tiny: bool, pythons: dict[str, str], count: int, seeds: list[int], judges: dict[str, bool]
) -> list[dict[str, Any]]:
    """All programs, the most important first: name, order, GiB that they may take, what they are for."""
    found: list[dict[str, Any]] = []

    def add(name: str, kind: str, gib: int, framework: str, strategy: str = "single", used: int = 1, **known: Any):
        known = {"track": "defaults", "seeds": seeds, "steps": STEPS, "moments": MOMENTS} | known
        order = common.order_of(framework, strategy, tiny=tiny, used=used, name=name, kind=kind, **known)
        if framework in pythons and used <= count:
            found.append({"name": name, "kind": kind, "gib": gib, "order": order})

    add(JUDGES[1], "judge", 64, "torch", precision="fp64", settings=judges)
    add("faults", "wrong", 32, "torch", precision="bf16", seeds=seeds[:1])
    add("torch bf16 tuned", "right bf16", 28, "torch", precision="bf16", track="tuned")
    add("jax bf16", "right bf16", 30, "jax", precision="bf16")
    add("torch bf16", "right bf16", 28, "torch", precision="bf16")
    if count > 1:
        # one device, the batch of two in two parts: each part has BatchNorm statistics of its own, nothing communicates
        whole = common.order_of("torch", "single", track="defaults", precision="fp64", tiny=tiny)["batch"] * 2
        add(JUDGES[2], "judge", 66, "torch", precision="fp64", settings=judges, accumulation=2, batch=whole)
        add("torch ddp bf16 tuned", "right bf16", 30, "torch", "ddp", 2, precision="bf16", track="tuned")
        add("jax pmap bf16 tuned", "right bf16", 30, "jax", "pmap", 2, precision="bf16", track="tuned")
        add("torch ddp bf16", "right bf16", 30, "torch", "ddp", 2, precision="bf16")
        add("jax shard_map bf16", "right bf16", 30, "jax", "shard_map", 2, precision="bf16")
    add("tf bf16 tuned", "right bf16", 45, "tf", precision="bf16", track="tuned")
    add("tf bf16", "right bf16", 45, "tf", precision="bf16")
    add("torch tf32", "right tf32", 34, "torch", precision="tf32")
    add("torch fp32", "right fp32", 34, "torch", precision="fp32")
    add("jax fp32", "right fp32", 45, "jax", precision="fp32")
    # few steps: it only tells whether the judge is right
    add("jax fp64", "judge's check", 90, "jax", precision="fp64", seeds=seeds[:1], steps=5)
    return found


# ---- a worker ------------------------------------------------------------------------------------------------------


class Worker:
    """Trains one program from each seed's weights, and leaves losses and weights in its folder."""

    def __init__(self, order: dict[str, Any], folder: Path, rank: int) -> None:
        self.order, self.folder, self.rank = order, folder, rank
        self.steps, self.moments = order["steps"], [m for m in order["moments"] if m <= order["steps"]]
        order["seed"] = order["seeds"][0]
        self.built = common.Built(order, rank)
        self.answer: dict[str, Any] = {"runs": [], "errors": {}}

    def train(self, name: str, seed: int, program: Any, placed_of: Callable[[int], Any]) -> None:
        """`placed_of(step)`: the batch on the devices."""
        began, losses = time.monotonic(), []
        with ThreadPoolExecutor(AHEAD) as pool:
            coming = [pool.submit(placed_of, step) for step in range(min(AHEAD, self.steps))]
            wait(coming)  # the first step may be captured as a CUDA graph: nothing else calls CUDA meanwhile
            for step in range(self.steps):
                program.step(coming.pop(0).result())
                losses.append(program.loss())
                if step + AHEAD < self.steps:
                    coming.append(pool.submit(placed_of, step + AHEAD))
                if step + 1 in self.moments:
                    self.keep(f"{name}-{seed}-{step + 1}", program)
        run = {"name": name, "seed": seed, "losses": losses, "moments": self.moments}
        self.answer["runs"].append(run | {"seconds": round(time.monotonic() - began, 2)})
        self.write()

    def keep(self, name: str, program: Any) -> None:
        """The weights of the first replica, flat, in the order of the workload's parameters."""
        params = next(iter(program.export()))
        if self.rank == 0:
            flat = np.concatenate([params[each.name].ravel() for each in self.built.workload.parameters()])
            np.save(self.folder / f"{name}.npy", flat)

    def write(self) -> None:
        common.write_json(self.folder / f"answer{self.rank}.json", self.answer | self.built.facts())

    def right(self) -> None:
        """One program for all seeds: weights, running statistics and optimizer are set back between them."""
        program = self.built.program
        running = {key: np.array(value) for key, value in (program.state() or {}).items() if key.startswith("running/")}
        for number, seed in enumerate(self.order["seeds"]):
            began = time.monotonic()
            if number:
                params = self.built.workload.init_params(seed)
                program.load_state({f"model/{key}": array for key, array in params.items()} | running)
            gather = self.gather(seed)
            self.train(self.order["name"], seed, program, lambda step, gather=gather: program.place(gather(step)))
            took = time.monotonic() - began
            if self.built.world.processes == 1 and time.time() + took > self.order["stop_at"]:
                break  # ranks cannot agree on it: theirs is the probe's end

    def gather(self, seed: int) -> Callable[[int], Any]:
        batches = self.built.batches(seed)
        return lambda step: batches.batch(step, self.order["batch"], dtype=self.built.dtype)

    def wrong(self) -> None:
        """PyTorch's `single` with one fault after another, each a fresh program; first without any."""
        (seed,) = self.order["seeds"]
        gather = self.gather(seed)
        placed = [self.built.program.place(gather(step)) for step in range(self.steps)]  # 3 GB, for all of them
        for name in self.order["faults"]:
            if time.time() > self.order["stop_at"]:
                break
            try:
                program, change = FAULTS[name](self.built, seed)
                own = placed.__getitem__
                if change is not None or program.job.accumulation_steps > 1:
                    remake = change or (lambda batch: batch)
                    own = lambda step: program.place(remake(gather(step)))  # noqa: B023, E731
                self.train(name, seed, program, own)
            except Exception as error:
                self.answer["errors"][name] = f"{type(error).__name__}: {error}"[:500]
                self.write()
            program = None


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    own = Worker(order, folder, rank)
    own.wrong() if order["kind"] == "wrong" else own.right()
    own.write()


# ---- the faults ----------------------------------------------------------------------------------------------------
# Each gives a program, and what becomes of the batches, or None. They change that program, and no module of the suite.


def layer_of(program: Any) -> Any:
    """A 3 x 3 convolution in the middle of the network."""
    layers = dict(program.model.named_modules())
    return layers["layer3.0.conv2"]


def plain(built: common.Built, seed: int, **changes: Any) -> tuple[Any, None]:
    return built.make(seed, **changes), None


def never_updates(built: common.Built, seed: int):
    program, change = plain(built, seed)
    program.optimizer.step = lambda: None
    return program, change


def updates_but_every_seventh(built: common.Built, seed: int):
    program, change = plain(built, seed)
    step, count = program.optimizer.step, iter(range(1, 1000))
    program.optimizer.step = lambda: None if next(count) % 7 == 0 else step()
    return program, change


def optimizer_with(**settings: Any):
    def fault(built: common.Built, seed: int):
        program, change = plain(built, seed)
        for group in program.optimizer.param_groups:
            group.update(settings)
        return program, change

    return fault


def rate_times(factor: float):
    def fault(built: common.Built, seed: int):
        program, change = plain(built, seed)
        for group in program.optimizer.param_groups:
            group["lr"] *= factor
        return program, change

    return fault


def batch_changed(change: Callable[[Any], Any]):
    return lambda built, seed: (built.make(seed), change)


def first_half_twice(batch: Any) -> Any:
    half = len(batch["y"]) // 2
    return {key: np.concatenate([array[:half], array[:half]]) for key, array in batch.items()}


def last_sample_replaced(batch: Any) -> Any:
    return {key: np.concatenate([array[:-1], array[:1]]) for key, array in batch.items()}


def one_label_wrong(batch: Any) -> Any:
    y = batch["y"].copy()
    y[-1] = y[0]
    return {**batch, "y": y}


def gradients_changed(change: Callable[[Any, Any], None]):
    """`change(program, layer)` between backward and update."""

    def fault(built: common.Built, seed: int):
        program, same = plain(built, seed)
        program.exchange_gradients = lambda: change(program, layer_of(program))
        return program, same

    return fault


def rounded(program: Any, layer: Any) -> None:
    for parameter in program.model.parameters():
        parameter.grad = parameter.grad.bfloat16().float()


def cast_lost_in_a_layer(built: common.Built, seed: int):
    import torch

    program, change = plain(built, seed)
    layer = layer_of(program)
    forward = layer.forward

    def in_float32(x):
        with torch.autocast(x.device.type, enabled=False):
            return forward(x.float())

    layer.forward = in_float32
    return program, change


def autocast_as(name: str | None):
    def fault(built: common.Built, seed: int):
        import torch

        program, change = plain(built, seed)
        dtype = getattr(torch, name or "bfloat16")
        program.autocast = lambda: torch.autocast(program.device.type, dtype, enabled=name is not None)
        return program, change

    return fault


def stale_by_a_step(built: common.Built, seed: int):
    """Gradients are those of the weights before the last update."""
    import torch

    program, change = plain(built, seed)
    parameters = list(program.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    train, update = program.run, program.optimizer.step
    now: list[Any] = []

    def swapped(placed):
        with torch.no_grad():
            now[:] = [parameter.detach().clone() for parameter in parameters]
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
        return train(placed)

    def step():
        with torch.no_grad():
            for parameter, old, newest in zip(parameters, before, now, strict=True):
                parameter.copy_(newest)
                old.copy_(newest)
        update()

    program.run, program.optimizer.step = swapped, step
    return program, change


FAULTS: dict[str, Callable[..., tuple[Any, Callable | None]]] = {
    "no fault": plain,
    "never updates": never_updates,
    "rate x 2": rate_times(2.0),
    "rate x 1.1": rate_times(1.1),
    "no momentum": optimizer_with(momentum=0.0),
    "half of the batch twice": batch_changed(first_half_twice),
    "one sample replaced": batch_changed(last_sample_replaced),
    "one label wrong": batch_changed(one_label_wrong),
    "a layer's gradient zero": gradients_changed(lambda program, layer: layer.weight.grad.zero_()),
    "a layer's gradient x 0.9": gradients_changed(lambda program, layer: layer.weight.grad.mul_(0.9)),
    "a layer's cast lost": cast_lost_in_a_layer,
    "fp32 as bf16": autocast_as(None),
    "fp16 as bf16": autocast_as("float16"),
    "stale by a step": stale_by_a_step,
    "weight decay 1e-4": optimizer_with(weight_decay=1e-4),
    "weight decay 1e-2": optimizer_with(weight_decay=1e-2),
    "BatchNorm of halves": lambda built, seed: plain(built, seed, accumulation_steps=2),
    "gradients rounded to bf16": gradients_changed(rounded),
    "every 7th update skipped": updates_but_every_seventh,
}


# ---- comparisons ---------------------------------------------------------------------------------------------------


class Judgement:
    """Holds what programs left against what their judge left, as both come in."""

    def __init__(self, results: common.Results, scratch: Path, size: str) -> None:
        self.results, self.scratch = results, scratch
        self.workload = common.workload_of({"size": size})
        self.parameters = self.workload.parameters()
        self.pool = ThreadPoolExecutor(3)
        self.pending: list[Future] = []
        self.runs: dict[tuple[str, int], dict[str, Any]] = {}  # what has been trained, by name and seed
        self.waiting: list[dict[str, Any]] = []
        self.starts: dict[int, np.ndarray] = {}

    def take(self, variant: dict[str, Any], run: dict[str, Any]) -> None:
        """A run that is complete: compared at once, or when its judge's is there."""
        devices = 2 if variant["order"]["devices"] == 2 or variant["name"] == JUDGES[2] else 1
        kept = run | {"kind": variant["kind"], "devices": devices, "folder": variant["folder"]}
        self.runs[run["name"], run["seed"]] = kept
        common_part = {key: kept[key] for key in ("name", "kind", "seed", "devices", "losses", "seconds")}
        self.results.content["runs"].append(common_part)
        if variant["kind"] != "judge":
            self.waiting.append(kept | {"shown": common_part})
        ready = [each for each in self.waiting if (JUDGES[each["devices"]], each["seed"]) in self.runs]
        self.waiting = [each for each in self.waiting if each not in ready]
        for each in ready:
            self.pending.append(self.pool.submit(self.compare, each, self.runs[JUDGES[each["devices"]], each["seed"]]))
        self.results.write()

    def compare(self, run: dict[str, Any], judge: dict[str, Any]) -> None:
        shown = run["shown"]
        right = np.array(judge["losses"][: len(run["losses"])])
        off = np.abs(np.array(run["losses"]) - right)
        fall = max(judge["losses"]) - min(judge["losses"])
        shown["off"] = numbers(off / np.abs(right))
        shown["off_of_fall"] = numbers(off / fall)
        moved = {}
        for moment in run["moments"]:
            name, file = f"-{run['seed']}-{moment}.npy", run["folder"] / f"{run['name']}-{run['seed']}-{moment}.npy"
            known = judge["folder"] / f"{judge['name']}{name}"
            moved[str(moment)] = self.moved(np.load(file), np.load(known), run["seed"])
            file.unlink()
        shown["moved"] = moved
        self.results.write()

    def start(self, seed: int) -> np.ndarray:
        if seed not in self.starts:
            params = self.workload.init_params(seed)
            self.starts[seed] = np.concatenate([params[each.name].ravel() for each in self.parameters])
        return self.starts[seed]

    def moved(self, own: np.ndarray, judge: np.ndarray, seed: int) -> dict[str, Any]:
        """Per tensor: the ratio of norms of own - start to judge - start; 1 - their cosine; the largest error."""
        start = self.start(seed)
        # a program in float32 starts from rounded weights: that is no movement
        d = own.astype(np.float64) - start.astype(own.dtype).astype(np.float64)
        j = judge.astype(np.float64) - start.astype(judge.dtype).astype(np.float64)
        found: dict[str, list[float]] = {"ratio": [], "angle": [], "max": []}
        at = 0
        for parameter in self.parameters:
            part = slice(at, at := at + int(np.prod(parameter.shape)))
            for key, value in movement(d[part], j[part]).items():
                found[key].append(value)
        whole = movement(d, j)
        del whole["max"]
        return {"whole": {key: number(value) for key, value in whole.items()}} | {
            key: numbers(values) for key, values in found.items()
        }


def movement(d: np.ndarray, j: np.ndarray) -> dict[str, float]:
    """A movement beside the judge's. The angle of what has not moved counts as 1."""
    own, right = float(np.linalg.norm(d)), float(np.linalg.norm(j))
    angle = 1 - float(d @ j) / (own * right) if own and right else 1.0
    largest = float(np.abs(j).max())
    ratio = own / right if right else float(own > 0)
    return {"ratio": ratio, "angle": angle, "max": float(np.abs(d - j).max()) / largest if largest else float("nan")}


def number(value: float) -> float | None:
    """Four digits; None for what is not finite."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def numbers(values: Any) -> list[float | None]:
    return [number(float(value)) for value in values]


def away(ratio: Any) -> np.ndarray:
    """How far ratios are from 1, the same for r and 1 / r: max(r, 1 / r) - 1; 0 counts as infinitely far."""
    given = np.array(ratio, float)
    with np.errstate(divide="ignore"):
        return np.maximum(given, 1 / given) - 1


def checks(run: dict[str, Any], moment: int, noise: dict[str, np.ndarray] | None) -> dict[str, float]:
    """The size of every check of CHECKS after `moment` steps. `noise`: what right bf16 programs show per tensor."""
    part = run["moved"].get(str(moment))
    losses = np.array([np.inf if value is None else value for value in run["off"][:moment]], float)
    curve = np.array([np.inf if value is None else value for value in run["off_of_fall"][:moment]], float)
    found = {"loss 1": losses[0], "losses": losses.max(), "curve": curve.max()}
    if part is None:
        return found
    ratio, angle, largest = away(part["ratio"]), np.array(part["angle"], float), np.array(part["max"], float)
    found |= {"whole ratio": float(away(part["whole"]["ratio"])), "whole angle": part["whole"]["angle"]}
    for name, values in (("ratio", ratio), ("angle", angle), ("max", largest)):
        values = np.where(np.isnan(values), np.inf, values)
        found |= {f"median {name}": float(np.median(values)), f"worst {name}": float(values.max())}
    if noise is not None:
        found |= {f"own {key}": float((values / noise[key]).max()) for key, values in
                  (("ratio", ratio), ("angle", angle))}  # fmt: skip
    return found


def tensor_noise(runs: list[dict[str, Any]], moment: int) -> dict[str, np.ndarray] | None:
    """Per tensor the worst that these runs show; no less than its median over the tensors."""
    parts = [run["moved"][str(moment)] for run in runs if str(moment) in run.get("moved", {})]
    if not parts:
        return None
    found = {
        "ratio": np.max([away(part["ratio"]) for part in parts], axis=0),
        "angle": np.max([np.array(part["angle"], float) for part in parts], axis=0),
    }
    return {key: np.maximum(worst, np.median(worst)) for key, worst in found.items()}


def summarize(content: dict[str, Any]) -> dict[str, Any]:
    """For each moment and check: noise of right programs by kind, size of each fault, and fault / noise of bf16."""
    runs = [run for run in content["runs"] if "moved" in run]
    right = [run for run in runs if run["kind"].startswith("right") or run["name"] == "no fault"]
    bf16 = [run for run in right if run["kind"] == "right bf16" or run["name"] == "no fault"]
    summary: dict[str, Any] = {}
    for moment in MOMENTS:
        rows: dict[str, Any] = {}
        for run in runs:
            # a right program is held against the others, not against itself
            same = ("no fault", "torch bf16") if run["name"] in ("no fault", "torch bf16") else (run["name"],)
            others = [other for other in bf16 if other["name"] not in same]
            found = checks(run, moment, tensor_noise(others, moment))
            rows[f"{run['name']}, seed {run['seed']}"] = {key: number(value) for key, value in found.items()}
        noise: dict[str, Any] = {}
        for kind, worst in (("right bf16", max), ("right bf16, least", min), ("right tf32", max), ("right fp32", max)):
            own = bf16 if "bf16" in kind else [run for run in right if run["kind"] == kind]
            named = [f"{run['name']}, seed {run['seed']}" for run in own]
            noise[kind] = {
                check: None if None in values else worst(values)
                for check in CHECKS
                if (values := [rows[name][check] for name in named if check in rows[name]])
            }
        margins = {
            run["name"]: {
                check: number(value / worst) if value is not None and worst else None if value is not None else "inf"
                for check, value in rows[f"{run['name']}, seed {run['seed']}"].items()
                if (worst := noise["right bf16"].get(check)) is not None
            }
            for run in runs
            if run["kind"] == "wrong" and run["name"] != "no fault"
        }
        summary[str(moment)] = {"sizes": rows, "noise": noise, "fault_over_noise": margins}
    return summary


def show(summary: dict[str, Any]) -> str:
    """Noise, and each fault in multiples of it."""
    lines = []
    for moment, part in summary.items():
        names = [check for check in CHECKS if check in part["noise"]["right bf16"]]
        rows: list[list[Any]] = [[f"after step {moment}", *names]]
        for kind, noise in part["noise"].items():
            rows.append([f"noise, {kind}", *(noise.get(name, "-") for name in names)])
        for fault, margins in part["fault_over_noise"].items():
            rows.append([f"  {fault}: times noise", *(margins.get(name, "-") for name in names)])
        lines.append(common.table([[("-" if cell is None else cell) for cell in row] for row in rows]))
    return "\n\n".join(lines)


# ---- the whole -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--faults", default=",".join(FAULTS), help="names, joined by commas")
    parser.add_argument("--summarize", type=Path, help="a results.json, also of a run cut short: its table anew")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for all")
    parser.add_argument("--jobs", type=int, default=0, help="programs at once; default: 3 a GPU, 1 with --tiny")
    parser.add_argument("--benchmark-judge", action="store_true", help="cuDNN tries its algorithms for float64 too")
    parser.add_argument("--fail", default="", help="a variant that is made to fail: tries the script")
    options = parser.parse_args()
    if options.worker:
        common.work(options, worker)
    if options.summarize:
        content = json.loads(options.summarize.read_text())
        content["summary"] = summarize(content)
        common.write_json(options.summarize, content)
        print(show(content["summary"]))
        return
    began = time.monotonic()
    used = common.devices(options)
    pythons = common.interpreters(options.interpreter)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    judges = {"cudnn_benchmark": True} if options.benchmark_judge else {}
    waiting = variants(options.tiny, pythons, len(used), seeds, judges)
    if options.only:
        waiting = [each for each in waiting if each["name"] in options.only.split(",") or each["kind"] == "judge"]
    scratch = Path(tempfile.mkdtemp(prefix="bf16_noise-", dir=options.scratch))
    size = "tiny" if options.tiny else "imagenet"
    content = common.about(options, used) | {
        "checks": CHECKS,
        "tensors": [parameter.name for parameter in common.workload_of({"size": size}).parameters()],
        "programs": {},
        "runs": [],
    }
    results = common.Results(options.out or Path(__file__).parent, content)
    judgement = Judgement(results, scratch, size)
    free = [gpu["bytes"] / 2**30 * 0.92 for gpu in used]
    jobs = options.jobs or (1 if options.tiny else 3 * len(used))
    running: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    def place(variant: dict[str, Any]) -> list[int] | None:
        """The GPUs that it would run on now, or None."""
        order = sorted(range(len(used)), key=lambda index: -free[index])[: variant["order"]["devices"]]
        fits = all(free[index] >= variant["gib"] for index in order)
        return sorted(order) if fits or not running else None

    def start(variant: dict[str, Any], on: list[int]) -> None:
        for index in on:
            free[index] -= variant["gib"]
        order = variant["order"] | {"stop_at": time.time() + options.budget - (time.monotonic() - began)}
        if variant["kind"] == "wrong":
            order["faults"] = ["no fault", *(each for each in options.faults.split(",") if each != "no fault")]
        if variant["name"] == options.fail:
            order["strategy"] = "none_such"
        if order["processes"] > 1:  # ranks cannot agree to stop early, and the probe ends them when time is up
            order["stop_at"] = time.time() + 1e6
        memory = "0.95" if order["precision"] == "fp64" else "0.75"
        extra = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": memory}
        name = variant["name"] + (" again" if variant.get("again") else "")
        variant["launch"] = common.Launch(
            __file__, name, order, python=pythons[order["framework"]], tokens=[used[index]["token"] for index in on],
            scratch=scratch, extra=extra,
        )  # fmt: skip
        variant |= {"on": on, "seen": 0, "folder": variant["launch"].folder}
        running.append(variant)
        say(f"starts {name} on {on}")

    def look(variant: dict[str, Any]) -> None:
        launch = variant["launch"]
        alive = launch.running()
        answer = launch.answer()
        for run in answer.get("runs", [])[variant["seen"] :]:
            judgement.take(variant, run)
            say(f"{run['name']}, seed {run['seed']}: {run['seconds']} s, "
                f"losses {run['losses'][0]:.4f} to {run['losses'][-1]:.4f}")  # fmt: skip
            variant["seen"] += 1
        if alive:
            return
        for index in variant["on"]:
            free[index] += variant["gib"]
        running.remove(variant)
        facts = {key: answer.get(key) for key in ("versions", "build_seconds", "peak_bytes", "errors")}
        order = {key: variant["order"][key] for key in ("framework", "strategy", "track", "precision", "devices",
                 "batch", "settings", "options", "seeds", "steps")}  # fmt: skip
        known = order | facts | {"seconds": round(launch.seconds, 1), "error": launch.error}
        content["programs"][launch.name] = known
        results.write()
        say(f"ended {launch.name}" + (f": {launch.error.splitlines()[-1][:300]}" if launch.error else ""))
        if launch.error and not variant["seen"] and not variant.get("again"):
            again.append(variant | {"again": True})  # it may have lacked memory beside others: once more, alone

    while waiting or running or again:
        late = time.monotonic() - began > options.budget
        if late:
            for variant in running:
                variant["launch"].end("out of time")
            for variant in (*waiting, *again):
                content["programs"].setdefault(variant["name"], {"error": "out of time: not started"})
            waiting, again = [], []
        for variant in list(running):
            look(variant)
        again = [] if late else again
        if not waiting and not running and again:
            start(variant := again.pop(0), list(range(variant["order"]["devices"])))
        for variant in list(waiting):
            on = place(variant) if len(running) < jobs else None
            if on is not None:
                waiting.remove(variant)
                start(variant, on)
        time.sleep(0.2)
    judgement.pool.shutdown()
    for future in judgement.pending:
        if future.exception():
            content.setdefault("comparison_errors", []).append(repr(future.exception()))
    say("compared")
    content["unjudged"] = [f"{each['name']}, seed {each['seed']}" for each in judgement.waiting]
    content["seconds"] = round(time.monotonic() - began, 1)
    results.write()
    content["summary"] = summarize(content)
    results.write()
    shutil.rmtree(scratch)
    print(show(content["summary"]))
    failed = {name: known["error"].splitlines()[-1] for name, known in content["programs"].items() if known["error"]}
    failed |= {f"fault {name}": text for known in content["programs"].values() for name, text in
               (known.get("errors") or {}).items()}  # fmt: skip
    failed |= dict.fromkeys(content["unjudged"], "its judge is missing")
    for name, text in failed.items():
        print(f"FAILED {name}: {text[:300]}")
    print(f"{content['seconds']} s; {results.path}")
    os._exit(0)


if __name__ == "__main__":
    main()
