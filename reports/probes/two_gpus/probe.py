"""How fast is each strategy on two GPUs, or more, beside each GPU on its own, and where does its time go?

    python probe.py [--out FOLDER] [--devices 4] [--workload mnist_cnn] [--only a,b] [--budget 560] [--at-once 5]
                    [--interpreter tf=PYTHON] [--tiny]

Tuned ResNet-50 in bf16, 256 images a GPU, or tuned mnist_cnn in fp32, 64 images a GPU (variants.py). Several programs
are built and compiled at once, then they are timed one after the other while the rest wait: a warm-up, untraced blocks,
then traced steps. Every instant of a traced step on a GPU belongs to a kernel that runs, to a transfer that no kernel
hides, or to nothing. Of a pipeline, each stage's forward and backward of one micro-batch is then timed alone, as a CUDA
graph.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
import traces
from measure import worker
from variants import SMALL, VARIANTS, Variant

NEEDED = {"resnet50": 60, "mnist_cnn": 25}  # seconds that must be left, or no further program is begun
RESIDENT = 4  # batches on the devices, or fewer that have so many images:
RESIDENT_IMAGES = 4096
TINY_BATCH = 32  # in place of a larger one of a variant


def order_of(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
    """What the workers of a variant build."""
    tiny = options.tiny
    batch = min(variant.batch, TINY_BATCH) if tiny else variant.batch
    resident = min(RESIDENT, RESIDENT_IMAGES // max(1, batch))
    searches = ("max_autotune_pointwise", "coordinate_descent") if variant.framework == "torch" else ()
    settings = dict.fromkeys(searches, False)  # they compile for minutes
    settings |= {name: False for name in ("compile",) if tiny and variant.framework == "torch"}
    settings |= variant.settings
    precision = "fp32" if tiny or options.workload == "mnist_cnn" else "bf16"
    order = common.order_of(
        variant.framework, variant.strategy, track="tuned", precision=precision, tiny=tiny, workload=options.workload,
        used=variant.devices, batch=batch, options=variant.options, settings=settings,
        traced_steps=max(options.steps, variant.steps_per_call),
        steps_per_call=variant.steps_per_call, resident=resident, trace=variant.trace,
        stages=variant.stages and not tiny, warmup=options.warmup / (10 if tiny else 1),
        block=options.block / (10 if tiny else 1),
    )  # fmt: skip
    return order


class Prepared:
    """The launches of one variant: of `single` one on each GPU, which are timed at the same time."""

    def __init__(self, variant: Variant, tokens: list[str], options: argparse.Namespace, scratch: Path) -> None:
        self.variant = variant
        self.python = common.interpreters(options.interpreter)[variant.framework]
        groups = [tokens[: variant.devices]] if variant.devices > 1 or variant.first_alone else [[t] for t in tokens]
        extra = {"TORCHINDUCTOR_CACHE_DIR": str(scratch.parent / "inductor"), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        order, name = order_of(variant, options), variant.name.replace(" ", "-")
        self.launches = [
            common.Launch(
                __file__, f"{name}-{index}", order, python=self.python, tokens=group, scratch=scratch,
                extra=extra | variant.environment,
            )
            for index, group in enumerate(groups)
        ]  # fmt: skip

    def ready(self) -> bool:
        """Whether all ranks wait for their turn, or one has failed."""
        running = [launch.running() for launch in self.launches]
        waiting = [
            (launch.folder / f"ready{rank}.json").exists()
            for launch in self.launches
            for rank in range(launch.order["processes"])
        ]
        return all(waiting) or not all(running)

    def measure(self, deadline: float) -> dict[str, Any]:
        """What it finds, in its turn."""
        clocks = [common.Clocks(launch.tokens) for launch in self.launches]
        for launch, read in zip(self.launches, clocks, strict=True):
            read.start()
            (launch.folder / "go").touch()
        for launch, read in zip(self.launches, clocks, strict=True):
            launch.wait(deadline)
            read.stop()
        order = self.launches[0].order
        known = {key: order[key] for key in ("framework", "strategy", "devices", "processes", "batch", "options")}
        known |= {"settings": [name for name, on in order["settings"].items() if on]}
        known |= {"steps_per_call": order["steps_per_call"], "environment": self.variant.environment}
        answers = [[launch.answer(rank) for rank in range(launch.order["processes"])] for launch in self.launches]
        known["ranks"] = [answer for of_launch in answers for answer in of_launch]
        known["error"] = next((launch.error for launch in self.launches if launch.error), "")
        if all(found.get("blocks_ms") for found in known["ranks"]):
            # The slowest rank's: a worker of parameter_server has nothing to call, and needs no time for it.
            times = [max(statistics.mean(found["blocks_ms"]) for found in of_launch) for of_launch in answers]
            rates = [order["batch"] / ms * 1000 for ms in times]
            known["images_per_second"] = round(sum(rates), 1)
            known["images_per_second_of_each"] = [round(rate, 1) for rate in rates]
        for of_launch, read in zip(answers, clocks, strict=True):
            spans = [found["blocks_between"] for found in of_launch if "blocks_between" in found]
            for name, values in read.within(spans).items():
                known[name] = known.get(name, []) + values
        return known

    def read_traces(self, options: argparse.Namespace) -> list[dict[str, Any]]:
        """The kinds on each GPU, in a process with jax, which reads all the formats."""
        found = []
        for launch in self.launches:
            for rank in range(launch.order["processes"]):
                folder = launch.folder / f"trace{rank}"
                if not folder.exists():
                    continue
                steps = launch.answer(rank).get("traced_steps", 1)
                command = [sys.executable, str(Path(traces.__file__)), str(folder), str(steps)]
                command += ["cpu" if options.tiny else "gpu"]
                ran = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=os.environ | {"JAX_PLATFORMS": "cpu"}
                )
                found += json.loads(ran.stdout) if ran.returncode == 0 else [{"error": ran.stderr.strip()[-800:]}]
        return found

    def end(self) -> None:
        for launch in self.launches:
            launch.end()


def wanted(options: argparse.Namespace, used: int) -> list[Variant]:
    """The variants that were asked for and can run, on so many devices if on several."""
    variants = SMALL if options.workload == "mnist_cnn" else VARIANTS
    names = options.only.split(",") if options.only else [variant.name for variant in variants]
    pythons = common.interpreters(options.interpreter)
    plan = [variant for variant in variants if variant.name in names and variant.framework in pythons]
    if options.tiny:  # several steps of PyTorch are one CUDA graph
        plan = [variant for variant in plan if variant.framework != "torch" or variant.steps_per_call == 1]
    return [variant if variant.devices == 1 else replace(variant, devices=used) for variant in plan]


def main() -> None:
    options = arguments()
    if options.worker:
        common.work(options, worker)
    began = time.monotonic()
    used = common.devices(options)
    if len(used) < 2:
        raise SystemExit("there is one GPU, and this probe compares several with one")
    out = options.out or Path(__file__).parent
    earlier = out / "results.json"
    found = json.loads(earlier.read_text()) if options.more and earlier.exists() else {}
    done = {name for name, known in found.get("programs", {}).items() if not known["error"]}
    plan = [variant for variant in wanted(options, len(used)) if variant.name not in done]
    scratch = Path(tempfile.mkdtemp(prefix="two-gpus-", dir=options.scratch))
    content = common.about(options, used) | {"kinds": traces.KINDS, "programs": found.get("programs", {})}
    content |= {"left_out": [], "seconds": found.get("seconds", 0.0)}
    results = common.Results(out, content)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    deadline = began + options.budget
    while plan:
        alike = [variant for variant in plan if (variant.wave, variant.alone) == (plan[0].wave, plan[0].alone)]
        batch = alike[: 1 if plan[0].alone else options.at_once]
        plan = [variant for variant in plan if variant not in batch]
        if time.monotonic() + NEEDED[options.workload] > deadline:
            content["left_out"] += [variant.name for variant in (*batch, *plan)]
            break
        say("prepares " + ", ".join(variant.name for variant in batch))
        waiting = [Prepared(variant, [gpu["token"] for gpu in used], options, scratch) for variant in batch]
        while not all(each.ready() for each in waiting) and time.monotonic() + 10 * len(batch) < deadline:
            time.sleep(0.1)
        for each in waiting:
            known = content["programs"][each.variant.name] = each.measure(deadline)
            say(f"{each.variant.name}: {known.get('images_per_second')} {known['error'][-300:]}")
            results.write()
        for each in waiting:
            content["programs"][each.variant.name]["gpus"] = each.read_traces(options)
            each.end()
        results.write()
    content["seconds"] = round(content["seconds"] + time.monotonic() - began, 1)
    results.write()
    shutil.rmtree(scratch)
    show(content)
    print(f"{content['seconds']} s; {results.path}")


def arguments() -> argparse.Namespace:
    parser = common.arguments(__doc__)
    parser.add_argument("--workload", choices=["resnet50", "mnist_cnn"], default="resnet50")
    parser.add_argument("--steps", type=int, default=3, help="that are traced, or as many as one call makes")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds")
    parser.add_argument("--block", type=float, default=0.8, help="seconds of a block")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for all")
    parser.add_argument("--at-once", type=int, default=5, help="programs that are prepared at the same time")
    parser.add_argument("--more", action="store_true", help="go on: what results.json has is not measured again")
    return parser.parse_args()


def show(content: dict[str, Any]) -> None:
    """Speeds, and ms a step by kind on each GPU."""
    rows: list[list[Any]] = [["", "images/s", "over single", "ms", "SM MHz", "W"]]
    kinds: list[list[Any]] = [["ms a step", "GPU", *traces.ALL]]
    base: dict[str, float] = {}
    for name, known in content["programs"].items():
        rate = known.get("images_per_second")
        if rate and known["strategy"] == "single":
            base.setdefault(known["framework"], statistics.mean(known["images_per_second_of_each"]))
        over = rate / base[known["framework"]] if rate and known["framework"] in base else "-"
        problem = known["error"].rpartition("\n")[2][-60:]
        clocks = [known.get("sm_mhz", "-"), known.get("watts", "-")]
        rows.append([name, rate or "-", over, known["ranks"][0].get("blocks_ms", problem), *clocks])
        for index, gpu in enumerate(known.get("gpus", [])):
            parts = [gpu["kinds_ms"].get(kind, 0.0) for kind in traces.ALL] if "kinds_ms" in gpu else [gpu["error"]]
            kinds.append([name, gpu.get("gpu", index), *parts])
        if known["ranks"][0].get("stage_ms"):
            print(name, "stages alone, ms a micro-batch:", known["ranks"][0]["stage_ms"])
    print(common.table(rows))
    width = max(len(row) for row in kinds)
    print(common.table([row + [""] * (width - len(row)) for row in kinds]))
    print("left out:", content["left_out"])


if __name__ == "__main__":
    main()
