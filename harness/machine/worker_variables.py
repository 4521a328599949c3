"""The environment variables of workers: which of the caller's they get, and which the suite sets."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from harness.spec import Gpu
from harness.spec.recorded_variables import recorded

# Workers get only these of the caller's variables: a stale RANK, MASTER_ADDR or TF_CONFIG must not reach them.
PASSED = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "CC", "CXX")
PASSED_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_TF32", "NVIDIA_VISIBLE", "NVIDIA_DRIVER", "NCCL_", "NVSHMEM_", "CUDNN_", "CUBLAS_", "TORCH",
    "PYTORCH_", "JAX_", "XLA_", "TF_CPP_", "TF_XLA_", "TF_CUDNN_", "TF_GPU_", "TF_ENABLE_", "TF_FORCE_", "TF_NUM_",
    "TF_DETERMINISTIC_", "GLOO_",
)  # fmt: skip
# Variables with these words in their names are taken for secrets, and not passed on.
SECRETS = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|KEY$|KEY_ID|_PASS$", re.IGNORECASE)
NO_SECRETS = ("NCCL_IB_PKEY",)  # the index of an InfiniBand partition


def worker_environment(*, gpus: Sequence[Gpu], cores: int, own: dict[str, str], code: Path) -> dict[str, str]:
    """All environment variables of one rank. `gpus`: those that it may see. `own` are the framework's, which win over
    the caller's."""
    environment = _passed() | own
    # Absolute, because workers have a working directory of their own.
    places = [str(Path(place).absolute()) for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    environment["PYTHONPATH"] = os.pathsep.join([str(code), *places])
    environment["PYTHONUNBUFFERED"] = "1"
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.token for gpu in gpus)
    # Every library with a thread pool gets the same number of threads.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        environment[name] = str(cores)
    return environment


def inherited() -> dict[str, str]:
    """The caller's variables that reach workers and can change a result. Repeating a run needs them as well."""
    return recorded(_passed())


def _passed() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if (name in PASSED or name.startswith(PASSED_PREFIXES)) and (name in NO_SECRETS or not SECRETS.search(name))
    }
