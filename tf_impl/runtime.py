"""Start TensorFlow in a worker process, meet the other ranks, and report versions, precision and memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

# Where these are installed, Keras and TensorFlow import them for parts that nothing here uses. That takes a third of
# their start-up time and brings another framework into this process.
for unused in ("jax", "matplotlib", "sklearn"):
    sys.modules.setdefault(unused, None)  # pyright: ignore[reportArgumentType]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from harness.contract import DevicesMissing, World  # noqa: E402
from harness.gate import launch_rate, precision_probe  # noqa: E402
from harness.meeting import Meeting  # noqa: E402
from harness.spec import Precision  # noqa: E402

DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "float32"}
"""The dtype of parameters and inputs. bf16 is Keras' mixed_bfloat16: float32 parameters, computed in bfloat16."""


def start(world: World, precision: Precision, settings: Mapping[str, bool]) -> None:
    """Set threads, devices and number formats. They hold for the whole process and must precede its first operation."""
    tf.config.threading.set_intra_op_parallelism_threads(world.cores)
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    keras.config.set_image_data_format("channels_last")  # overrides ~/.keras/keras.json
    keras.config.set_floatx(DTYPES[precision])
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bf16" else DTYPES[precision])
    if settings.get("asynchronous_execution", False):
        tf.config.experimental.set_synchronous_execution(False)
    # Nothing here may list TensorFlow's logical devices. That starts its context, and a strategy with several processes
    # must be created before the context starts.
    physical = tf.config.list_physical_devices("GPU")
    if world.platform == "cpu":
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * world.local_devices)
    elif len(physical) < world.host_devices:
        raise DevicesMissing(
            f"TensorFlow sees {len(physical)} GPUs, needs {world.host_devices}; for GPUs: pip install "
            "'tensorflow[and-cuda]' in an environment of its own, and --interpreter tf=PATH"
        )
    else:
        own = own_devices(world, physical)
        tf.config.set_visible_devices(own, "GPU")
        for gpu in own:
            tf.config.experimental.set_memory_growth(gpu, True)  # otherwise one process takes all memory at once
    barrier(world)


def own_devices(world: World, of_host: Sequence[Any]) -> Sequence[Any]:
    """Those devices of this host that this process drives."""
    return of_host[world.first_device :][: world.local_devices]


def devices(world: World) -> list[str]:
    """The names of the devices that this process drives."""
    return [device.name for device in tf.config.list_logical_devices(world.platform.upper())[: world.local_devices]]


def sync(names: Sequence[str]) -> None:
    """Wait until all calls have been executed and these devices are idle. Raises the first error of a call.

    With the setting `asynchronous_execution`, calls return before they are executed; leaving an `async_scope` waits for
    them. On GPUs, what they launched may still be running; SyncDevice waits for that, and is such a call itself.
    tf.test.experimental.sync_devices() waits for all devices, but fails if some of them belong to other processes.
    """
    with tf.experimental.async_scope():
        pass
    with tf.experimental.async_scope():
        for name in names:
            with tf.device(name):
                tf.raw_ops.SyncDevice()


@cache
def meeting(world: World) -> Meeting:
    """The place where this process meets the others of its trial."""
    return Meeting(world)


def barrier(world: World) -> None:
    """Wait for all ranks."""
    if world.processes > 1:
        meeting(world).exchange()


def peak_bytes(world: World) -> int | None:
    """Peak memory of tensors so far, in bytes, on the GPU of this process where it is largest; None on the CPU."""
    if world.platform == "cpu":
        return None
    indices = range(world.local_devices)
    return max(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in indices)


def probe(world: World, precision: Precision, settings: Mapping[str, bool]) -> dict[str, float]:
    """The errors of products as they are computed here: harness/gate/precision_probe.py."""
    with tf.device(devices(world)[0]):
        a, b, x, k = (tf.constant(array, DTYPES[precision]) for array in precision_probe.operands().values())
        found = []
        for layer, given, kernel in (
            (keras.layers.Dense(b.shape[1], use_bias=False), a, b),
            (keras.layers.Conv2D(k.shape[3], k.shape[0], use_bias=False), x, k),
        ):
            layer.build(given.shape)
            layer.set_weights([kernel])
            compute = tf.function(layer, jit_compile=settings.get("xla", False))  # as in the step
            found.append(tf.cast(compute(given), DTYPES[precision]).numpy())
        return precision_probe.errors(*found)


def launch_seconds(world: World) -> float:
    """Seconds that the host takes to launch an eager addition to a single number on one of the devices."""
    names = devices(world)[:1]
    with tf.device(names[0]):
        number = tf.zeros(1)
        return launch_rate.seconds_of(lambda: tf.add(number, number), lambda: sync(names))


def versions(world: World) -> dict[str, str]:
    """Versions in addition to those of the packages."""
    if world.platform == "cpu":
        return {}
    info = tf.sysconfig.get_build_info()
    return {"built for CUDA": info.get("cuda_version", "?"), "built for cuDNN": info.get("cudnn_version", "?")}
