"""How programs ran, as found: what each framework's package reads, and what the worker notes of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TESTS, make_result, make_spec, python

from harness.gate.execution import collected, most_frequent
from harness.reporting import document, execution_section, summary
from harness.reporting.model import Section, Table, walk
from harness.spec import Execution, NumberFormats, TrialResult
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


def row(framework: str, *noted: Execution | None, products: str = "float32", **known: Any) -> TrialResult:
    """A timed launch with one rank for each of these."""
    blocks = ((1.0, 1.0),) * len(noted)
    result = make_result(spec=make_spec(framework=framework, strategy="single"), block_seconds=blocks, **known)
    formats = NumberFormats(products={products: "mm"}, optimizer_state={"float32": "momentum"})
    ranks = [
        replace(rank, execution=found, timing=replace(rank.timing, formats=formats))
        for rank, found in zip(result.ranks, noted, strict=True)
        if rank.timing is not None
    ]
    return replace(result, ranks=tuple(ranks))


def sections(*results: TrialResult) -> list[Section]:
    report = document.build(summary.summarize(results), results)
    return [node for node in report.body if isinstance(node, Section) and node.title == execution_section.TITLE]


def parts(*results: TrialResult) -> tuple[str, list[Table]]:
    """The text outside of tables, and the tables."""
    (section,) = sections(*results)
    nodes = list(walk(section))
    return str([node for node in nodes if not isinstance(node, Table)]), [n for n in nodes if isinstance(n, Table)]


ONE = Execution(layout="images NCHW", compiled="no: eager", threads="2", input="resident")


def test_a_report_without_such_notes_has_no_such_section():
    assert sections(row("torch", None)) == []


def test_what_differs_is_a_column_and_what_is_equal_a_sentence():
    other = replace(ONE, layout="images NHWC", compiled="one program")
    text, (table,) = parts(row("torch", ONE), row("jax", other, products="bfloat16"))
    assert [column.name for column in table.columns] == ["cell", "products", "layout", "compiled"]
    assert set(table.values("layout")) == {"images NCHW", "images NHWC"}
    assert set(table.values("products")) == {"float32", "bfloat16"}
    assert "threads: 2" in text and "input: resident" in text and "optimizer state: float32" in text
    assert "NCHW" not in text
    assert "docs/tracks.md" in text


def test_a_single_cell_needs_no_table_and_unknown_entries_are_named():
    text, tables = parts(row("torch", ONE))
    assert tables == []
    assert "images NCHW" in text
    assert "graphs" in text and "convolutions" in text
    assert "libraries" not in text and "BatchNorm" not in text


def test_ranks_that_differ_are_both_shown_and_empty_entries_are_not():
    served = Execution(unread="graph: KeyError: 17")
    text, (table,) = parts(row("torch", ONE, replace(ONE, threads="1")), row("jax", ONE, served))
    assert set(table.values("threads")) == {"2 / 1", "2"}
    assert "KeyError: 17" in text


def test_a_cell_whose_entry_is_unknown_is_no_equal_cell():
    _, (table,) = parts(row("torch", ONE), row("jax", replace(ONE, threads="")))
    assert set(table.values("threads")) == {"2", None}


def read(framework: str, strategy: str, *settings: str, devices: int = 1) -> tuple[dict[str, str], dict[str, str]]:
    """What a package reads of a tiny program with a batch, and without one."""
    environment = {"PYTHONPATH": str(TESTS.parent), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python(framework), TESTS / "rooms" / "ledger.py", framework, strategy, str(devices), *settings],
        env=os.environ | environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for entries in found.values():
        assert set(entries) <= ENTRIES
        assert entries["unread"] == ""
    return found["timed"], found["trained"]


@pytest.mark.slow
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
    assert "coordinate" not in tuned["compiled"]
    searched, _ = read("torch", "single", "compile", "max_autotune_pointwise", "coordinate_descent")
    assert all(option in searched["compiled"] for option in ("max_autotune_pointwise", "coordinate_descent_tuning"))


@pytest.mark.frameworks
def test_jax_says_what_xla_compiled():
    found, trained = read("jax", "single")
    assert found["layout"] == "images NHWC, kernels HWIO"
    assert "jit_step" in found["compiled"]
    assert "convolution" in found["convolutions"]
    assert "compiled" not in trained


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("framework", "strategy"), [(name, strategy) for name, strategies in SEVERAL.items() for strategy in strategies]
)
def test_programs_on_several_devices_are_read_too(framework, strategy):
    found, _ = read(framework, strategy, devices=2)
    assert all(found[entry] for entry in ("layout", "compiled", "convolutions"))
