"""The referee's checklist: for each requirement a record that passes, one that fails, and one that does not tell."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT, harness, make_result, make_spec
from refusals import names
from scenes import RUN, epochs, training
from whole_record import (
    BLOCKS,
    FACTS,
    LOSSES,
    MATRIX_RATE,
    ROUNDS,
    THERE,
    TUNING,
    Results,
    conditions,
    each,
    facts,
    good,
    is_timed,
    launch,
    of,
    only,
    rank,
    spec,
    specs,
    tables,
    timing,
)

from harness.cli.commands import check as command
from harness.planning import launch_order
from harness.reporting import summary
from harness.reporting.checklist import requirements
from harness.reporting.checklist.answers import judged, not_applicable
from harness.reporting.checklist.requirements import REQUIREMENTS
from harness.results import store
from harness.spec import (
    Bounds,
    Check,
    DeviceShare,
    Disturbance,
    GpuErrors,
    NumberFormats,
    RankResult,
    TrialResult,
)


def answers(results: Results) -> dict[int, Any]:
    return {row.number: row.answer for row in requirements.check(results, summary.summarize(results))}


def outcome(number: int, results: Results) -> str:
    return answers(results)[number].outcome


def elsewhere(row: TrialResult) -> TrialResult:
    hardware = make_result(machine=THERE).conditions.hardware
    return conditions(hardware=hardware)(row)


def check_of(quantity: Any, error: float):
    found = Check(quantity=quantity, error=error, tolerance=1.0, worst="")
    return timing(checks=(found,))


def slower(factor: float):
    def change(row: TrialResult) -> TrialResult:
        timings = [
            replace(found, block_seconds=tuple(factor * each for each in found.block_seconds)) for found in row.timings
        ]
        return replace(row, ranks=tuple(replace(r, timing=t) for r, t in zip(row.ranks, timings, strict=True)))

    return change


def uneven(row: TrialResult) -> TrialResult:
    """Blocks that differ far more than launches."""
    blocks = tuple((0.5 if number % 2 else 1.5) * (1 + 0.01 * row.spec.launch) for number in range(BLOCKS))
    return timing(block_seconds=blocks)(row)


def drifting(row: TrialResult) -> TrialResult:
    """A launch that becomes slower by 90%."""
    return timing(block_seconds=tuple((1 + 0.001 * row.spec.launch) * (1 + 0.1 * n) for n in range(BLOCKS)))(row)


def swapped(one: int, other: int):
    """The last launch of a round and one of the next, or two of the same round, have changed places, on the clock as
    well."""

    def change(results: Results) -> Results:
        rows = list(results)
        first = len(specs()) * (1 + one) - (1 if one != other else 2)
        starts = [rows[at].timings[0].block_starts for at in (first, first + 1)]
        rows[first : first + 2] = [
            timing(block_starts=starts[0])(rows[first + 1]),
            timing(block_starts=starts[1])(rows[first]),
        ]
        return rows

    return change


def never_launched(row: TrialResult) -> TrialResult:
    """As of a cell that fails the gate."""
    assert row.parity is not None
    error = (Check(quantity="losses", error=1.0, tolerance=1e-11, worst="loss"),)
    return replace(row, status="parity_failed", reason="wrong", ranks=(), parity=replace(row.parity, checks=error))


def crashed_in_the_gate(row: TrialResult) -> TrialResult:
    return replace(row, status="crashed", reason="code 1", ranks=(), parity=None)


def leaving_out(*cells: tuple[str, str], change: Any = never_launched):
    """Cells that are never launched: their rows come first."""

    def changed(results: Results) -> Results:
        left = [is_timed(row) and (row.spec.framework, row.spec.strategy) in cells for row in results]
        rows = [change(row) for row, out in zip(results, left, strict=True) if out]
        return rows + [row for row, out in zip(results, left, strict=True) if not out]

    return changed


def reversed_clock(row: TrialResult) -> TrialResult:
    return timing(block_starts=tuple(each + 1e5 * (ROUNDS - row.spec.launch) for each in row.timings[0].block_starts))(
        row
    )


def apart(row: TrialResult) -> TrialResult:
    """The second rank begins each block 0.1 s after the first."""
    late = [replace(found, block_starts=tuple(at + 0.1 * n for at in found.block_starts)) for n, found in
            enumerate(row.timings)]  # fmt: skip
    return replace(row, ranks=tuple(replace(r, timing=t) for r, t in zip(row.ranks, late, strict=True)))


def gpu_errors(*errors: GpuErrors):
    """What was seen of the GPUs' errors in a launch."""

    def change(row: TrialResult) -> TrialResult:
        assert row.telemetry is not None
        return replace(row, telemetry=replace(row.telemetry, errors=errors))

    return change


