"""Versions of the loaded CUDA libraries, as they report them. What a framework was built for may differ."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAPS = Path("/proc/self/maps")


def _by_argument(function: Callable) -> int:
    version = ctypes.c_int()
    function(ctypes.byref(version))
    return version.value


def _by_result(function: Callable) -> int:
    return int(function())


# A library's title, its file, the function that reports its version, how to call it, and its major and minor units.
LIBRARIES = (
    # docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART____VERSION.html: 1000 major + 10 minor
    ("CUDA runtime", "libcudart", "cudaRuntimeGetVersion", _by_argument, (1000, 10)),
    # cudnn_version.h: 10000 major + 100 minor + patch, since 9
    ("cuDNN", "libcudnn", "cudnnGetVersion", _by_result, (10000, 100)),
    # nccl.h: 10000 major + 100 minor + patch, since 2.9
    ("NCCL", "libnccl", "ncclGetVersion", _by_argument, (10000, 100)),
)


def loaded(maps: Path = MAPS) -> dict[str, str]:
    """Versions by title, e.g. {"cuDNN": "9.19.0"}; several of one library are joined. {} if none can be read."""
    try:
        text = maps.read_text("utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    found = {}
    for title, file, function, ask, units in LIBRARIES:
        # the path follows addresses, permissions, offset, device and inode, and may contain spaces
        pattern = rf"^(?:\S+\s+){{5}}(/.*/{file}[-.0-9a-f]*\.so[.0-9]*)$"
        paths = sorted(set(re.findall(pattern, text, re.MULTILINE)))
        versions = set()
        for path in paths:
            with suppress(OSError, AttributeError):  # no reason for a trial to fail
                versions.add(words(ask(getattr(ctypes.CDLL(path), function)), units))
        if versions:
            found[title] = " and ".join(sorted(versions))
    return found


def words(version: int, units: tuple[int, int]) -> str:
    """13000 as "13.0" in units of (1000, 10), 91900 as "9.19.0" in units of (10000, 100)."""
    major, minor = units
    patch = "" if minor == 10 else f".{version % minor}"
    return f"{version // major}.{version % major // minor}{patch}"
