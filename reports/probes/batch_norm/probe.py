"""How large is the gradient of ResNet's first bias in bf16, with Flax's BatchNorm and with `batch_norm_relu`?

python reports/probes/batch_norm/probe.py [--out FILE] [--images 32,64,128,256] [--full]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from jax_impl.models.resnet50 import Model

DEPTHS = {"depth1": 2, "depth2": 1, "depth3": 1, "depth4": 1}
FULL = {"depth1": 3, "depth2": 4, "depth3": 6, "depth4": 3}
CLASSES, SEED = 1000, 0


def network(dtype: Any, *, flax: bool, full: bool) -> Model:
    """A small ResNet, or ResNet-50; with Flax's BatchNorm, or with the setting `batch_norm_relu`."""
    known: dict[str, Any] = (FULL if full else DEPTHS) | {"width": 64 if full else 16, "batch_norm_relu": not flax}
    return Model(dtype=dtype, param_dtype=jnp.float32, classes=CLASSES, **known)


def gradients(model: Model, variables: Any, images: jax.Array, labels: jax.Array) -> Any:
    """The gradients of the mean cross entropy, at the initial weights."""

    def loss(params: Any) -> jax.Array:
        given = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, _ = model.apply(given, images.astype(model.dtype), mutable=["batch_stats"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean()

    return jax.jit(jax.grad(loss))(variables["params"])


def measure(count: int, *, size: int, full: bool) -> dict[str, Any]:
    """For a batch of so many images of random noise: the norms of two gradients, over those in float32."""
    keys = jax.random.split(jax.random.key(SEED), 3)
    images = jax.random.normal(keys[0], (count, size, size, 3))
    labels = jax.random.randint(keys[1], (count,), 0, CLASSES)
    exact = network(jnp.float32, flax=False, full=full)
    variables = jax.jit(exact.init)(keys[2], images[:1])
    right = gradients(exact, variables, images, labels)["bn1"]
    row: dict[str, Any] = {"images": count}
    for name, flax in (("Flax", True), ("suite", False)):
        found = gradients(network(jnp.bfloat16, flax=flax, full=full), variables, images, labels)["bn1"]
        for leaf in ("bias", "scale"):
            norms = [float(np.linalg.norm(np.asarray(each[leaf], np.float64))) for each in (found, right)]
            row[f"{name}, {leaf}"] = norms[0] / norms[1]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    parser.add_argument("--images", default="32,64,128,256", help="sizes of batches")
    parser.add_argument("--size", type=int, default=96, help="rows and columns of an image")
    parser.add_argument("--full", action="store_true", help="ResNet-50 instead of a ResNet of 17 layers")
    given = parser.parse_args()
    rows = [measure(int(count), size=given.size, full=given.full) for count in given.images.split(",")]
    for row in rows:
        print(row)
    if given.out:
        device = jax.devices()[0]
        about = {"jax": jax.__version__, "device": device.device_kind, "platform": device.platform, "size": given.size}
        given.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
