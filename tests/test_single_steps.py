"""What a report says of single steps, of what they cost the host, and of how far ranks are apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from whole_record import BLOCKS, Results, each, good, is_timed, of, only, tables, timing

from harness.reporting import repeatability, summary


@pytest.fixture(scope="module")
def record() -> Results:
    return good()


def columns(results: Results) -> dict[str, Any]:
    found = tables(results)["Variance and steadiness"]
    return {column.name: value for column, value in zip(found.columns, found.rows[0], strict=True)}


def test_variance_and_steadiness_shows_single_steps_in_milliseconds():
    series = [tuple(0.001 * (1 + number) for number in range(100)) for _ in range(2)]
    rows = [
        timing(step_seconds=series[number], call_seconds=(0.01,) * 100, block_seconds=(1.0,) * BLOCKS)(row)
        for number, row in enumerate(only(of("torch", "single", stop=2))([row for row in good() if is_timed(row)]))
    ]
    found = columns([replace(row, ranks=row.ranks[:1]) for row in rows])
    assert found["single step, median"] == pytest.approx(50.5)
    assert found["p95"] == pytest.approx(95, abs=1)
    assert found["p99"] == pytest.approx(99, abs=1)
    assert found["maximum"] == pytest.approx(100)
    assert found["synchronization"] == pytest.approx(0.5)  # beside a step of 50 ms
    assert found["host's share"] == pytest.approx(20)
    assert found["launch time"] == pytest.approx(10)
    assert "bound by" not in found
    assert "rank skew" not in found


def test_columns_of_what_was_not_recorded_are_left_out(record):
    none: Any = {"step_seconds": (), "call_seconds": (), "launch_seconds": None}
    found = columns(each(timing(**none))(record))
    of_single_steps = {"single step, median", "p99", "synchronization", "host's share", "launch time", "bound by"}
    assert of_single_steps.isdisjoint(found)


def test_skew_is_the_share_by_which_the_fastest_rank_is_faster(record):
    (ddp,) = [cell for cell in summary.summarize(record) if cell.spec.strategy == "ddp"]
    assert repeatability.rank_skew(ddp) == pytest.approx(0.01)


def test_host_bound_cells_are_marked_and_named(record):
    slow = each(lambda row: timing(call_seconds=row.timings[0].step_seconds)(row), of("jax", "single"))(record)
    cells = [cell for cell in summary.summarize(slow) if is_timed(cell.first)]
    assert [cell.named(workload=False) for cell in cells if repeatability.bound_by_host(cell)] == ["JAX single ×1"]
    named, others = (
        [line for line in repeatability.sentences(found) if "JAX single ×1" in line]
        for found in (cells, [cell for cell in summary.summarize(record) if is_timed(cell.first)])
    )
    assert len(named) == 1 + len(others)
    marks = tables(slow)["Variance and steadiness"].values("bound by")
    assert list(marks).count("host") == 1
