"""What does each rung of tuning bring on one GPU?

    python probe.py --framework torch|jax|tf [--out FOLDER] [--only a,b] [--budget-seconds 400] [--list] [--tiny]

ResNet-50, 224 x 224, batch 256, bf16, SGD with momentum, resident batches: the suite's own networks and optimizers, in
training loops written by hand. Every variant (rungs.py) runs in a process of its own: first calls, a warm-up, then
blocks of steps. The base is measured first and last. Results: FOLDER/<framework>.json.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import argparse
import os

import common
import measure
from rungs import RUNGS, Rung

END_SECONDS = 5  # of the budget that is kept free, to write and to clean up
LOSSES_COMPARED = {"cpu": 5, "gpu": 3}
LOSS_TOLERANCE = {"cpu": 1e-3, "gpu": 0.02}  # fp32 on the CPU, where only the order of sums differs; bf16 on the GPU


def main() -> None:
    options = arguments()
    if options.worker:
        common.work(options, measure.worker)
    if options.list:
        print(common.table([["rung", "tier", "expected s", "what"], *map(row_of, RUNGS[options.framework])]))
        return
    began = time.monotonic()
    gpu = device(options)
    scratch = Path(tempfile.mkdtemp(prefix="rungs-", dir=options.scratch))
    folder = options.out or Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{options.framework}.json"
    base, *others = chosen(options)
    plan = [base, *in_order(others, options.seed)]
    content = common.about(options, [gpu]) | {
        "framework": options.framework,
        "seed": options.seed,
        "warmup_seconds": options.warmup_seconds,
        "window_seconds": options.window_seconds,
        "block_seconds": options.block_seconds,
        "base": base.name,
        "order": [],
        "rungs": {},
        "left_out": {},
    }

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    def run(rung: Rung, name: str, ends: float) -> dict[str, Any]:
        """Measure it, or end it at `ends` (time.monotonic)."""
        say(f"starts {name}")
        launch = start(rung, name, options, gpu, scratch)
        launch.wait(ends)
        found = described(rung, launch) | compared(content, launch.answer(), gpu_or_cpu(options))
        content["rungs"][name] = found
        content["order"].append(name)
        content["seconds"] = round(time.monotonic() - began, 1)
        common.write_json(path, content)
        say(f"ended {name}: " + (last_line(found["error"]) or f"{found['images_per_second']} images/s"))
        return found

    budget_ends = began + options.budget_seconds
    reserve = END_SECONDS + run(base, base.name, budget_ends - END_SECONDS)["seconds"]
    for rung in plan[1:]:
        left = budget_ends - reserve - time.monotonic()
        if left < rung.seconds:
            content["left_out"][rung.name] = f"expected to take {rung.seconds} s, of the budget {left:.0f} s were left"
            continue
        run(rung, rung.name, budget_ends - reserve)
    run(base, f"{base.name} again", budget_ends - END_SECONDS)
    common.write_json(path, content)
    shutil.rmtree(scratch, ignore_errors=True)
    show(content)
    print(f"{content['seconds']} s; {path}")


def arguments() -> argparse.Namespace:
    parser = common.arguments(__doc__)
    parser.add_argument("--framework", choices=list(RUNGS), default="torch")
    parser.add_argument("--budget-seconds", type=float, default=0.0, help="for all; default: 400, with --tiny 3600")
    parser.add_argument("--warmup-seconds", type=float, default=0.0, help="default: 5, with --tiny 0.2")
    parser.add_argument("--window-seconds", type=float, default=0.0, help="of the blocks; default: 6, with --tiny 0.6")
    parser.add_argument("--block-seconds", type=float, default=0.0, help="default: 1, with --tiny 0.2")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--cold", action="store_true", help="torch's variants share no compiled code")
    parser.add_argument("--list", action="store_true", help="the framework's rungs, and nothing else")
    options = parser.parse_args()
    usual = (400.0, 5.0, 6.0, 1.0) if not options.tiny else (3600.0, 0.2, 0.6, 0.2)
    for name, value in zip(("budget", "warmup", "window", "block"), usual, strict=True):
        key = f"{name}_seconds"
        setattr(options, key, getattr(options, key) or value)
    return options


def row_of(rung: Rung) -> list[Any]:
    return [rung.name, rung.tier, rung.seconds, rung.says]


def gpu_or_cpu(options: argparse.Namespace) -> str:
    return "cpu" if options.tiny else "gpu"


def device(options: argparse.Namespace) -> dict[str, Any]:
    """The one device that all variants run on."""
    options.devices = 1
    try:
        return common.devices(options)[0]
    except ImportError:  # no pynvml: the first GPU, unnamed
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return {"token": first or "0", "name": "unknown: pynvml is not installed"}


def chosen(options: argparse.Namespace) -> list[Rung]:
    """The base, and the rungs of --only or all. Ends the program for an unknown name."""
    base, *others = RUNGS[options.framework]
    only = [name for name in options.only.split(",") if name]
    unknown = sorted(set(only) - {rung.name for rung in (base, *others)})
    if unknown:
        raise SystemExit(f"--only: {options.framework} has no rung {', '.join(unknown)}; --list shows them")
    return [base, *(rung for rung in others if not only or rung.name in only)]


def in_order(rungs: list[Rung], seed: int) -> list[Rung]:
    """By tier, and shuffled within each: what drifts over the run then falls on no kind of rung in particular."""
    mixed = random.Random(seed).sample(rungs, len(rungs))
    return sorted(mixed, key=lambda rung: rung.tier)


def start(rung: Rung, name: str, options: argparse.Namespace, gpu: dict[str, Any], scratch: Path) -> common.Launch:
    """The process of one variant."""
    settings = {"cudnn_benchmark": rung.options.get("cudnn_benchmark", False)}
    order = common.order_of(
        options.framework,
        "single",
        track="tuned",
        precision="fp32" if options.tiny else "bf16",
        tiny=options.tiny,
        settings=settings if options.framework == "torch" and not rung.options.get("suite") else None,
        warmup_seconds=options.warmup_seconds,
        window_seconds=options.window_seconds,
        block_seconds=options.block_seconds,
        rung=rung.options,
    )
    environment = {}
    if options.framework == "torch":
        cache = scratch / "inductor" / (name.replace(" ", "_") if options.cold else "shared")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    if rung.xla_flags:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {rung.xla_flags}".strip()
    return common.Launch(
        str(Path(__file__).resolve()),
        name,
        order,
        python=common.interpreters(options.interpreter).get(options.framework, sys.executable),
        tokens=[gpu["token"]],
        scratch=scratch,
        extra=environment,
    )


def described(rung: Rung, launch: common.Launch) -> dict[str, Any]:
    """What was run, and what it found."""
    return {
        "says": rung.says,
        "tier": rung.tier,
        "options": rung.options,
        "xla_flags": rung.xla_flags,
        "precision": launch.order["precision"],
        "batch": launch.order["batch"],
        "seconds": round(launch.seconds, 1),
        "error": launch.error,
    } | launch.answer()


def compared(content: dict[str, Any], answer: dict[str, Any], platform: str) -> dict[str, Any]:
    """The first losses beside the base's: the largest relative difference."""
    base = content["rungs"].get(content["base"], answer).get("losses", [])
    count = LOSSES_COMPARED[platform]
    pairs = list(zip(base[:count], answer.get("losses", [])[:count], strict=False))
    if len(pairs) < count:
        return {}
    difference = max(abs(own / known - 1) for known, own in pairs)
    return {
        "losses_compared": count,
        "loss_difference": float(f"{difference:.3g}"),
        "losses_agree": difference <= LOSS_TOLERANCE[platform],
    }