def tuning(budget: float | None):
    """How many seconds a framework's tuning was given; None: not recorded."""
    effort = None if budget is None else replace(TUNING, budget_seconds=budget)
    return lambda row: replace(row, described=replace(row.described, tuning=effort))


def another_training(**known: Any):
    """The trainings of a second cell beside those of the first."""
    run = RUN | FACTS | {"started": "2026-01-02", "planned": 5}
    accurate: Any = {"epochs": epochs((1.0, 0.5), (1.0, 0.95)), "run": run} | known
    return lambda results: results + [training("jax", "single", seed=seed, **accurate) for seed in range(5)]


FAILS: list[tuple[int, Callable[[Results], Results]]] = [
    (1, only(lambda row: row.spec.launch < 4)),
    (1, each(facts(preset="paper"))),
    (1, each(rank(compile_cache="warm"), of(start=2))),
    (2, only(lambda row: row.spec.launch < 4)),
    (2, only(of("torch", "single", stop=4))),  # of which nothing is claimed
    (2, each(elsewhere, of(start=2))),  # two rounds are left for the ratios
    (3, each(uneven, of())),
    (3, each(timing(block_seconds=(1.0,), block_starts=(1.0,)), of())),
    (4, each(elsewhere, of())),
    (4, each(elsewhere, of(start=1))),  # one round is left
    (5, lambda results: sorted(results, key=lambda row: row.spec.cell)),
    (5, swapped(ROUNDS - 1, ROUNDS - 1)),
    (5, swapped(1, 2)),
    (5, lambda results: leaving_out(("jax", "pmap"))(swapped(ROUNDS - 1, ROUNDS - 1)(results))),
    (5, each(elsewhere, of(start=4))),
    (5, each(reversed_clock)),
    (6, each(spec(warmup_seconds=4.0))),
    (6, each(spec(warmup_seconds=6.0), of())),
    (6, each(timing(losses=LOSSES[:2]), of())),
    (6, each(spec(blocks=BLOCKS + 1), of())),
    (7, each(timing(block_seconds=(1.0,) * 7, block_starts=(1.0,) * 7), of())),
    (7, each(spec(protocol="from_host"), of())),
    (7, each(drifting, of("torch"))),  # torch is faster by 38%
    (8, each(check_of("work after sync", 2.0), of(stop=1))),
    (8, each(spec(protocol="from_host"), of())),
    (9, each(apart)),
    (9, each(lambda row: replace(row, ranks=(*row.ranks, RankResult())), of("torch", "ddp"))),
    (10, each(rank(compile_cache="warm"), of())),
    (10, each(spec(protocol="from_host"), of())),
    (11, another_training(training={"target_accuracy": 0.8})),
    (11, another_training(epochs=epochs((1.0, 0.95), samples=400))),
    (12, each(lambda row: replace(row, parity=None), of(stop=1))),
    (12, each(lambda row: replace(row, golden_losses=()), of("jax", "pmap"))),
    (12, each(lambda row: replace(row, status="diverged"), of(stop=1))),
    (12, each(check_of("replicas", 2.0), of(stop=1))),
    (13, each(timing(formats=NumberFormats(products={"float32": "conv1"})), of())),
    (13, lambda results: each(tuning(345.0), of())(each(spec(track="tuned"))(results))),
    (14, only(lambda row: not of("jax", "single")(row))),
    (14, each(elsewhere, of())),  # the fastest base of all is on another machine
    (15, lambda results: each(slower(1.2), of(start=4))(each(elsewhere, of(start=4))(results))),
    (16, each(timing(step_seconds=(0.1,) * 5, call_seconds=(0.1,) * 5))),
    (17, each(check_of(MATRIX_RATE, 1.5), of(stop=1))),
    (18, each(conditions(disturbances=(Disturbance(kind="compute", device="GPU-a", pid=1),)), of(stop=1))),
    (18, each(conditions(disturbances=(Disturbance(kind="throttled", device="GPU-a"),)), of(stop=1))),
    (18, each(conditions(disturbances=(Disturbance(kind="xid", device="GPU-a", xid=79),)), of(stop=1))),
    (18, each(gpu_errors(GpuErrors(uuid="GPU-a", corrected=0, uncorrected=1, xids=())), of(stop=1))),
    (18, each(gpu_errors(GpuErrors(uuid="GPU-a", xids=(48,))), of(stop=1))),
    (19, only(lambda row: not of(stop=1)(row))),
    (19, each(lambda row: replace(row, status="pending", reason="later"), of(stop=1))),
    (19, each(lambda row: replace(row, status="crashed"), of(stop=1))),  # without a reason
    (20, each(facts(commit="abc1234+changes"))),
]

