"""`compare`: two runs cell by cell, with intervals, and a gate that a slower run does not pass."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import harness, make_result, make_spec
from refusals import refused, refused_command
from rich.console import Console
from scenes import HOSTILE, gpus

from harness.cli import tables
from harness.cli.commands.compare import compare, share
from harness.reporting.verdict import CPU_NOTE
from harness.results import condition_rules, store
from harness.statistics.ratios import unpaired

A_RUN = {"command": "python -m harness run", "started": "2026-01-01 10:00", "version": "0"}
ANOTHER = A_RUN | {"started": "2026-01-02 10:00"}
HERE, THERE = gpus("GPU-a") | {"boot": "1"}, gpus("GPU-b") | {"boot": "2"}
RECORDED = {"data": "d", "code": "c", "interpreter": "p", "versions": {"torch": "2.11"}, "environment": {"A": "1"}}


def launches(*seconds, strategy="single", run=ANOTHER, machine=HERE, **known):
    """One launch for each time of its only block."""
    base = RECORDED | {"run": run, "machine": machine}
    return [
        make_result(spec=make_spec(strategy=strategy, launch=number), block_seconds=((each,),), **(base | known))
        for number, each in enumerate(seconds)
    ]


def written(folder, results):
    folder.mkdir(exist_ok=True)
    for result in results:
        store.append(folder, result)
    return folder


@pytest.fixture
def compared(tmp_path, capsys):
    """Compares two lists of results; returns the exit code and the document."""

    def run(before, after, fail_above=None):
        code = compare(
            written(tmp_path / "a", before), written(tmp_path / "b", after), fail_above=fail_above, as_json=True
        )
        return code, json.loads(capsys.readouterr().out)

    return run


BEFORE = (1.00, 1.01, 0.99, 1.00, 1.005)


def slower(share, times=BEFORE):
    """The times of launches that reach 1 - share of the throughput."""
    return [each / (1 - share) for each in times]


def test_the_ratio_is_b_over_a_with_welchs_interval(compared):
    after = (2.0, 2.1, 1.95, 2.02)
    code, found = compared(launches(*BEFORE, run=A_RUN), launches(*after))
    (cell,) = found["cells"]
    expected = unpaired([1 / each for each in after], [1 / each for each in BEFORE])
    assert expected.interval is not None
    assert code == 0
    assert cell["ratio"] == pytest.approx(expected.value)
    assert cell["ratio"] == pytest.approx(cell["throughput_b"] / cell["throughput_a"])
    assert (cell["interval"]["low"], cell["interval"]["high"]) == pytest.approx(
        (expected.interval.low, expected.interval.high)
    )
    assert (cell["verdict"], cell["pairs"], cell["same_hold"]) == ("slower", 0, True)
    assert (cell["launches_a"], cell["launches_b"], cell["regression"]) == (5, 4, None)


def test_launches_of_two_runs_are_no_pairs_but_those_of_one_round_are(compared):
    _, found = compared(launches(*BEFORE, run=A_RUN), launches(*(2 * each for each in BEFORE), run=A_RUN))
    assert [(cell["pairs"], cell["ratio"]) for cell in found["cells"]] == [(5, pytest.approx(0.5))]


def test_runs_without_a_common_hold_are_compared_and_marked(compared):
    _, found = compared(launches(*BEFORE, run=A_RUN), launches(*slower(0.5), machine=THERE))
    (cell,) = found["cells"]
    assert (cell["verdict"], cell["same_hold"], cell["ratio"]) == ("slower", False, pytest.approx(0.5))


def test_only_launches_of_a_common_hold_are_divided_and_shown(compared):
    elsewhere = launches(4.0, 5.0, 6.0, run=A_RUN, machine=THERE)
    elsewhere = [replace(each, spec=replace(each.spec, launch=each.spec.launch + 5)) for each in elsewhere]
    code, found = compared([*launches(*BEFORE, run=A_RUN), *elsewhere], launches(*slower(0.1)), "3%")
    (cell,) = found["cells"]
    assert code == 4
    assert (cell["launches_a"], cell["launches_b"], cell["launches_left_out"]) == (5, 5, 3)
    assert (cell["ratio"], cell["same_hold"]) == (pytest.approx(0.9), True)
    assert cell["throughput_b"] / cell["throughput_a"] == pytest.approx(cell["ratio"])


def on_gpus(results, *places):
    """The same launches, each on the GPUs that these variables name."""
    seen = [{"CUDA_VISIBLE_DEVICES": place} for place in places]
    return [
        replace(each, conditions=replace(each.conditions, environment=each.conditions.environment | one))
        for each, one in zip(results, seen, strict=True)
    ]


def test_of_launches_that_took_turns_on_gpus_those_on_the_other_runs_gpu_are_divided(compared):
    before = on_gpus(launches(1.0, 1.01, 0.99, run=A_RUN), "0", "0", "0")
    _, found = compared(before, on_gpus(launches(1.0, 2.0, 1.01, 2.02, 0.99), "0", "1", "0", "1", "0"))
    (cell,) = found["cells"]
    assert (cell["launches_a"], cell["launches_b"], cell["launches_left_out"]) == (3, 3, 2)
    assert cell["ratio"] == pytest.approx(1.0)


def test_runs_on_different_gpus_of_one_machine_are_compared_all_the_same(compared):
    before = on_gpus(launches(1.0, 1.01, 0.99, run=A_RUN), "0", "0", "0")
    _, found = compared(before, on_gpus(launches(2.0, 2.02, 1.98), "1", "1", "1"))
    assert [(cell["launches_b"], cell["ratio"]) for cell in found["cells"]] == [(3, pytest.approx(0.5))]


@pytest.mark.parametrize(
    ("drop", "bound", "code"),
    [
        (0.10, "3%", 4),
        (0.10, "12%", 0),
        (0.035, "3%", 0),  # its interval reaches over the bound
        (0.045, "3%", 4),
        (0.02, "0%", 4),
        (0.0, "0%", 0),
        (-0.1, "3%", 0),  # faster
        (0.10, None, 0),
    ],
)
def test_the_gate_asks_whether_the_whole_interval_lies_beyond_its_bound(drop, bound, code, compared):
    ended, found = compared(launches(*BEFORE, run=A_RUN), launches(*slower(drop)), bound)
    (cell,) = found["cells"]
    assert (ended, found["exit_code"]) == (code, code)
    if bound is not None:
        beyond = cell["interval"]["high"] < 1 - float(bound.rstrip("%")) / 100
        assert cell["regression"] == beyond == (code == 4)


def test_one_slow_cell_of_many_is_enough(compared):
    before = [*launches(*BEFORE, run=A_RUN), *launches(*BEFORE, strategy="ddp", run=A_RUN)]
    code, found = compared(before, [*launches(*BEFORE), *launches(*slower(0.2), strategy="ddp")], "5%")
    assert code == 4
    assert {cell["cell"]: cell["regression"] for cell in found["cells"]} == {
        make_spec().cell: False,
        make_spec(strategy="ddp").cell: True,
    }


def test_a_single_launch_is_never_a_regression_and_says_so(compared):
    code, found = compared(launches(1.0, run=A_RUN), launches(9.0), "3%")
    (cell,) = found["cells"]
    assert (cell["interval"], cell["verdict"], cell["regression"]) == (None, "unknown", None)
    assert code == 1  # nothing was tested, which is no pass
    both = [*launches(*BEFORE, run=A_RUN), *launches(1.0, strategy="ddp", run=A_RUN)]
    assert compared(both, [*launches(*BEFORE), *launches(9.0, strategy="ddp")], "3%")[0] == 0


@pytest.mark.parametrize("status", ["crashed", "parity_failed", "diverged", "oom"])
def test_a_cell_that_fails_in_b_does_not_pass_the_gate(status, compared):
    before = [*launches(*BEFORE, run=A_RUN), *launches(*BEFORE, strategy="ddp", run=A_RUN)]
    after = [*launches(*BEFORE), *launches(1.0, strategy="ddp", status=status)]
    code, found = compared(before, after, "3%")
    assert (code, found["broken_in_b"]) == (1, [make_spec(strategy="ddp").cell])


def test_without_the_gate_a_failed_cell_is_only_listed(compared):
    before = [*launches(*BEFORE, run=A_RUN), *launches(*BEFORE, strategy="ddp", run=A_RUN)]
    code, found = compared(before, [*launches(*BEFORE), *launches(1.0, strategy="ddp", status="crashed")])
    assert code == 0
    (cell,) = found["without_speed"]
    assert (cell["status_a"], cell["status_b"]) == ("ok", "crashed")


def test_cells_of_one_run_are_listed_and_not_compared(compared):
    before = [*launches(*BEFORE, run=A_RUN), *launches(*BEFORE, strategy="ddp", run=A_RUN)]
    _, found = compared(before, [*launches(*BEFORE), *launches(*BEFORE, strategy="fsdp")])
    assert [cell["cell"] for cell in found["cells"]] == [make_spec().cell]
    assert found["only_in_a"] == [make_spec(strategy="ddp").cell]
    assert found["only_in_b"] == [make_spec(strategy="fsdp").cell]


def test_conditions_that_differ_are_named_and_those_that_must_match_are_marked(compared):
    other: Any = {"versions": {"torch": "2.12"}, "environment": {"A": "2"}}
    _, found = compared(launches(*BEFORE, run=A_RUN), launches(*BEFORE, **other))
    (cell,) = found["cells"]
    marks = {each["name"]: each["must_match"] for each in cell["differences"]}
    assert marks == {"versions": True, condition_rules.NAMES["conditions.environment"]: False}
    assert {(each["a"], each["b"]) for each in cell["differences"]} == {("torch 2.11", "torch 2.12"), ("A 1", "A 2")}


def test_nothing_differs_between_equal_runs(compared):
    times = (1.0, 1.001, 0.999, 1.0)
    _, found = compared(launches(*times, run=A_RUN), launches(*times))
    assert [(cell["differences"], cell["verdict"]) for cell in found["cells"]] == [([], "tie")]


def test_all_cells_are_told_as_english_does(tmp_path, capsys):
    strategies = ("single", "ddp", "fsdp")
    for number, told in ((1, "the cell:"), (2, "both cells:"), (3, "all 3 cells:")):
        sides = [
            [
                row
                for name in strategies[:number]
                for row in launches(*BEFORE, strategy=name, run=run, versions=versions)
            ]
            for run, versions in ((A_RUN, {"torch": "2.11"}), (ANOTHER, {"torch": "2.12"}))
        ]
        compare(*(written(tmp_path / f"{number}{side}", rows) for side, rows in zip("ab", sides, strict=True)))
        assert told in " ".join(capsys.readouterr().out.split())


def test_of_several_rows_of_a_cell_the_most_similar_are_compared(compared):
    old, new = launches(1.0, 1.0, run=A_RUN), launches(2.0, 2.02, run=A_RUN, versions={"torch": "2.12"})
    new = [replace(each, spec=replace(each.spec, launch=each.spec.launch + 2)) for each in new]
    _, found = compared([*old, *new], launches(2.01, 2.0, versions={"torch": "2.12"}))
    (cell,) = found["cells"]
    assert cell["differences"] == []
    assert cell["ratio"] == pytest.approx(1.0, abs=0.01)


def test_wrong_losses_are_no_speed(compared):
    def group(run, first):
        peers = [launches(1.0, 1.0, strategy=name, run=run, golden_losses=()) for name in ("single", "ddp")]
        wrong = launches(1.0, 1.0, strategy="fsdp", run=run, losses=(first, 1.0), golden_losses=())
        return [each for side in (*peers, wrong) for each in side]

    code, found = compared(group(A_RUN, 2.0), group(ANOTHER, 2.5), "3%")
    assert make_spec(strategy="fsdp").cell not in [cell["cell"] for cell in found["cells"]]
    assert (code, found["broken_in_b"]) == (1, [make_spec(strategy="fsdp").cell])


@pytest.mark.parametrize(
    "text", ["3", "0.03", "", "%", "-3%", "100%", "1e3%", "nan%", "inf%", "3 percent", "3%%", "٣%", "3,5%"]
)
def test_a_bound_that_is_no_percentage_is_refused(text):
    with refused("--fail-above", "3%"):
        share(text)


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), ("2.5%", 0.025), (" 0% ", 0.0), ("99.9 %", 0.999)])
def test_percentages_are_shares(text, value):
    assert math.isclose(share(text), value)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    a = written(tmp_path / "a", launches(*BEFORE, run=A_RUN))
    b = written(tmp_path / "b", launches(*BEFORE, strategy="ddp"))
    crashed = written(tmp_path / "c", launches(1.0, status="crashed"))
    with refused(str(a), str(b), make_spec().cell, make_spec(strategy="ddp").cell):
        compare(a, b, fail_above="3%")
    with refused(make_spec().cell, "crashed"):
        compare(a, crashed, fail_above="3%")
    with refused(str(tmp_path)):
        compare(a, tmp_path)
    copied = written(tmp_path / "copied", launches(*BEFORE, run=A_RUN))
    with refused(str(copied), "one run"):
        compare(a, copied)


@pytest.mark.runs
def test_the_command_prints_and_exits_as_documented(tmp_path):
    a = written(tmp_path / "a", launches(*BEFORE, run=A_RUN))
    b = written(tmp_path / "b", launches(*slower(0.2)))
    done = harness("compare", str(a), str(b), "--fail-above", "3%")
    assert done.returncode == 4, done.stderr
    assert "0.800" in done.stdout
    assert "0.97" in done.stdout
    assert harness("compare", str(a), str(b)).returncode == 0
    refused_command(harness("compare", str(a), str(b), "--fail-above", "3"), "--fail-above", "'3'", "3%")
    refused_command(harness("compare", str(a)), "B")


def test_a_comparison_fits_a_screen_of_80_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=80, color_system=None, force_terminal=False))
    monkeypatch.chdir(tmp_path)
    variants = [make_spec(launch=launch, variant=HOSTILE) for launch in range(3)]
    hostile = [make_result(spec=spec, block_seconds=((1.0 + spec.launch,),), run=A_RUN) for spec in variants]
    known = {"strategy": "average_gradients"}
    before = [*launches(*BEFORE, run=A_RUN), *launches(1.0, 2.0, 3.0, run=A_RUN, **known), *hostile]
    after = [*launches(*BEFORE), *launches(1.0, 2.5, 2.0, machine=THERE, **known), *hostile]
    compare(written(Path("a"), before), written(Path("b"), after), fail_above="3%")
    table = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("- ")]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert sum("[" in line for line in table) >= 3


def test_a_comparison_of_cpu_devices_says_what_their_speeds_are_worth(compared, tmp_path, capsys):
    for platform, said in (("cpu", True), ("gpu", False)):
        sides = [
            written(tmp_path / f"{platform}{number}", [make_result(spec=make_spec(platform=platform), run=run)])
            for number, run in enumerate((A_RUN, ANOTHER))
        ]
        compare(*sides)
        shown = " ".join(capsys.readouterr().out.split())
        assert (CPU_NOTE in shown) == said


def test_two_launches_are_tested_and_their_interval_is_not_shown(tmp_path, compared, capsys):
    before, after = launches(1.0, 1.01, run=A_RUN), launches(9.0, 9.1)
    code, found = compared(before, after, "3%")
    (cell,) = found["cells"]
    assert (code, cell["verdict"], cell["regression"]) == (4, "slower", True)
    assert cell["interval"]["high"] < 0.97
    assert compare(tmp_path / "a", tmp_path / "b", fail_above="3%") == 4
    text = capsys.readouterr().out
    assert "[" not in text and "PyTorch single" in text


def test_cells_are_called_by_their_titles_and_memory_is_in_gib(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=80, color_system=None, force_terminal=False))
    two = gpus("GPU-a", "GPU-b") | {"boot": "2"}
    before = [*launches(*BEFORE, run=A_RUN), *launches(*BEFORE, strategy="ddp", run=A_RUN)]
    after = [*launches(1.0, 1.3, 0.9, machine=two), *launches(*BEFORE, strategy="fsdp", machine=two)]
    after += launches(1.0, strategy="ddp", status="crashed", machine=two)
    compare(written(tmp_path / "a", before), written(tmp_path / "b", after), fail_above="3%")
    lines = capsys.readouterr().out.splitlines()
    for result in (*before, *after):
        assert not any(result.spec.cell in line for line in lines)
    text = "\n".join(lines)
    assert "PyTorch ddp" in text and "PyTorch fsdp" in text
    (different,) = (line for line in lines if "GPUs" in line and "2 ×" in line)
    assert "1 ×" in different and "GiB" in different
    assert not re.search(r"\d{9}", text)  # bytes
    assert any("resolved" in line and "PyTorch single" in line for line in lines)  # the verdict is in one line
