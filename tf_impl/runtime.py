"""Starting TensorFlow in a worker, meeting the other ranks, and what it says of itself."""

from __future__ import annotations

import keras
import tensorflow as tf

from harness.contract import DevicesMissing, World
from harness.specs import Precision

DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "float32"}
"""What parameters and inputs are stored in. bf16 is Keras' mixed_bfloat16: it computes in bfloat16."""


def start(world: World, precision: Precision) -> None:
    """Threads, devices and number formats. All of these are process-wide and must precede the first operation."""
    tf.config.threading.set_intra_op_parallelism_threads(world.cores)
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    keras.config.set_image_data_format("channels_last")  # whatever ~/.keras/keras.json says
    keras.config.set_floatx(DTYPES[precision])
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bf16" else DTYPES[precision])
    if world.platform == "cpu":
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * world.devices)
    for gpu in tf.config.list_physical_devices("GPU") if world.platform == "gpu" else ():
        tf.config.experimental.set_memory_growth(gpu, True)  # else one process takes all memory at once
    found = tf.config.list_logical_devices(world.platform.upper())
    if len(found) < world.devices:
        raise DevicesMissing(
            f"TensorFlow sees {len(found)} devices of platform {world.platform}, needs {world.devices}; "
            "for GPUs: pip install 'tensorflow[and-cuda]' in an environment of its own, and --interpreter tf=PATH"
        )


def devices(world: World) -> list[str]:
    """The names of the devices that this process drives."""
    return [device.name for device in tf.config.list_logical_devices(world.platform.upper())[: world.local_devices]]


def sync(world: World) -> None:
    """Wait until all devices are idle: on GPUs operations return before they are done."""
    tf.test.experimental.sync_devices()


def barrier(world: World) -> None:
    """Wait for all ranks: every strategy here is one process, which has nobody to wait for."""
    assert world.processes == 1


def peak_bytes(world: World) -> int | None:
    """Most memory that tensors took on one of this process's GPUs so far, in bytes; None on the CPU."""
    if world.platform == "cpu":
        return None
    return max(tf.config.experimental.get_memory_info(name)["peak"] for name in devices(world))


def versions(world: World) -> dict[str, str]:
    """Versions beside those of the packages."""
    if world.platform == "cpu":
        return {}
    info = tf.sysconfig.get_build_info()
    return {"built for CUDA": info.get("cuda_version", "?"), "built for cuDNN": info.get("cudnn_version", "?")}