WITHOUT_LINKS = Bounds(matrix_flops_per_second=7e14, memory_bytes_per_second=4.3e12)
UNKNOWN: list[tuple[int, Callable[[Results], Results]]] = [
    (1, each(rank(compile_cache=""))),
    (5, each(timing(block_starts=()))),
    (5, only(lambda row: row.spec.launch == 0)),
    (5, lambda results: leaving_out(("jax", "pmap"), ("jax", "single"))(only(lambda r: r.spec.launch < 3)(results))),
    (6, each(timing(losses=()))),
    (8, each(timing(checks=()))),
    (8, each(timing(step_seconds=(), call_seconds=()), of(stop=1))),
    (9, each(timing(block_starts=()))),
    (10, each(lambda row: replace(row, telemetry=None), of(stop=1))),
    (10, each(rank(build_seconds=None), of())),
    (10, each(rank(compile_cache=""), of())),
    (13, each(timing(formats=None), of())),
    (13, each(timing(formats=NumberFormats(products={"bfloat16": "conv1"}, unread="the optimizer")), of())),
    (13, each(conditions(environment={}))),
    (13, lambda results: each(tuning(None), of())(each(spec(track="tuned"))(results))),
    (14, each(timing(crossed=None))),
    (16, each(timing(step_seconds=(), call_seconds=()))),
    (17, each(timing(bounds=None), of(stop=1))),
    (17, each(timing(bounds=Bounds(matrix_flops_per_second=7e14)), of(stop=1))),
    (17, each(timing(bounds=WITHOUT_LINKS), lambda row: row.spec.devices > 1)),
    (17, each(timing(checks=()), of(stop=1))),
    (18, each(lambda row: replace(row, telemetry=None))),
    (18, each(gpu_errors(), of(stop=1))),  # of an earlier version
    (18, each(gpu_errors(GpuErrors(uuid="GPU-a", xids_unknown="Not Supported")), of(stop=1))),
    (18, each(gpu_errors(GpuErrors(uuid="GPU-a", xids=(), xids_unknown="Unknown Error")), of(stop=1))),
    (18, each(facts(device_guard="off"))),
    (19, lambda results: [facts(planned=0)(row) for row in results]),
    (20, each(conditions(interpreter=""), of(stop=1))),
    (20, each(conditions(lock=""))),
    (20, each(conditions(lock=None))),
]


def timed_alone(results: Results) -> Results:
    return [row for row in results if is_timed(row)]


DOES_NOT_APPLY: list[tuple[int, Callable[[Results], Results]]] = [
    (4, only(of("torch", "single"))),
    (4, each(spec(platform="cpu"))),  # of which a report compares no speeds
    (5, only(of("torch", "single"))),
    (9, only(lambda row: row.spec.devices == 1)),
    (11, timed_alone),
    (14, only(lambda row: row.spec.devices == 1)),
    (14, each(spec(algorithm="local"), lambda row: row.spec.devices > 1)),  # which is never divided by one device
    (14, each(spec(platform="cpu"))),
]


