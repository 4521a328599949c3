"""How exact is one step in float64 on a GPU, and what makes it less exact?

    python probe.py [--out FOLDER] [--only a,b] [--interpreter tf=PYTHON] [--tiny]

`single` on ResNet-50 `tiny` makes one step. Each variant's update is compared with that of JAX on the CPU, tensor by
tensor. All variants start at the same time, on the GPUs in turn. `--tiny` makes all of them on the CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

from harness.gate import xla
from harness.gate.parity import FLOOR, relative_error
from harness.spec import Track

REFERENCE = "jax on the CPU"
LIMIT = 300.0  # seconds for all
WORST = 6  # tensors of each variant in results.json


@dataclass(frozen=True)
class Variant:
    framework: str
    track: Track = "tuned"
    flags: str = ""
    settings: dict[str, bool] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"XLA_FLAGS": self.flags} if self.flags else {}


VARIANTS = {
    REFERENCE: Variant("jax", "defaults"),
    "torch": Variant("torch", "defaults"),
    "torch tuned": Variant("torch", settings={"coordinate_descent": False}),
    "jax": Variant("jax", "defaults"),
    "jax with space_to_depth": Variant("jax", "defaults", settings={"space_to_depth": True}),
    "jax with gathered_pooling": Variant("jax", "defaults", settings={"gathered_pooling": True}),
    "jax tuned": Variant("jax"),
    "jax tuned without autotuning": Variant("jax", flags="--xla_gpu_autotune_level=0"),
    "jax tuned without Triton": Variant("jax", flags="--xla_gpu_enable_triton_gemm=false"),
    "jax tuned and deterministic": Variant("jax", flags="--xla_gpu_deterministic_ops=true"),
    "jax tuned without command buffers": Variant("jax", flags="--xla_gpu_enable_command_buffer="),
    "jax tuned without the pass": Variant("jax", flags=xla.exact("")),
    "tf tuned": Variant("tf"),
    "tf tuned without the pass": Variant("tf", flags=xla.exact("")),
}


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    """Saves how far one step moves each tensor."""
    built = common.Built(order, rank)
    start = built.workload.init_params(0)
    built.program.step(built.program.place(built.batches(0).batch(0, order["batch"], dtype=built.dtype)))
    end = next(iter(built.program.export()))
    moved: dict[str, Any] = {name: np.asarray(end[name]) - array for name, array in start.items()}
    np.savez(folder / "moved.npz", **moved)
    common.write_json(folder / f"answer{rank}.json", built.facts())


def errors(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> dict[str, float]:
    """As the gate defines them."""
    own = {name: float(np.max(np.abs(array))) for name, array in right.items()}
    floor = FLOOR * max(own.values())
    return {name: relative_error(found[name], right[name], max(own[name], floor)) for name in right}


def main() -> None:
    options = common.arguments(__doc__).parse_args()
    if options.worker:
        common.work(options, worker)
    used, pythons = common.devices(options), common.interpreters(options.interpreter)
    wanted = {REFERENCE, *options.only.split(",")} if options.only else set(VARIANTS)
    results = common.Results(options.out or Path(__file__).parent, common.about(options, used) | {"variants": {}})
    with tempfile.TemporaryDirectory(prefix="float64-", dir=options.scratch) as scratch:
        launches = {}
        for index, (name, variant) in enumerate(VARIANTS.items()):
            if name not in wanted or variant.framework not in pythons:
                continue
            on_cpu = options.tiny or name == REFERENCE
            settings = {**variant.settings, **({"compile": False, "cuda_graphs": False} if options.tiny else {})}
            order = common.order_of(
                variant.framework, "single", track=variant.track, precision="fp64", tiny=on_cpu, settings=settings
            )
            order |= {"size": "tiny", "batch": 12, "own_optimizer": True}  # with momentum, the pass rewrites nothing
            launches[name] = common.Launch(
                __file__, name, order, python=pythons[variant.framework],
                tokens=[used[index % len(used)]["token"]], scratch=Path(scratch),
                extra={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | variant.environment,
            )  # fmt: skip
        deadline = time.monotonic() + LIMIT
        for launch in launches.values():
            launch.wait(deadline)
        compare(launches, results)
    results.write()
    print(results.path)


def compare(launches: dict[str, common.Launch], results: common.Results) -> None:
    """Notes and prints the median error and the worst tensors of each variant."""
    right = dict(np.load(launches[REFERENCE].folder / "moved.npz"))
    rows: list[list[Any]] = [["", "median", "worst", ""]]
    for name, launch in launches.items():
        if launch.error:
            results.content["variants"][name] = {"error": launch.error}
            rows.append([name, "-", "-", launch.error.splitlines()[-1]])
            continue
        each = errors(dict(np.load(launch.folder / "moved.npz")), right)
        worst = sorted(each, key=lambda tensor: -each[tensor])[:WORST]
        found = {"median": float(np.median(list(each.values()))), "worst": {tensor: each[tensor] for tensor in worst}}
        results.content["variants"][name] = found | {"versions": launch.answer()["versions"]}
        rows.append([name, f"{found['median']:.1e}", f"{each[worst[0]]:.1e}", worst[0]])
    print(common.table(rows))


if __name__ == "__main__":
    main()
