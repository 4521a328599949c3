"""Large plans: what is looked up and made depends on the cells alone, not on how often they are launched.

The work is counted, so that no clock decides."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import replace

import pytest
from conftest import make_machine, make_spec

from harness.cli import app
from harness.cli.commands import plan as command
from harness.planning import cells, launch_order, resume
from harness.planning.matrix import make_plan, plan_cells
from harness.planning.plan import Plan, Planned
from harness.planning.run_request import Request
from harness.spec import TrainingSpec, TrialSpec, registry

ALL = Request(
    frameworks=("all",), workloads=("all",), platform="cpu", devices=tuple(range(1, 65)), tracks=("defaults", "tuned")
)
EVERYTHING = [
    *("plan", "--framework", "all", "--workload", "all", "--platform", "cpu", "--track", "defaults,tuned"),
    *("--devices", ",".join(map(str, range(1, 65)))),
]


def shown(arguments):
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 0


@pytest.fixture(autouse=True)
def frameworks_are_there(monkeypatch):
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter, beside=(): "")


@pytest.fixture
def calls(monkeypatch):
    """How often each of these was called."""
    counts: Counter[str] = Counter()

    def counted(place, name):
        function = getattr(place, name)

        def call(*arguments, **known):
            counts[name] += 1
            return function(*arguments, **known)

        monkeypatch.setattr(place, name, call)

    for place, name in (
        (registry, "has_model"),
        (registry, "missing"),
        (cells, "_trial"),
        (launch_order, "rounds"),
        (command, "asdict"),
    ):
        counted(place, name)
    monkeypatch.setattr(command, "machine", make_machine)
    return counts


def test_what_frameworks_have_is_looked_up_once_and_not_for_each_cell(calls):
    made = plan_cells(ALL, make_machine())
    assert len(made.trials) > 9_000
    frameworks, workloads = ({getattr(t.spec, name) for t in made.trials} for name in ("framework", "workload"))
    assert calls["has_model"] == len(frameworks) * len(workloads)
    assert calls["missing"] == len(frameworks)


@pytest.mark.runs
def test_a_plan_is_shown_without_making_its_launches(calls, capsys):
    shown([*EVERYTHING, "--launches", "1000"])
    made = calls["_trial"]
    assert calls["rounds"] == calls["asdict"] == 0
    text = capsys.readouterr().out
    plan = plan_cells(ALL, make_machine())
    assert made == len(plan.trials) > 9_000
    assert len(text.splitlines()) < len(plan.trials) / 20
    assert f"{made} cells" in text
    assert "1000 launches" in text


def test_a_plan_as_json_has_every_launch_and_describes_each_cell_once(calls, capsys):
    asked = ["--devices", "1,2,4", "--launches", "7", "--json"]
    shown([*EVERYTHING[:-2], *asked])
    found = json.loads(capsys.readouterr().out)
    assert calls["asdict"] == calls["_trial"] + 1
    expected = dataclasses.asdict(make_plan(replace(ALL, devices=(1, 2, 4), launches=7), make_machine()))
    assert found == json.loads(json.dumps(expected))
    assert len(found["trials"]) > 7 * 100


def test_a_training_as_json_has_the_seed_of_each_launch():
    first = make_spec(training=None)
    made = Plan(trials=(Planned(spec=first),), platform="cpu", preset="smoke", interpreters={}, launches=3)
    for spec, seeds in ((first, [first.seed] * 3), (_training(first), [first.seed + launch for launch in range(3)])):
        text = "".join(command.document(replace(made, trials=(Planned(spec=spec),))))
        assert [trial["spec"]["seed"] for trial in json.loads(text)["trials"]] == seeds


def _training(spec: TrialSpec) -> TrialSpec:
    return replace(spec, training=TrainingSpec(epochs=1, target_accuracy=0.5))


def test_every_cell_is_in_the_summary_and_every_reason(capsys):
    made = plan_cells(ALL, make_machine())
    rows = command.summary_rows(made)
    assert sum(int(row[5]) for row in rows) == len(made.trials)
    assert sum(int(row[6]) for row in rows) == sum(cell.status == "planned" for cell in made.trials)
    (ddp,) = (row for row in rows if row[:5] == ["torch", "toy", "base", "ddp", "defaults"])
    assert ddp[5:] == ["64", "5", "2, 4-5, 10, 20"]
    reasons = command.reason_rows(made)
    assert sum(int(row[0]) for row in reasons) == sum(cell.status != "planned" for cell in made.trials)
    assert [int(row[0]) for row in reasons] == sorted((int(row[0]) for row in reasons), reverse=True)
    assert any("not divisible by 3" in reason for _, _, reason in reasons)


def test_a_run_that_goes_on_compares_no_trials_with_each_other(monkeypatch):
    """With 1,000 cells that could not run, comparing each trial with each of them took minutes."""
    compared = []
    monkeypatch.setattr(Planned, "__eq__", lambda self, other: compared.append(1) or self is other)
    monkeypatch.setattr(resume, "_is_available", lambda plan, framework, needed: framework != "tf")
    trials = [Planned(spec=make_spec(framework="torch", launch=launch)) for launch in range(20)]
    trials += [
        Planned(spec=make_spec(framework=name, devices=count), status="unavailable", reason="not installed")
        for name in ("jax", "tf")
        for count in range(1, 11)
    ]
    made = Plan(trials=tuple(trials), platform="cpu", preset="smoke", interpreters={}, launches=20)
    there = resume.as_here(made, [])
    assert not compared
    assert Counter((t.spec.framework, t.status) for t in there.trials) == {
        ("torch", "planned"): 20,
        ("jax", "planned"): 200,
        ("tf", "unavailable"): 10,
    }
