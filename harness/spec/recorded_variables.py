"""Which environment variables can change a result: those that records show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Of these, reports show the ones that can change a result, and no personal paths or notices of container images.
RECORDED_PREFIXES = (
    "CUDA_", "NVIDIA_TF32", "NCCL_", "NVSHMEM_", "CUDNN_", "CUBLAS_", "TORCH", "PYTORCH_", "JAX_", "XLA_", "TF_",
    "GLOO_", "OMP_", "MKL_", "OPENBLAS_",
)  # fmt: skip
UNRECORDED = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "NCCL_VERSION", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)  # fmt: skip


HARNESS = Path(__file__).resolve().parents[1]


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that can change a result."""
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(RECORDED_PREFIXES) and name not in UNRECORDED
    }
    return dict(sorted((found | _foreign_code(environment)).items()))


def _foreign_code(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which other code gets into a worker, as another torch might, without the home folder's name."""
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    # Without the places of this suite: a worker finds it through links in a folder of its own.
    places = [place for place in places if Path(place, HARNESS.name).resolve() != HARNESS]
    found = {"PYTHONPATH": os.pathsep.join(places), "LD_PRELOAD": environment.get("LD_PRELOAD", "")}
    home = environment.get("HOME", "").rstrip("/")
    return {name: value.replace(f"{home}/", "~/") if home else value for name, value in found.items() if value}