def last_line(error: str) -> str:
    """The line of a traceback that says what went wrong."""
    return error.strip().splitlines()[-1][:300] if error.strip() else ""


def show(content: dict[str, Any]) -> None:
    """One row for each variant, in the order of the run."""
    rows: list[list[Any]] = [
        ["rung", "images/s", "ms a step", "to base", "first call s", "peak GiB", "loss difference"]
    ]
    base = content["rungs"][content["base"]].get("images_per_second")
    for name in content["order"]:
        found = content["rungs"][name]
        if "images_per_second" not in found:
            continue
        peak = found.get("peak_bytes")
        rows.append(
            [
                name,
                f"{found['images_per_second']:.0f}",
                found["mean_ms"],
                found["images_per_second"] / base if base else "-",
                found["first_call_seconds"],
                peak / 2**30 if peak else "-",
                str(found.get("loss_difference", "-")) + ("" if found.get("losses_agree", True) else " DIFFERS"),
            ]
        )
    print(common.table(rows))
    for name in content["order"]:
        if content["rungs"][name]["error"]:
            print(f"FAILED {name}: {last_line(content['rungs'][name]['error'])}")
    for name, why in content["left_out"].items():
        print(f"LEFT OUT {name}: {why}")


if __name__ == "__main__":
    main()
