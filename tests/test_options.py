"""What a plug-in may say of its strategies' options, and that the harness then acts on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import harness, make_machine
from refusals import refused, refused_command

from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.reporting import summary, sweep
from harness.reporting.tables import sweep_table
from harness.results import store
from harness.spec import CUT, MICRO_BATCHES, Option, StrategySpec
from harness.worker import local_calls

FAKE = ("--framework", "fake", "--workload", "toy", "--platform", "cpu")


def plan(strategy, devices=2, **options):
    given = {name: (value,) for name, value in options.items()}
    request = Request(
        frameworks=("fake",), workloads=("toy",), strategies=(strategy,), devices=(devices,), options=given
    )
    return make_plan(request, make_machine())


def planned(strategy, **options):
    (trial,) = plan(strategy, **options).trials
    return trial.spec


def test_a_role_is_understood_under_any_name(fakes):
    spec = planned("meet_rarely", meet_after="5")
    assert (spec.roles, spec.option("averaging_interval")) == ({"averaging_interval": "meet_after"}, 5)
    assert spec.variant == "meet_after=5"
    assert planned("meet_rarely").variant == "meet_after=2"  # always shown
    assert planned("meet_rarely", how="from_the_first").variant == "meet_after=2, how=from_the_first"
    assert planned("pieces", pieces="5").parity_batch % 5 == 0


def test_the_form_in_the_parity_phase_is_that_of_the_option_or_of_its_role(fakes):
    spec = planned("meet_rarely", meet_after="5")
    assert (spec.options["meet_after"], spec.parity_options["meet_after"]) == (5, 3)
    assert spec.parity_steps % 3 == 0
    spec = planned("pieces", piece="5")
    assert (spec.parity_options["piece"], spec.parity_batch) == (4, 16)  # 5 of 20


def test_of_two_options_that_say_the_same_a_cell_has_one(fakes):
    assert planned("pieces").options == {"pieces": 2}
    assert planned("pieces", piece="5").options == {"piece": 5}
    with refused("piece=5", "pieces=4"):
        planned("pieces", piece="5", pieces="4")


@pytest.mark.parametrize(
    ("strategy", "devices", "options", "facts"),
    [
        ("meet_rarely", 2, {"meet_after": "0"}, ["meet_after=0", "at least 1"]),
        ("meet_rarely", 2, {"how": "never"}, ["how: 'never'", "mean, from_the_first"]),
        ("meet_rarely", 1, {"how": "from_the_first"}, ["how=from_the_first", "nobody to meet"]),
        ("pieces", 2, {"pieces": "3"}, ["pieces=3", "20"]),
        ("pieces", 2, {"piece": "21"}, ["piece=21", "1 to", "20"]),
        ("pieces", 2, {"micro_batches": "4"}, ["micro_batches", "piece, pieces"]),
    ],
)
def test_what_an_option_does_not_allow_is_refused(fakes, strategy, devices, options, facts):
    with refused(*facts):
        plan(strategy, devices, **options)


def test_a_run_does_not_go_on_when_an_option_has_another_role(fakes, tmp_path):
    made = plan("pieces")
    (trial,) = made.trials
    for spec, goes_on in ((trial.spec, True), (replace(trial.spec, roles={"schedule": "pieces"}), False)):
        intent = store.Intent(plan=replace(made, trials=(replace(trial, spec=spec),)), command="", started="")
        (tmp_path / store.RUN).unlink(missing_ok=True)
        store.write_intent(tmp_path, intent)
        if goes_on:
            assert store.read_intent(tmp_path)[0].plan.trials[0].spec == spec
        else:
            with refused("--resume", "fake pieces"):
                store.read_intent(tmp_path)


@pytest.mark.runs
def test_an_option_of_a_plug_in_is_swept_proved_and_shown(tmp_path):
    sweep_of = ("sweep", "meet_after", "--values", "1,2,5", "--strategy", "meet_rarely", "--devices", "2")
    done = harness(*sweep_of, *FAKE, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    results = [result for result in store.read(tmp_path / "run") if result.spec.strategy == "meet_rarely"]
    assert {result.status for result in results} == {"ok"}  # so each was proved with its interval
    assert {result.spec.options["meet_after"]: result.spec.parity_options["meet_after"] for result in results} == {
        1: 1, 2: 2, 5: 3,
    }  # fmt: skip
    for result in results:
        assert result.steps_per_block % result.spec.options["meet_after"] == 0
        (averaging,) = [check for check in result.timings[0].checks if check.quantity == "averaging"]
        assert averaging.worst == local_calls.UNKNOWN
    report = (tmp_path / "run" / "report.md").read_text()
    assert "| Fake meet_rarely (meet_after=5) ×2 | passed" in report
    assert (tmp_path / "run" / "sweep-1-meet_after.png").is_file()


@pytest.mark.runs
def test_a_sweep_of_micro_batches_has_an_ideal_under_any_name(tmp_path):
    done = harness(
        "sweep", "piece", "--values", "20,10,5", "--strategy", "pieces", "--devices", "2", *FAKE,
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [replace(row, spec=replace(row.spec, platform="gpu")) for row in store.read(tmp_path / "run")]
    (found,) = sweep.find(summary.summarize(rows))  # on CPU devices there is no ideal
    assert [(point.value, point.micro_batches) for point in found.points] == [(5, 4), (10, 2), (20, 1)]
    assert all(point.ideal for point in found.points)
    assert sweep_table.table(found).values("micro-batches") == (4, 2, 1)


def test_bad_values_end_the_program_with_one_line():
    done = harness("plan", "--strategy", "meet_rarely", "--option", "meet_after=0", *FAKE)
    refused_command(done, "meet_after=0", "1")


@pytest.mark.parametrize(
    ("known", "facts"),
    [
        ({"default": None}, "None"),
        ({"default": 0, "least": 1}, "0"),
        ({"default": "c", "choices": ("a", "b")}, "'c'"),
        ({"default": "a", "choices": ("a", "b"), "needs_gpu": {"ab": "why"}}, "'ab'"),
        ({"default": 4, "role": "micro_batches"}, "least"),
        ({"default": "4", "role": "micro_batch_size"}, "int"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_an_error(known, facts):
    with pytest.raises(ValueError, match=facts):
        Option(name="o", summary="", **known)


@pytest.mark.parametrize(
    "options",
    [(CUT, CUT), (CUT, replace(CUT, name="where")), (replace(MICRO_BATCHES, replaces="size"),)],
)
def test_options_that_do_not_fit_together_are_an_error(options):
    with pytest.raises(ValueError, match=f"{options[-1].name}|{options[-1].role}"):
        StrategySpec(name="s", summary="", processes="one", options=options)
