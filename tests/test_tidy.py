"""Results as data: one row for each launch or block, with numbers as numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from conftest import ROOT, make_result, make_spec
from refusals import refused
from scenes import SCENES

import harness
from harness.reporting import summary
from harness.results import store
from harness.results.tidy_columns import BLOCK_COLUMNS, LAUNCH_COLUMNS
from harness.spec import Disturbance, GpuTelemetry, HostLoad, Telemetry

PUBLISHED = sorted(path.parent for path in ROOT.glob("reports/*/results.jsonl"))
PAGE = ROOT / "docs" / "columns.md"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def written(folder, *results):
    folder.mkdir(exist_ok=True)
    for result in results:
        store.append(folder, result)
    return folder


def table(columns):
    kinds = {each.name: "str" if each.kind is dict else each.kind.__name__ for each in columns}
    rows = [f"| `{each.name}` | {kinds[each.name]} | {each.unit} | {each.meaning} |\n" for each in columns]
    return "".join(["| column | type | unit | meaning |\n|---|---|---|---|\n", *rows])


def test_the_page_lists_all_columns(tmp_path, approval):
    own = BLOCK_COLUMNS[[each.name for each in BLOCK_COLUMNS].index("status") + 1 :]
    tables = iter([table(LAUNCH_COLUMNS), table(own)])
    made, count = TABLE.subn(lambda _: next(tables), PAGE.read_text("utf-8"))
    assert count == 2
    (tmp_path / PAGE.name).write_text(made, encoding="utf-8")
    approval.hold(tmp_path, PAGE.parent, PAGE.name)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_the_throughputs_of_published_launches_are_those_of_the_report(folder):
    frame, results = harness.load(folder), store.read(folder)
    assert len(frame) == len(results)
    groups = frame.groupby(["cell", "conditions"])["throughput"]
    cells = summary.summarize(results)
    assert groups.ngroups == len(cells)
    for cell in cells:
        found = groups.get_group((cell.spec.cell, cell.conditions)).dropna()
        assert tuple(found) == pytest.approx(cell.throughputs)


def test_a_launch_is_its_work_over_its_time(tmp_path):
    spec = make_spec(global_batch=20, devices=2, launch=3, seed=7, options={"b": 1, "a": "x"})
    blocks = ((1.0, 2.0, 4.0), (3.0, 1.0, 1.0))
    (row,) = harness.load(
        written(tmp_path, make_result(spec=spec, block_seconds=blocks, steps_per_block=5, peak_bytes=(7, 9)))
    ).to_dict("records")
    assert row["throughput"] == 20 * 15 / 9.0
    assert row["step_seconds"] == 9.0 / 15
    assert (row["launch"], row["seed"], row["blocks"], row["steps_per_block"]) == (3, 7, 3, 5)
    assert (row["peak_bytes"], row["run"], row["status"]) == (9, tmp_path.name, "ok")
    assert json.loads(row["options"]) == {"a": "x", "b": 1}


def test_the_first_block_from_the_host_does_not_count(tmp_path):
    spec = make_spec(protocol="from_host", protocol_version=2)
    written(tmp_path, make_result(spec=spec, block_seconds=((9.0, 1.0, 3.0),), steps_per_block=2))
    (row,) = harness.load(tmp_path).to_dict("records")
    assert (row["throughput"], row["blocks"], row["protocol"]) == (20 * 4 / 4.0, 2, "from_host-2")
    blocks = harness.load(tmp_path, blocks=True)
    assert blocks["counts"].tolist() == [False, True, True]
    assert blocks["seconds"].tolist() == [9.0, 1.0, 3.0]
    assert blocks["block"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("status", ["diverged", "parity_failed", "crashed"])
def test_a_failed_launch_has_no_speed_even_if_it_was_timed(status, tmp_path):
    written(tmp_path, make_result(status=status, reason="=1+1"))
    frame = harness.load(tmp_path)
    assert frame[["throughput", "step_seconds"]].isna().all(axis=None)
    assert frame["blocks"].tolist() == [0]
    assert not harness.load(tmp_path, blocks=True)["counts"].any()


def test_a_launch_is_loaded_once(tmp_path):
    written(tmp_path, make_result(spec=make_spec(), block_seconds=((1.0,),)))
    shutil.copytree(tmp_path, tmp_path / "copy")
    for again in (tmp_path, tmp_path / "copy"):
        with refused("toy-base-torch-single-x1"):
            harness.load(tmp_path, again)


def test_launches_with_wrong_losses_have_no_speed(tmp_path):
    def one(strategy, first, launch=0):
        spec = make_spec(strategy=strategy, devices=1 if strategy == "single" else 2, launch=launch)
        return make_result(spec=spec, losses=(first, 1.0), golden_losses=(), block_seconds=((1.0,),) * spec.devices)

    good = [one("single", 2.0), one("ddp", 2.0)]
    written(tmp_path, *good, one("fsdp", 2.5), one("fsdp", 2.5, launch=1))
    frame = harness.load(tmp_path)
    wrong = frame[frame["strategy"] == "fsdp"]
    assert wrong["status"].tolist() == ["disagrees"] * 2
    assert wrong["throughput"].isna().all()
    assert frame[frame["strategy"] != "fsdp"]["throughput"].notna().all()


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("blocks", [False, True])
def test_every_column_has_its_type_in_every_situation(name, blocks, tmp_path):
    frame = harness.load(written(tmp_path, *SCENES[name]()), blocks=blocks)
    for column in BLOCK_COLUMNS if blocks else LAUNCH_COLUMNS:
        values = frame[column.name]
        if column.kind in (str, dict):
            assert all(isinstance(value, str) for value in values), column.name
        else:
            assert values.dtype == {int: "int64", float: "float64", bool: "bool"}[column.kind], column.name


def test_rows_that_must_not_be_pooled_are_told_apart(tmp_path):
    first = make_result(versions={"torch": "2.11"})
    other = make_result(versions={"torch": "2.12"}, spec=make_spec(launch=1))
    first = replace(
        first, conditions=replace(first.conditions, disturbances=(Disturbance(kind="compute", device="d"),))
    )
    frame = harness.load(written(tmp_path, first, other))
    assert frame["conditions"].nunique() == 2
    assert "2.12" in frame["conditions"][1]
    assert frame["disturbances"].tolist() == [1, 0]


def test_several_runs_are_told_apart_even_under_one_name(tmp_path):
    for place, batch in (("a/run", 10), ("b/run", 20), ("b/other", 40)):
        (tmp_path / place).mkdir(parents=True)
        spec = make_spec(global_batch=batch)
        written(tmp_path / place, make_result(spec=spec, block_seconds=((batch,),), steps_per_block=1))
    frame = harness.load(*(tmp_path / place for place in ("a/run", "b/run", "b/other")))
    assert frame["global_batch"].tolist() == [10, 20, 40]
    assert frame["run"].tolist() == [str(tmp_path / "a/run"), str(tmp_path / "b/run"), "other"]


def test_a_run_without_blocks_has_all_columns(tmp_path):
    frame = harness.load(written(tmp_path, make_result(block_seconds=(), status="crashed")), blocks=True)
    assert list(frame.columns) == [column.name for column in BLOCK_COLUMNS]
    assert frame.empty
    assert isinstance(frame, pd.DataFrame)


def test_what_is_no_run_is_refused(tmp_path):
    with refused(str(tmp_path)):
        harness.load(tmp_path)
    with refused("load"):
        harness.load()


@pytest.mark.parametrize(
    ("module", "not_yet"),
    [
        ("harness", {"pandas", "numpy", "harness.results"}),
        ("harness.cli.app", {"pandas", "scipy", "harness.results.store", "harness.reporting.summary"}),
    ],
)
def test_what_only_some_commands_need_is_not_loaded_before(module, not_yet):
    code = f"import sys, {module}; found = {not_yet} & sys.modules.keys(); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def sampled(starts, *gpus):
    """A launch of two blocks of 2 s whose clock reads 100 s when the first one begins, and its samples."""
    row = make_result(block_seconds=((2.0, 2.0), (2.5, 1.0)))
    ranks = tuple(
        replace(rank, timing=replace(rank.timing, block_starts=own, launch_seconds=launch))
        for rank, own, launch in zip(row.ranks, starts, (4e-6, 5e-6), strict=True)
        if rank.timing
    )
    host = (
        HostLoad(load=1.0, cpu_seconds=0.0, steal_seconds=0.0),
        HostLoad(load=3.0, cpu_seconds=50.0, steal_seconds=5.0),
    )
    telemetry = Telemetry(zero=100.0, seconds=(-1.0, 1.0, 5.0, 9.0), gpus=gpus, host=host)
    return replace(row, ranks=ranks, telemetry=telemetry, run=replace(row.run, telemetry="on"))


STARTS = ((100.0, 104.0), (100.5, 104.5))


def test_samples_within_the_timed_blocks_become_means(tmp_path):
    one = GpuTelemetry(uuid="a", sm_clock_mhz=(1, 1500, 1700, 1), power_watts=(9.0, 600.0, 700.0, 9.0))
    two = GpuTelemetry(uuid="b", sm_clock_mhz=(1, 1600, 1600, 1), temperature_celsius=(99, 50, 60, 99))
    frame = harness.load(written(tmp_path, sampled(STARTS, one, two)))
    (row,) = frame.to_dict("records")
    assert (row["sm_clock_mhz"], row["power_watts"], row["temperature_celsius"]) == (1600.0, 650.0, 60.0)
    assert (row["steal_percent"], row["host_load"], row["telemetry"]) == (10.0, 3.0, "on")
    assert row["host_launch_seconds"] == 5e-6
    assert frame[["joules_per_sample", "at_power_limit"]].isna().all(axis=None)  # the window is short, no reasons


def test_blocks_start_when_their_first_rank_did(tmp_path):
    written(tmp_path / "a", sampled(STARTS))
    assert harness.load(tmp_path / "a", blocks=True)["start"].tolist() == [0.0, 4.0]
    written(tmp_path / "b", make_result(block_seconds=((2.0, 2.0), (2.5, 1.0))))
    assert harness.load(tmp_path / "b", blocks=True)["start"].isna().all()


def test_the_twin_of_a_cell_is_told_from_it(tmp_path):
    frame = harness.load(written(tmp_path, make_result(), make_result(spec=make_spec(twin=True))))
    assert frame["twin"].tolist() == [False, True]
    assert frame["cell"].nunique() == 2
