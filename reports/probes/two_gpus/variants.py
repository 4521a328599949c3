"""What is timed: strategies of the suite as the tuned track runs them, and some with one thing changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One program. `devices`: 1, or as many as the probe uses. `batch`: images of a step, 0 for the network's usual
    number on each device. `wave`: prepared together with others of it.
    """

    name: str
    framework: str
    strategy: str
    wave: int
    devices: int = 2
    batch: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, bool] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    steps_per_call: int = 1
    first_alone: bool = False  # on the first GPU, and not on both at the same time
    stages: bool = False  # whether each stage is timed alone, too
    trace: bool = True

    @property
    def alone(self) -> bool:
        """Whether nothing else may be prepared beside it, because it times its blocks to find a cut."""
        return self.strategy in ("pipeline", "pipeline_schedules", "pipeline_spmd")


def _of(framework: str, wave: int, *strategies: str) -> list[Variant]:
    return [
        Variant(
            name=f"{framework} {strategy}", framework=framework, strategy=strategy, wave=wave,
            devices=1 if strategy == "single" else 2,
        )
        for strategy in strategies
    ]  # fmt: skip


def _deep(framework: str, wave: int, images: int, *, stages: bool = False) -> list[Variant]:
    """One GPU, and a pipeline of eight micro-batches of so many images, with the same batch."""
    micro_batches = {"micro_batches": 8}
    size = f"8 x {images}"
    single = Variant(
        name=f"{framework} single {size}", framework=framework, strategy="single", wave=wave, devices=1,
        batch=8 * images, first_alone=True,
    )  # fmt: skip
    pipeline = Variant(
        name=f"{framework} pipeline {size}", framework=framework, strategy="pipeline", wave=wave, batch=8 * images,
        options=micro_batches, stages=stages,
    )  # fmt: skip
    return [single, pipeline]


def _schedules(wave: int, images: int, *schedules: str) -> list[Variant]:
    """PyTorch's own pipeline with eight micro-batches of so many images, by these schedules."""
    return [
        Variant(
            name=f"torch pipeline_schedules 8 x {images} {schedule}", framework="torch", strategy="pipeline_schedules",
            wave=wave, batch=8 * images, options={"micro_batches": 8, "schedule": schedule},
        )
        for schedule in schedules
    ]  # fmt: skip


_FEW_CHANNELS = {"NCCL_MAX_CTAS": "4"}
_LATENCY_HIDING = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}
_TENSOR_BY_TENSOR = {"flat_gradients": False}
_ONE_BUCKET = {"bucket_cap_mb": 200.0}
_TWO_BUCKETS = {"bucket_cap_mb": 85.0}  # ResNet-50: the last two groups of blocks and the classifier, then the rest
_OWN_BUCKETS = {"bucket_cap_mb": 25.0}  # DDP's default, with which it begins with a bucket of 1 MiB
_EQUAL_BUCKETS = {"bucket_cap_mb": 25.001}
_PROFILE_GUIDED = {"JAX_ENABLE_PGLE": "true", "JAX_PGLE_PROFILING_RUNS": "3"}


def _in_calls_of_16(framework: str, wave: int, strategy: str, devices: int) -> Variant:
    return Variant(
        name=f"{framework} {strategy} with 16 steps a call", framework=framework, strategy=strategy, wave=wave,
        devices=devices, steps_per_call=16,
    )  # fmt: skip


def _jax_with(what: str, wave: int, *strategies: str, **changed: Any) -> list[Variant]:
    return [replace(each, name=f"{each.name} {what}", **changed) for each in _of("jax", wave, *strategies)]


def _without_command_buffers(wave: int, *strategies: str) -> list[Variant]:
    """XLA updates the kernels of a command buffer whose arrays lie elsewhere than in the last call."""
    off = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    return _jax_with("without command buffers", wave, *strategies, environment=off)


def _with_a_thread_per_gpu(wave: int, *strategies: str) -> list[Variant]:
    """XLA's other client launches the kernels of each GPU from a thread of its own, and not from the caller's."""
    client = {"XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT": "1"}
    return _jax_with("with a thread per GPU", wave, *strategies, environment=client)


def _with_fewer_all_reduces(wave: int, *strategies: str) -> list[Variant]:
    """XLA makes one all-reduce of all gradients, at the end of backward; or none runs beside other kernels."""
    combined = {"XLA_FLAGS": "--xla_gpu_all_reduce_combine_threshold_bytes=1073741824"}
    waited_for = {"XLA_FLAGS": "--xla_gpu_disable_async_collectives=allreduce"}
    return [
        *_jax_with("with one all-reduce", wave, *strategies, environment=combined, settings=_TENSOR_BY_TENSOR),
        *_jax_with(
            "with synchronous all-reduces", wave, *strategies, environment=waited_for, settings=_TENSOR_BY_TENSOR
        ),
    ]


def _without_flat_gradients(wave: int, *strategies: str) -> list[Variant]:
    """The gradients cross tensor by tensor: a kernel for each copies it before its all-reduce."""
    return _jax_with("without flat gradients", wave, *strategies, settings=_TENSOR_BY_TENSOR)


