"""A machine with GPUs that exist in a JSON file alone: tests/fakes/nvml stands in for NVML."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import FAKES, ROOT

from harness.machine import devices, nvml


def arguments(*, strategy: str = "single", platform: str = "gpu", devices: str = "1") -> list[str]:
    """The arguments of a run of fake cells."""
    cells = ["--framework", "fake", "--workload", "toy", "--strategy", strategy, "--platform", platform]
    return [*cells, "--preset", "smoke", *(["--devices", devices] if devices else [])]


class FakeGpus:
    """The JSON file. What is changed here, a harness that runs meanwhile sees when it next asks."""

    def __init__(self, folder: Path, *gpus: Mapping[str, Any], **about: Any) -> None:
        self._path = folder / "nvml.json"
        self._state: dict[str, Any] = {
            "gpus": [{"uuid": f"GPU-{index}a"} | dict(gpu) for index, gpu in enumerate(gpus)]
        }
        self._state |= about
        self._write()

    def _write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self._path)

    def change(self, index: int, **answers: Any) -> None:
        """Other answers of a GPU from now on."""
        self._state["gpus"][index] |= answers
        self._write()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process see these GPUs until the test ends."""
        spec = importlib.util.spec_from_file_location("fake_pynvml", FAKES / "nvml" / "pynvml.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(nvml, "pynvml", module)
        monkeypatch.setenv("FAKE_NVML", str(self._path))
        devices.machine.cache_clear()

    @property
    def variables(self) -> dict[str, str]:
        """What a harness that shall see these GPUs needs in its environment."""
        path = os.pathsep.join(map(str, (FAKES / "nvml", ROOT, FAKES)))
        return {"PYTHONPATH": path, "FAKE_NVML": str(self._path)}
