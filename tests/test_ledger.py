"""How programs ran, as found: what each framework's package reads, and what the worker notes of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TESTS, python

from harness.gate.execution import collected, most_frequent
from harness.spec import Execution
from harness.worker import execution as noting

ENTRIES = {item.name for item in fields(Execution)} - {"input"}  # which only the worker knows


def broken() -> Mapping[str, str]:
    raise ValueError("no such profile\nand more")


def test_an_entry_that_cannot_be_read_costs_no_other_entry():
    found = collected({"state": lambda: {"threads": "2"}, "step": broken, "rest": lambda: {"graphs": "none"}})
    assert found == {"threads": "2", "graphs": "none", "unread": "step: ValueError: no such profile"}


def test_three_names_are_listed_by_their_frequency_and_shortened():
    names = ["once", *["thrice"] * 3, *["twice"] * 2, "x" * 200, "x" * 200, "y"]
    first, second, third, rest = most_frequent(names).split(", ")
    assert (first, second, third) == ("thrice", "twice", "x" * 60)
    assert rest.startswith("2 ")
    assert most_frequent([]) == ""


class NotedOnly:
    """Collects what is noted."""

    def __init__(self) -> None:
        self.execution: Any = None

    def progress(self, activity: str) -> None: ...

    def note(self, execution: Execution) -> None:
        self.execution = execution


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (None, Execution(input="loader")),
        (lambda program, placed: {"graphs": f"{program} {placed}"}, Execution(input="loader", graphs="p ()")),
        (lambda program, placed: broken(), Execution(input="loader", unread="ledger: ValueError: no such profile")),
    ],
)
def test_what_fails_in_a_package_is_noted_and_raises_nothing(monkeypatch, ledger, expected):
    module = ledger and SimpleNamespace(execution=ledger)
    monkeypatch.setattr(noting, "optional_module", lambda package, name: module)
    context: Any = SimpleNamespace(draft=NotedOnly(), order=SimpleNamespace(package="some_impl"))
    noting.note_execution(context, "p", (), fed="loader")
    assert context.draft.execution == expected


def test_an_entry_that_no_record_has_is_noted_as_unread(monkeypatch):
    module = SimpleNamespace(execution=lambda program, placed: {"colour": "red"})
    monkeypatch.setattr(noting, "optional_module", lambda package, name: module)
    context: Any = SimpleNamespace(draft=NotedOnly(), order=SimpleNamespace(package="some_impl"))
    noting.note_execution(context, "p", (), fed="resident")
    assert context.draft.execution.input == "resident"
    assert "colour" in context.draft.execution.unread


def read(framework: str, strategy: str, *settings: str, devices: int = 1) -> tuple[dict[str, str], dict[str, str]]:
    """What a package reads of a tiny program with a batch, and without one."""
    environment = {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python(framework), TESTS / "rooms" / "ledger.py", framework, strategy, str(devices), *settings],
        env=os.environ | environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for entries in found.values():
        assert set(entries) <= ENTRIES
        assert entries["unread"] == ""
    return found["timed"], found["trained"]


@pytest.mark.frameworks
def test_torch_says_how_images_and_kernels_lie_and_what_is_compiled():
    plain, trained = read("torch", "single")
    assert "OIHW" in plain["layout"]
    assert "eager" in plain["compiled"]
    assert "convolution_backward" in plain["convolutions"]
    assert plain["threads"].startswith("2 ")
    assert trained["compiled"] == plain["compiled"]
    tuned, _ = read("torch", "single", "channels_last", "compile")
    assert tuned["layout"] == "images NHWC, kernels OHWI"
    assert all(word in tuned["compiled"] for word in ("torch.compile", "network", "loss", "mode default"))


@pytest.mark.frameworks
def test_jax_says_what_xla_compiled():
    found, trained = read("jax", "single")
    assert found["layout"] == "images NHWC, kernels HWIO"
    assert "jit_step" in found["compiled"]
    assert "convolution" in found["convolutions"]
    assert "compiled" not in trained


@pytest.mark.frameworks
def test_tensorflow_says_what_is_in_its_graph():
    plain, _ = read("tf", "single")
    assert "NHWC" in plain["layout"]
    assert "Conv2DBackpropFilter" in plain["convolutions"]
    assert "loss_and_gradients" not in plain["compiled"]
    compiled, _ = read("tf", "single", "xla")
    assert "loss_and_gradients" in compiled["compiled"]


SEVERAL = {
    "torch": ("model_parallel", "pipeline"),
    "jax": ("model_parallel", "pipeline", "pipeline_spmd", "pmap"),
    "tf": ("model_parallel", "mirrored"),
}


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("framework", "strategy"), [(name, strategy) for name, strategies in SEVERAL.items() for strategy in strategies]
)
def test_programs_on_several_devices_are_read_too(framework, strategy):
    found, _ = read(framework, strategy, devices=2)
    assert all(found[entry] for entry in ("layout", "compiled", "convolutions"))
