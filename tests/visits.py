"""Scripts of tests/rooms, run in a framework's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from conftest import TESTS, python

ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def visit(framework: str, room: str, *arguments: str, gpus: bool = False, **variables: str) -> list[Any]:
    """The lines of JSON that a room prints. `gpus`: whether it sees them. `variables`: of its environment."""
    done = subprocess.run(
        [python(framework), TESTS / "rooms" / room, *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)} | ({} if gpus else ON_CPU) | variables,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
