"""The lessons of docs/lessons: short scripts without the suite that train as its reference does."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, make_spec, python

from harness import workloads
from harness.reference import loops

LESSONS = ROOT / "docs" / "lessons"
MAKE_INPUTS = LESSONS / "make_inputs.py"
SCRIPTS = {path.stem: path for path in sorted(LESSONS.glob("*_*.py")) if path != MAKE_INPUTS}
COMMANDS = {
    Path(shlex.split(command)[-1]).stem: shlex.split(command)
    for command in re.findall(r"`([^`]* docs/lessons/\w+\.py)` \|\n", (LESSONS / "README.md").read_text("utf-8"))
}
STEPS, RANKS, SYNC_EVERY = 6, 2, 4
TOLERANCE = 1e-9
"""Relative. Rounding in float64 is 2e-16 an operation, and a step of this network sums some hundred numbers."""
LAUNCHERS = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}


def run(framework: str, *arguments: str | Path, folder: Path) -> list[str]:
    """The lines that a script prints, run as the README runs it, but in `folder`."""
    command = [python(framework), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the inputs of the lessons are."""
    path = tmp_path_factory.mktemp("lessons")
    run("torch", MAKE_INPUTS, folder=path)
    return path


@pytest.fixture(scope="module")
def golden(references) -> dict[str, np.ndarray]:
    """By algorithm, the losses of the suite's reference on the batches that the suite trains on."""
    spec, toy = make_spec(), workloads.get("toy", "base")
    references.prepare(spec)
    batches = [references.batches(spec).batch(step, spec.global_batch) for step in range(STEPS)]
    known = (toy, toy.init_params(spec.seed), batches)
    local = loops.train_locally(*known, optimizer=toy.optimizer, workers=RANKS, sync_every=SYNC_EVERY)
    return {"synchronous": loops.train(*known, optimizer=toy.optimizer).losses, "local": local.losses}


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("lesson", SCRIPTS)
def test_a_lesson_trains_as_the_reference_does(lesson, folder, golden):
    launcher, *rest = COMMANDS[lesson]
    printed = run(lesson.split("_")[0], *LAUNCHERS[launcher], *rest[:-1], SCRIPTS[lesson], folder=folder)
    expected = golden["local" if lesson == "torch_local_sgd" else "synchronous"]
    assert [float(line) for line in printed] == pytest.approx(expected.tolist(), rel=TOLERANCE, abs=0)


def test_local_sgd_differs_by_more_than_the_tolerance(golden):
    apart = np.abs(golden["local"] / golden["synchronous"] - 1)
    assert apart[1:].min() > 5 * TOLERANCE  # the first loss is that of the initial weights


def test_every_lesson_is_listed_and_says_how_it_is_run():
    assert COMMANDS.keys() == SCRIPTS.keys()
    for name, path in SCRIPTS.items():
        assert shlex.join(COMMANDS[name]) in path.read_text("utf-8")


@pytest.mark.parametrize("lesson", SCRIPTS)
def test_a_lesson_is_short_and_needs_only_its_framework(lesson):
    code = SCRIPTS[lesson].read_text("utf-8")
    assert len(code.splitlines()) <= 40
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    allowed = {"torch": {"torch"}, "jax": {"jax"}, "tf": {"tensorflow", "keras"}}[lesson.split("_")[0]]
    assert imported <= allowed | {"functools", "numpy"}
