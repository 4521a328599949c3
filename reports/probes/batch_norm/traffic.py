"""How much does a step of ResNet-50 read and write on an H200, by the program that XLA makes of it?

python reports/probes/batch_norm/traffic.py [--out FILE] [--module FILE] [--setting NAME ...]

No GPU is needed: jax[cuda13] compiles for one that it is told about. It does not autotune then, so the program may have
other kernels than on a GPU in convolutions, but the same fusions. With `--module`, a program of TensorFlow
(tf_module.py) instead of JAX's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[1]), str(HERE.parents[1] / "kernels")]

import h200
import hlo_bytes
import jax
import jax.numpy as jnp
import rows
from jax.experimental import topologies

from harness import workloads
from harness.contract import Job, World
from jax_impl import models, optim
from jax_impl.strategies.single import make_step
from jax_impl.train_state import TrainState

BATCH = 256


def of_jax(device: Any, settings: dict[str, bool]) -> str:
    """The program of the suite's step on one device: the strategy `single`."""
    workload = workloads.get("resnet50", "imagenet")
    world = World(rank=0, local_rank=0, processes=1, devices=1, platform="gpu", cores=1, rendezvous="")
    job = Job(
        world=world, workload=workload, params={}, optimizer=workload.optimizer, precision="bf16", global_batch=BATCH,
        normalization="global", options={}, settings=settings,
    )  # fmt: skip
    there = jax.sharding.SingleDeviceSharding(device)

    def placed(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there)

    images = jax.ShapeDtypeStruct((BATCH, *workload.input_shape), jnp.float32)
    labels = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    network: Any = models.build(workload, precision="bf16", settings=settings)
    found = jax.eval_shape(network.init, jax.random.key(0), images)
    optimizer = jax.eval_shape(optim.build(workload.optimizer).init, found["params"])
    state = TrainState(found["params"], optimizer, found["batch_stats"])
    given = jax.tree.map(placed, (state, images, labels))
    return jax.jit(make_step(job), donate_argnums=0).lower(*given).compile().as_text()


def of_module(device: Any, module: bytes) -> str:
    """The program of a serialized module of XLA's. JAX has no public function for this."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    with mlir.make_ir_context():
        parsed: Any = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(module))
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        devices = _jax.DeviceList((device,))
        loaded = device.client.compile(parsed, executable_devices=devices, compile_options=options)
    return loaded.hlo_modules()[0].to_string()


def main() -> None:
    parser = rows.arguments()
    parser.add_argument("--module", type=Path, help="a program by tf_module.py, with the same settings")
    given = parser.parse_args()
    (device,) = topologies.get_topology_desc(platform="cuda", target_config=h200.DESCRIPTION, topology="1x1x1").devices
    settings = dict.fromkeys(given.setting, True)
    text = of_module(device, given.module.read_bytes()) if given.module else of_jax(device, settings)
    row = {"program": "TensorFlow" if given.module else "JAX", "settings": given.setting, "jax": jax.__version__}
    row["bytes"] = hlo_bytes.of_text(text)
    rows.note(row, given.out)


if __name__ == "__main__":
    main()