def named(cases: list[tuple[int, Any]]) -> list[Any]:
    return [pytest.param(number, change, id=f"{number}-{at}") for at, (number, change) in enumerate(cases)]


@pytest.fixture(scope="module")
def record() -> Results:
    return good()


def test_a_record_that_has_everything_passes_all_that_a_record_can_pass(record):
    found = answers(record)
    assert {number for number, answer in found.items() if answer.outcome != "pass"} == set()
    assert all(answer.figures for answer in found.values())


@pytest.mark.parametrize("change", [never_launched, crashed_in_the_gate])
def test_the_order_of_launches_is_known_beside_a_cell_that_was_never_launched(change, record):
    found = answers(leaving_out(("jax", "pmap"), change=change)(record))[5]
    assert found.outcome == "pass" and f"{ROUNDS} rounds of 3 cells" in found.figures


@pytest.mark.parametrize(("number", "change"), named(FAILS))
def test_a_record_that_shows_the_opposite_fails(number, change, record):
    assert outcome(number, change(record)) == "fail"


@pytest.mark.parametrize(("number", "change"), named(UNKNOWN))
def test_what_is_not_recorded_is_not_known(number, change, record):
    assert outcome(number, change(record)) == "not known"


def test_trainings_are_judged_by_what_is_not_about_speed():
    trained = [training("jax", name, seed=seed) for seed in range(2) for name in ("single", "shard_map")]
    found = answers(trained)
    applies = {number for number, answer in found.items() if answer.outcome != "does not apply"}
    assert applies == {5, 11, 12, 13, 19, 20}
    assert found[12].outcome == "pass"
    assert trained[0].ranks[0].training is not None
    wrong = replace(
        trained[0].ranks[0].training, checks=(Check(quantity="samples", error=1.0, tolerance=0.0, worst=""),)
    )
    ranks = (replace(trained[0].ranks[0], training=wrong), *trained[0].ranks[1:])
    assert answers([replace(trained[0], ranks=ranks), *trained[1:]])[12].outcome == "fail"


@pytest.mark.parametrize(("number", "change"), named(DOES_NOT_APPLY))
def test_what_the_report_claims_nothing_about_does_not_apply(number, change, record):
    assert outcome(number, record) == "pass"
    answer = answers(change(record))[number]
    assert answer.outcome == "does not apply"
    assert answer.figures


def test_a_subject_that_is_there_applies_even_if_all_of_it_failed(record):
    """A training that failed is still a claim about trainings: the requirement must not go away with it."""
    failed = [row if is_timed(row) else replace(row, status="crashed", reason="planted", ranks=()) for row in record]
    assert outcome(11, failed) == "not known"


def test_a_speed_that_is_not_that_of_its_blocks_fails(record):
    cell, estimate = next((each, each.estimate) for each in summary.summarize(record) if each.estimate is not None)
    for factor, expected in ((1.0, "pass"), (1.01, "fail")):
        told = replace(cell, estimate=replace(estimate, value=factor * estimate.value))
        found = {row.number: row.answer.outcome for row in requirements.check(record, [told])}
        assert found[15] == expected


def on_each_gpu(**columns: Any):
    """Other readings of all GPUs of a launch."""

    def change(row: TrialResult) -> TrialResult:
        assert row.telemetry is not None
        gpus = tuple(replace(gpu, **columns) for gpu in row.telemetry.gpus)
        return replace(row, telemetry=replace(row.telemetry, gpus=gpus))

    return change


without_heat = on_each_gpu(thermal_violation_ms=())


@pytest.mark.parametrize(
    ("percent", "expected"),
    [((0,) * 41, "fail"), ((0,) * 40 + (1,), "fail"), ((0, 3) * 20 + (0,), "pass"), ((), "pass")],
)
def test_a_gpu_on_which_no_kernel_ran_in_a_timed_block_fails(record, percent, expected):
    """The last reading is after the blocks. Earlier versions did not ask how busy a GPU was."""
    answer = answers(each(on_each_gpu(busy_percent=percent), of(stop=1))(record))[18]
    assert answer.outcome == expected
    assert ("kernel" in answer.figures) == (expected == "fail")
    assert ("not known" in answer.figures) == (not percent)


