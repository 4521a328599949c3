"""References made on the device: whether the program that makes one has passed the gate, and in which session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_result, make_spec

from harness.launch.launcher import Outcome
from harness.session import device_references
from harness.session.device_references import DeviceReferences
from harness.session.proofs import Proofs

DONE = Outcome(status="ok", reason="", traceback="", answers=())
SPEC = make_spec(workload="resnet50", size="imagenet", platform="gpu", precision="bf16", global_batch=8, curve_steps=5)


def session(folder, monkeypatch, *, versions, samples="a", proved=True):
    """The reference's file in a session with these versions and samples, and the phases that were launched for it."""
    phases: list[str] = []

    def launch(phase):
        return lambda *_, **known: (phases.append(phase), DONE)[1]

    def judged(row, outcome):
        return row if proved else make_result(spec=row.spec, status="parity_failed", reason="losses")

    monkeypatch.setattr(device_references, "judge", judged)
    references: Any = SimpleNamespace(curve_steps=lambda _: 0, data_digest=lambda _: samples, curve=lambda _: None)
    launches: Any = SimpleNamespace(run_parity=launch("parity"), run_reference=launch("reference"))
    display: Any = SimpleNamespace(phase=lambda _: None, done=lambda *_: None)
    made = DeviceReferences(
        references, launches, Proofs(folder, references), work=folder / "scratch", display=display,
        row=lambda spec, outcome: make_result(spec=spec, versions=versions),
    )  # fmt: skip
    found = [made.curve(SPEC) for _ in range(2)]
    assert found[0] == found[1]
    return found[0], phases


def test_a_later_session_does_not_repeat_the_gate(tmp_path, monkeypatch):
    first, phases = session(tmp_path, monkeypatch, versions={"jax": "1"})
    assert first[1] == "device" and phases == ["parity", "reference"]
    later, phases = session(tmp_path, monkeypatch, versions={"jax": "1"})
    assert later[1] == "device" and phases == ["reference"]


@pytest.mark.parametrize("proved", [True, False])
def test_another_version_is_proved_again(tmp_path, monkeypatch, proved):
    session(tmp_path, monkeypatch, versions={"jax": "1"})
    found, phases = session(tmp_path, monkeypatch, versions={"jax": "2"}, proved=proved)
    assert phases == ["reference", "parity"]
    assert found == ((found[0], "device") if proved else (None, ""))
    assert (found[0] is None) != proved


def test_other_samples_are_proved_first(tmp_path, monkeypatch):
    session(tmp_path, monkeypatch, versions={"jax": "1"})
    assert session(tmp_path, monkeypatch, versions={"jax": "1"}, samples="b")[1] == ["parity", "reference"]


def test_a_program_that_fails_the_gate_makes_no_reference(tmp_path, monkeypatch):
    assert session(tmp_path, monkeypatch, versions={}, proved=False) == ((None, ""), ["parity"])
