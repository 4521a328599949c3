"""How exact is a convolution in float32 on a GPU, by what cuDNN is allowed to choose?

    python probe.py [--out FOLDER] [--only a,b] [--interpreter tf=PYTHON] [--tiny]

Each convolution of mnist_cnn, `tiny` and `base`, and some of 3 x 3, are computed by themselves, forward and both
gradients, without TF32. The results are compared with NumPy's in float64. Each variant is a process with its own
environment variables. Where an error is large, the kernels are listed that JAX and PyTorch ran. `--tiny` tries the
script on the CPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "two_gpus")]
import common
import traces

# side of the image, width of the kernel, channels in and out; without padding
SHAPES = {
    "tiny conv1": (28, 5, 1, 3), "tiny conv2": (12, 5, 3, 4),
    "base conv1": (28, 5, 1, 20), "base conv2": (12, 5, 20, 50),
    "3 x 3, 3 to 32": (30, 3, 3, 32), "3 x 3, 32 to 64": (16, 3, 32, 64), "3 x 3, 64 to 64": (16, 3, 64, 64),
}  # fmt: skip
IMAGES = (8, 16, 32, 64, 128, 256)
LARGE = 1e-5  # an error of float32 is 1e-7 to 1e-6
WITHOUT_WINOGRAD = {"TF_ENABLE_WINOGRAD_NONFUSED": "0"}
VARIANTS: dict[str, dict[str, str]] = {
    "jax": {},
    "jax without Winograd": WITHOUT_WINOGRAD,
    "jax without autotuning": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},
    "jax deterministic": {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
    "torch": {},
    "torch benchmark": {},
    "tf": {},
    "tf without Winograd": WITHOUT_WINOGRAD,
}
Call = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, ...]]


def reference(x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
    """Output, gradient of the images, and gradient of the kernel (H, W, in, out), in float64."""
    width = len(kernel)
    windows = np.lib.stride_tricks.sliding_window_view(x, (width, width), axis=(1, 2))  # n, h, w, in, i, j
    y = np.tensordot(windows, kernel, ((4, 5, 3), (0, 1, 2)))
    dkernel = np.tensordot(windows, dy, ((0, 1, 2), (0, 1, 2))).transpose(1, 2, 0, 3)
    dx = np.zeros_like(x)
    for i in range(width):
        for j in range(width):
            dx[:, i : i + y.shape[1], j : j + y.shape[2]] += dy @ kernel[i, j].T
    return y, dx, dkernel


def by_jax(about: dict[str, Any], options: Any) -> Call:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")

    def both(x: Any, kernel: Any, dy: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y, back = jax.vjp(
            lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=numbers), x, kernel
        )
        return y, *back(dy)

    def call(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        given = [jnp.asarray(each) for each in arrays]
        made = jax.jit(both).lower(*given).compile()
        # %cudnn-conv-bw-filter.1 = ... "algo_id":"17", ... "tuning_knobs":{"25":"0"}, ...
        plain = made.as_text().replace("\\", "")
        found = re.findall(r'%(cudnn-conv[\w-]*).*?"algo_id":"(\d+)".*?"tuning_knobs":(\{.*?\})', plain)
        about["algorithms"] = {name: f"{number} {knobs}" for name, number, knobs in found}
        result = tuple(np.asarray(each) for each in made(*given))

        def kernels() -> list[str]:
            with tempfile.TemporaryDirectory() as folder:
                with jax.profiler.trace(folder):
                    jax.block_until_ready(made(*given))
                events = traces.of_xplane(Path(folder), "cpu" if options.tiny else "gpu")
            return sorted({name for found in events.values() for name, _, _ in found})

        about["kernels"] = kernels
        return result

    return call


def by_torch(about: dict[str, Any], options: Any) -> Call:
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = "benchmark" in options.variant
    device = "cpu" if options.tiny else "cuda"

    def call(x: np.ndarray, kernel: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        images, filters, back = (
            torch.tensor(each.transpose(order)).contiguous().to(device)
            for each, order in ((x, (0, 3, 1, 2)), (kernel, (3, 2, 0, 1)), (dy, (0, 3, 1, 2)))
        )

        def both() -> tuple[Any, ...]:
            y = torch.nn.functional.conv2d(images.requires_grad_(), filters.requires_grad_())
            return y, *torch.autograd.grad(y, (images, filters), back)

        def kernels() -> list[str]:
            with torch.profiler.profile() as profile:
                both()
                if device == "cuda":
                    torch.cuda.synchronize()
            return sorted({event.name for event in profile.events() if "CUDA" in str(event.device_type)})

        about["kernels"] = kernels
        y, dx, dkernel = (each.detach().cpu().numpy() for each in both())
        return y.transpose(0, 2, 3, 1), dx.transpose(0, 2, 3, 1), dkernel.transpose(2, 3, 1, 0)

    return call


def by_tf(about: dict[str, Any], options: Any) -> Call:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)  # others may use it

    @tf.function(jit_compile=True)
    def both(x: Any, kernel: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, kernel))
            y = tf.nn.conv2d(x, kernel, 1, "VALID")
        return y, *tape.gradient(y, (x, kernel), output_gradients=dy)

    return lambda *arrays: tuple(each.numpy() for each in both(*map(tf.constant, arrays)))


def worker(options: Any) -> None:
    """Print a line of JSON for each convolution and number of images."""
    about: dict[str, Any] = {}
    call = {"jax": by_jax, "torch": by_torch, "tf": by_tf}[options.variant.split()[0]](about, options)
    for name, (side, width, inputs, outputs) in SHAPES.items():
        for images in IMAGES[:2] if options.tiny else IMAGES:
            random, left = np.random.default_rng(0), side - width + 1
            shapes = (images, side, side, inputs), (width, width, inputs, outputs), (images, left, left, outputs)
            given = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
            right = reference(*(each.astype(np.float64) for each in given))
            found = call(*given)
            errors = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, right, strict=True)]
            row: dict[str, Any] = {"convolution": name, "images": images}
            row |= {key: float(f"{error:.2g}") for key, error in zip(("y", "dx", "dkernel"), errors, strict=True)}
            row |= {"algorithms": about.get("algorithms", {})}
            if (max(errors) > LARGE or options.tiny) and "kernels" in about:
                row["kernels"] = about["kernels"]()
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--variant", default="")
    options = parser.parse_args()
    if options.variant:
        worker(options)
        return
    used = common.devices(options)[:1]
    pythons = common.interpreters(options.interpreter)
    content: dict[str, Any] = {**common.about(options, used), "rows": [], "errors": {}}
    results = common.Results(options.out or Path(__file__).parent, content)
    wanted = [name for name in VARIANTS if name in (options.only.split(",") if options.only else VARIANTS)]
    for name in wanted:
        python = pythons.get(name.split()[0], sys.executable)
        flags = [f"--variant={name}", *(["--tiny"] if options.tiny else [])]
        environment = os.environ | common.CAREFUL | {"TF_CPP_MIN_LOG_LEVEL": "3"} | VARIANTS[name]
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""} if options.tiny else {}
        ran = subprocess.run(
            [python, __file__, *flags], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        content["rows"] += [
            {"variant": name, **json.loads(line)} for line in ran.stdout.splitlines() if line[:1] == "{"
        ]
        if ran.returncode:
            content["errors"][name] = ran.stderr[-500:]
        results.write()
    show(content)


def show(content: dict[str, Any]) -> None:
    """Of each variant, the largest error of each kind, and the rows with a large one."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in content["rows"]:
        found.setdefault(row["variant"], []).append(row)
    kinds = ("y", "dx", "dkernel")
    print(
        common.table(
            [["", *kinds], *([name, *(max(r[kind] for r in rows) for kind in kinds)] for name, rows in found.items())]
        )
    )
    for row in content["rows"]:
        if max(row[kind] for kind in kinds) > LARGE:
            print(json.dumps(row))
    print("errors:", content["errors"])


if __name__ == "__main__":
    main()