def test_a_gpu_whose_stage_has_no_parameters_may_only_pass_on_what_it_gets(record):
    stages = [DeviceShare(device=str(at), parameters=40 * at, optimizer_state=0, batch=0, samples=8, blocks=blocks)
              for at, blocks in enumerate([(), ("fc1",)])]  # fmt: skip
    idle = each(on_each_gpu(busy_percent=(0,) * 41), of(stop=1))(record)
    assert outcome(18, idle) == "fail"
    assert outcome(18, each(timing(devices=tuple(stages)), of(stop=1))(idle)) == "pass"


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"corrected": 2, "uncorrected": 0, "xids_unknown": "Not Supported"}, ["Xid", "Not Supported", "40 memory"]),
        ({"xids": ()}, ["ECC"]),
        ({"corrected": 0, "uncorrected": 0, "xids": ()}, []),
    ],
)
def test_one_of_two_sources_of_errors_suffices_and_the_other_is_told_to_be_missing(record, known, told):
    answer = answers(each(gpu_errors(GpuErrors(uuid="GPU-a", **known)))(record))[18]
    assert answer.outcome == "pass"
    assert {fact for fact in ("Xid", "Not Supported", "40 memory", "ECC") if fact in answer.figures} == {*told}


@pytest.mark.parametrize(
    ("number", "change", "facts"),
    [
        (3, each(uneven, of()), ["1%", "2 of 4", "JAX single"]),  # the limit, how many keep it, and who does not
        (16, each(timing(step_seconds=(0.1,) * 5, call_seconds=(0.1,) * 5), of()), ["25 to ", "100", "JAX pmap"]),
        (17, each(check_of(MATRIX_RATE, 1.5), of(stop=1)), ["100%", "150%"]),
    ],
)
def test_figures_have_the_value_and_the_limit(record, number, change, facts):
    answer = answers(change(record))[number]
    assert answer.outcome == "fail"
    names(answer.figures, *facts)


def test_what_is_missing_of_telemetry_is_told_beside_what_no_record_has(record):
    def figures(change):
        return answers(each(change)(record))[18].figures

    assert "0 of 4 cells" in figures(lambda row: replace(row, telemetry=None))
    assert "heat" in figures(without_heat)
    whole = figures(lambda row: row)
    assert "heat" not in whole and "0 of 4 cells" not in whole


def test_budgets_of_tuning_matter_to_tuned_cells_alone_and_must_be_equal(record):
    unequal = each(tuning(345.0), of())(record)
    assert outcome(13, unequal) == "pass"
    answer = answers(each(spec(track="tuned"), of())(unequal))[13]
    assert (answer.outcome, "345" in answer.figures, "400" in answer.figures) == ("pass", True, False)
    assert outcome(13, each(spec(track="tuned"))(record)) == "pass"


def test_links_that_one_cell_cannot_measure_are_those_that_another_one_measured(record):
    """TensorFlow's parameter_server has no collectives. What another cell found on other devices does not count."""
    silent = timing(bounds=WITHOUT_LINKS)
    assert outcome(17, each(silent, of("torch", "ddp"))(record)) == "pass"
    elsewhere_too = each(elsewhere, of("torch", "ddp"))(each(silent, of("torch", "ddp"))(record))
    answer = answers(elsewhere_too)[17]
    assert (answer.outcome, "1 of 2 cells" in answer.figures) == ("not known", True)


def test_every_requirement_has_a_record_that_fails():
    assert {number for number, _ in FAILS} == set(range(1, 21)) == set(range(1, 1 + len(REQUIREMENTS)))


def test_a_record_without_speeds_knows_of_nothing_but_its_rows():
    rows = [make_result(status="crashed", reason="planted", block_seconds=(), run=RUN | {"planned": 1})]
    found = answers(rows)
    assert {number for number, answer in found.items() if answer.outcome != "not known"} == {11, 19}