def _mirrored_with_less_waiting(wave: int) -> list[Variant]:
    """Mirrored with fewer calls, with calls that return before they are executed, and with calls that wait longer."""
    async_eager, returned = {"asynchronous_execution": True}, {"stored_losses": False}
    rows = [("with 16 steps a call", 16, {}), ("async", 1, async_eager), ("async with 4 steps a call", 4, async_eager)]
    rows += [("with returned losses", 1, returned), ("with returned losses and 4 steps a call", 4, returned)]
    rows += [("with returned losses and 16 steps a call", 16, returned)]
    return [
        Variant(
            name=f"tf mirrored {what}", framework="tf", strategy="mirrored", wave=wave, steps_per_call=steps,
            settings=settings,
        )
        for what, steps, settings in rows
    ]  # fmt: skip


# Of a small network, whose steps are shorter than a call takes.
SMALL = (
    *_of("torch", 0, "single", "ddp", "average_gradients", "pipeline"),
    *_of("jax", 1, "single", "shard_map", "pmap", "multi_process"),
    *_of("tf", 2, "single", "mirrored", "multi_worker_mirrored", "parameter_server"),
    _in_calls_of_16("torch", 3, "single", 1),
    _in_calls_of_16("torch", 3, "average_gradients", 2),
    _in_calls_of_16("jax", 3, "single", 1),
    _in_calls_of_16("jax", 3, "shard_map", 2),
    *_without_command_buffers(4, "single", "shard_map"),
    *_with_a_thread_per_gpu(5, "single", "shard_map"),
)

# In the order in which they are timed. Those of one wave fit into the memory of two H200s together.
VARIANTS = (
    *_of("torch", 0, "single", "ddp", "fsdp", "pipeline", "pipeline_schedules"),
    *_of("jax", 1, "single", "shard_map", "jit_sharding", "pmap", "multi_process"),
    *_of("tf", 2, "single", "mirrored", "multi_worker_mirrored"),
    Variant(name="tf mirrored with 4 steps a call", framework="tf", strategy="mirrored", wave=2, steps_per_call=4),
    *_mirrored_with_less_waiting(2),
    Variant(
        name="tf multi_worker_mirrored with 4 steps a call", framework="tf", strategy="multi_worker_mirrored", wave=2,
        steps_per_call=4,
    ),
    Variant(
        name="tf mirrored with 4 steps a call and the latency-hiding scheduler", framework="tf", strategy="mirrored",
        wave=2, steps_per_call=4, environment=_LATENCY_HIDING,
    ),
    *_of("torch", 3, "average_gradients", "local_sgd", "async_sgd", "data_parallel", "model_parallel"),
    *_deep("torch", 4, 128, stages=True),
    Variant(name="torch ddp with 4 CTAs", framework="torch", strategy="ddp", wave=4, environment=_FEW_CHANNELS),
    Variant(
        name="torch average_gradients with one bucket", framework="torch", strategy="average_gradients", wave=4,
        options=_ONE_BUCKET,
    ),
    Variant(name="torch ddp with two buckets", framework="torch", strategy="ddp", wave=4, options=_TWO_BUCKETS),
    Variant(name="torch ddp with its own buckets", framework="torch", strategy="ddp", wave=4, options=_OWN_BUCKETS),
    Variant(name="torch ddp with equal buckets", framework="torch", strategy="ddp", wave=4, options=_EQUAL_BUCKETS),
    Variant(
        name="torch fsdp with prefetch", framework="torch", strategy="fsdp", wave=4, options={"prefetch": True},
    ),
    *_of("jax", 5, "jit_explicit", "fsdp", "model_parallel", "pipeline", "pipeline_spmd"),
    *_deep("jax", 6, 128),
    *_without_command_buffers(6, "pipeline", "shard_map"),
    *_with_a_thread_per_gpu(6, "single", "shard_map", "pipeline"),
    *_with_fewer_all_reduces(6, "shard_map"),
    *_without_flat_gradients(6, "shard_map", "pmap", "multi_process"),
    *_jax_with("with PGLE", 6, "shard_map", "jit_sharding", "fsdp", environment=_PROFILE_GUIDED),
    *_jax_with("with kept parameters", 6, "fsdp", options={"reshard_after_forward": False}),
    Variant(name="jax shard_map with 4 CTAs", framework="jax", strategy="shard_map", wave=6, environment=_FEW_CHANNELS),
    Variant(name="jax shard_map with 4 steps a call", framework="jax", strategy="shard_map", wave=6, steps_per_call=4),
    *_of("tf", 7, "model_parallel", "parameter_server"),
    Variant(
        name="tf parameter_server with fused BatchNorm", framework="tf", strategy="parameter_server", wave=7,
        settings={"fused_batch_norm": True},
    ),
    Variant(
        name="tf single with 4 steps a call", framework="tf", strategy="single", wave=7, devices=1, steps_per_call=4
    ),
    *_schedules(8, 128, "1f1b", "interleaved_1f1b", "zero_bubble"),
    *_deep("torch", 9, 256, stages=True),
)  # fmt: skip
