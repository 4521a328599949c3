"""The codec between parent and workers: what is written is read back, and what is wrong is named by its place."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import make_spec

from harness.spec import Check, Parity, TrainingSpec, TrialSpec, codec
from harness.worker.draft import Draft


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    inner: Inner
    path: Path | None = None
    kind: Literal["one", "two"] = "one"
    pair: tuple[int, str] = (0, "")
    named: dict[str, Inner] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    either: int | str = 0
    flag: bool = False


WHOLE = Outer(
    count=3,
    inner=Inner(name="a", values=(1.0, math.inf, -math.inf)),
    path=Path("/some/where"),
    kind="two",
    pair=(1, "b"),
    named={"x": Inner(name="c")},
    anything={"list": [1, None, {"deep": True}]},
    either="text",
    flag=True,
)


def test_what_is_written_is_read_back():
    assert codec.loads(Outer, codec.dumps(WHOLE)) == WHOLE


@pytest.mark.parametrize("tolerance", [1e-9, 0.05, 0.25, 20.0, 6.0, 1.5e-3])
def test_a_failed_check_says_its_tolerance_unrounded(tolerance):
    said = str(Check(quantity="step losses", error=30.0, tolerance=tolerance, worst="a layer"))
    assert float(said.split()[-1].rstrip(")")) == tolerance


def test_nan_is_read_back():
    found = codec.loads(Inner, codec.dumps(Inner(name="", values=(math.nan,))))
    assert math.isnan(found.values[0])


def test_specs_and_gate_results_are_read_back():
    training = TrainingSpec(epochs=2, target_accuracy=0.9, input="loader", workers=2)
    for spec in (make_spec(), make_spec(training=training, options={"cut": "a", "n": 2.5}, settings={"compile": True})):
        assert codec.loads(TrialSpec, codec.dumps(spec)) == spec
    check = Check(quantity="losses", error=math.inf, tolerance=1e-9, worst="loss")
    parity = Parity(steps=5, batch=16, groups=1, checks=(check,))
    assert codec.loads(Parity, codec.dumps(parity)) == parity


def test_a_missing_field_takes_its_default():
    assert codec.decode(Outer, {"count": 1, "inner": {"name": "a"}}) == Outer(count=1, inner=Inner(name="a"))


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"count": "3"}, ["count", "int", "'3'"]),
        ({"count": True}, ["count", "int", "True"]),
        ({"count": 3.0}, ["count", "int"]),
        ({"flag": 1}, ["flag", "bool"]),
        ({"inner": None}, ["inner", "Inner"]),
        ({"inner": {"values": [1.0]}}, ["inner.name"]),
        ({"inner": {"name": "a", "values": [1.0, "x"]}}, ["inner.values[1]", "float", "'x'"]),
        ({"inner": {"name": "a", "value": []}}, ["inner.value", "Inner"]),
        ({"kind": "three"}, ["kind", "'one'", "'two'", "'three'"]),
        ({"pair": [1]}, ["pair", "2"]),
        ({"named": {"x": {"name": 1}}}, ["named.x.name", "str"]),
        ({"path": 7}, ["path", "7"]),
        ({"either": None}, ["either", "int", "str"]),
        ({"more": 1}, ["more", "Outer"]),
    ],
)
def test_what_is_wrong_is_named_by_its_place(change, facts):
    raw = json.loads(codec.dumps(WHOLE)) | change
    with pytest.raises(codec.Malformed) as refusal:
        codec.decode(Outer, raw)
    for fact in facts:
        assert fact in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "nothing", '{"count": 1', "[" * 100_000])
def test_text_that_is_no_json_is_malformed(text):
    with pytest.raises(codec.Malformed):
        codec.loads(Outer, text)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {1, 2}}, object()])
def test_what_json_cannot_hold_is_refused_by_the_writer(value):
    with pytest.raises(TypeError):
        codec.dumps(value)


def test_every_field_of_a_trial_survives_alone():
    """A field that the codec dropped would come back as its default."""
    changed = {"seed": 7, "launch": 3, "timeout_seconds": 1.5, "variant": "x", "track": "tuned", "protocol_version": 2}
    assert changed.keys() <= {field.name for field in fields(TrialSpec)}
    for name, value in changed.items():
        spec = replace(make_spec(), **{name: value})
        assert codec.loads(TrialSpec, codec.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("found", "error"), [({"build_seconds": "1"}, codec.Malformed), ({"build_second": 1.0}, TypeError)]
)
def test_a_wrong_note_fails_where_it_is_made(tmp_path, found, error):
    draft = Draft(tmp_path, 0)
    draft.note(build_seconds=1.0, cut="a")
    with pytest.raises(error):
        draft.note(**found)
    assert (draft.answer.build_seconds, draft.answer.cut) == (1.0, "a")
