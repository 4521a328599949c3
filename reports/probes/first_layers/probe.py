"""What do ResNet's first layers cost, and what do the settings of its layers bring?

    python probe.py layers|steps FRAMEWORK [--out FOLDER] [--only a,b] [--tiny]

`layers` times the first convolution, its weights' gradient and max pooling by themselves, as they are and in other
forms (torch, jax). `steps` times the suite's tuned `single` with and without the settings (torch, jax, tf). All in bf16
with 256 images of 224 x 224, one after another in one process on one GPU. `--tiny` tries the script on a CPU.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.spec import registry

STEPS = {"warm-up": 80, "block": 50, "blocks": 4}
OF_LAYERS = ("space_to_depth", "gathered_pooling", "batch_norm_relu")  # the last: see ../batch_norm
LADDER = ((), OF_LAYERS[:1], OF_LAYERS[:2], OF_LAYERS)
LADDERS = {
    "torch": (*LADDER, (*OF_LAYERS, "max_autotune_pointwise", "coordinate_descent")),
    "jax": LADDER,
    "tf": LADDER,
}
"""The settings of each variant that are not on in all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("layers", "steps"))
    parser.add_argument("framework", choices=("torch", "jax", "tf"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--only", default="", help="steps: numbers of variants, joined by commas; default: all")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    platform = "cpu" if options.tiny else "gpu"
    world = World(rank=0, local_rank=0, processes=1, devices=1, platform=platform, cores=4, rendezvous="")
    runtime = importlib.import_module(f"{options.framework}_impl.runtime")
    tuned = settings_of(options.framework, tiny=options.tiny)
    runtime.start(world, "bf16", tuned)
    found: dict[str, Any] = {"started": time.strftime("%Y-%m-%d %H:%M:%S"), "versions": runtime.versions(world)}
    path = options.out / f"{options.framework}-{options.what}.json"
    options.out.mkdir(parents=True, exist_ok=True)

    def note(name: str, result: Any) -> None:
        found[name] = result
        common.write_json(path, found)
        print(name, result, flush=True)

    if options.what == "steps":
        steps(options, world, runtime, tuned, note)
    else:
        layers = importlib.import_module(f"layers_{options.framework}")
        layers.measure(2 if options.tiny else 256, note)


def settings_of(framework: str, *, tiny: bool) -> dict[str, bool]:
    """The tuned track's settings on a GPU, without those of LADDERS. On a CPU none, so that nothing is compiled."""
    varied = {name for variant in LADDERS[framework] for name in variant}
    known = registry.framework(framework).settings
    return {each.name: "gpu" in each.tuned_on and not tiny and each.name not in varied for each in known}


def steps(options: Any, world: World, runtime: Any, tuned: dict[str, bool], note: Callable[[str, Any], None]) -> None:
    """Milliseconds a step of each variant, in blocks."""
    workload = workloads.get("resnet50", "tiny" if options.tiny else "imagenet")
    count = 8 if options.tiny else 256
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    numbers = [int(number) for number in options.only.split(",") if number]
    for number, variant in enumerate(LADDERS[options.framework]):
        if numbers and number not in numbers:
            continue
        began = time.perf_counter()
        job = Job(
            world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer,
            precision="bf16", global_batch=count, normalization="global", options={},
            settings=tuned | dict.fromkeys(variant, True),
        )  # fmt: skip
        program = importlib.import_module(f"{options.framework}_impl.strategies.single").build(job)
        placed = [program.place(batches.batch(step, count, dtype=np.float32)) for step in range(2)]
        losses = [float(program.loss(program.step(placed[step % 2]))) for step in range(6)]
        first = time.perf_counter() - began

        def block(length: int, program: Any = program, placed: Any = placed) -> float:
            program.sync()
            start = time.perf_counter()
            for step in range(length):
                program.step(placed[step % 2])
            program.sync()
            return (time.perf_counter() - start) / length * 1000

        lengths = dict.fromkeys(STEPS, 1) if options.tiny else STEPS
        block(lengths["warm-up"])
        times = [round(block(lengths["block"]), 3) for _ in range(STEPS["blocks"])]
        speed = round(count / np.median(times) * 1000)
        known = {"ms": times, "images_per_second": speed, "first_steps_seconds": round(first, 1), "losses": losses}
        note(" + ".join(variant) or "without", known)
        del program, placed


if __name__ == "__main__":
    main()
