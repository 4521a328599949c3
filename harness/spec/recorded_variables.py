"""Which environment variables can change a result: those that records show."""

from __future__ import annotations

from collections.abc import Mapping

# Of these, reports show the ones that can change a result, and no personal paths or notices of container images.
RECORDED_PREFIXES = (
    "CUDA_", "NVIDIA_TF32", "NCCL_", "NVSHMEM_", "CUDNN_", "CUBLAS_", "TORCH", "PYTORCH_", "JAX_", "XLA_", "TF_",
    "GLOO_", "OMP_", "MKL_", "OPENBLAS_",
)  # fmt: skip
UNRECORDED = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "NCCL_VERSION", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)  # fmt: skip


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that can change a result."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(RECORDED_PREFIXES) and name not in UNRECORDED
    }