def test_what_a_twin_adds_is_told_and_breaks_no_round(record):
    assert outcome(5, record) == "pass"
    noise, cells = random.Random(1), [*specs(), replace(specs()[0], twin=True)]
    order = enumerate(launch_order.order(cells, ROUNDS))
    rows = [launch(replace(cells[index], launch=number), place, noise) for place, (number, index) in order]
    found = answers([facts(planned=25)(row) for row in rows])
    assert found[5].outcome == found[4].outcome == "pass"
    assert "1 A/A" in found[4].figures


def test_a_failed_launch_is_a_row_of_the_order(record):
    crashed = each(lambda row: replace(row, status="crashed", reason="planted", ranks=()), of(stop=1))(record)
    found = answers(crashed)
    assert found[5].outcome == found[19].outcome == "pass"
    assert found[1].outcome == "fail"  # four launches of that cell are left


def test_rounds_that_have_not_begun_show_no_order(record):
    pending = each(
        lambda row: replace(row, status="pending", reason="later", ranks=()), lambda row: row.spec.launch > 0
    )
    assert outcome(5, pending(record)) == "not known"


def test_a_cell_without_a_base_scales_neither_strongly_nor_weakly(record):
    found = answers([row for row in record if row.spec.strategy != "single"])
    assert "0 strong, 0 weak" in found[14].figures


def test_a_common_report_of_two_runs_keeps_the_order_of_each(record):
    later = [replace(row, spec=replace(row.spec, launch=row.spec.launch + ROUNDS)) for row in record if is_timed(row)]
    later = [facts(started="2026-01-03", session="2026-01-03")(row) for row in later]
    assert outcome(5, record + later) == "pass"


def test_the_report_has_the_checklist_on_gpus_alone(record):
    found = tables(record)["Referee's checklist"]
    assert list(found.values("number")) == list(range(1, 21))
    assert list(found.values("outcome")) == [answer.outcome for answer in answers(record).values()]
    assert "Referee's checklist" not in tables([make_result()])


def test_the_page_on_method_has_the_same_requirements():
    text = (ROOT / "docs" / "method.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text.partition("checklist")[2], re.MULTILINE)
    assert rows == [(str(number), each.words) for number, each in enumerate(REQUIREMENTS, 1)]


@pytest.mark.parametrize(
    ("change", "code"), [(timed_alone, 0), (each(conditions(lock="")), 5), (each(conditions(lock=None)), 5)]
)
def test_the_command_says_what_passes_and_ends_with_5_if_something_does_not(record, tmp_path, change, code):
    rows = change(record)
    for row in rows:
        store.append(tmp_path, row)
    done = harness("check", str(tmp_path), "--json")
    assert done.returncode == code, done.stderr
    said = json.loads(done.stdout)
    assert said["exit_code"] == code
    assert {each["number"]: each["outcome"] for each in said["requirements"]} == {
        number: answer.outcome for number, answer in answers(rows).items()
    }


def test_the_command_ends_with_0_if_all_pass(record, tmp_path, monkeypatch, capsys):
    for row in record:
        store.append(tmp_path, row)
    kept = [*REQUIREMENTS]
    assert command.check(tmp_path) == 0
    assert len(re.findall(r"\bpass\b", capsys.readouterr().out)) == len(kept) + 1  # and the last line
    monkeypatch.setattr(requirements, "REQUIREMENTS", [replace(kept[0], rule=lambda record: judged(False, "3 of 5"))])
    assert command.check(tmp_path) == 5
    assert "3 of 5" in capsys.readouterr().out
    out = [replace(kept[0], rule=lambda record: not_applicable("none")), *kept[1:]]
    monkeypatch.setattr(requirements, "REQUIREMENTS", out)
    assert command.check(tmp_path) == 0
    assert re.findall(r"\d+", capsys.readouterr().out.splitlines()[-1])[:3] == [f"{len(out)}", *[f"{len(out) - 1}"] * 2]
    monkeypatch.setattr(requirements, "REQUIREMENTS", out[:1])  # nothing was asked, so nothing was met
    assert command.check(tmp_path) == 5


def test_one_launch_of_each_cell_is_not_spoken_of_as_several():
    figures = answers([make_result(), make_result(spec=make_spec(strategy="ddp", devices=2))])[1].figures
    assert figures.startswith("1 launch in")
