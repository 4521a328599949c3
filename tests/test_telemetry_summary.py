"""What follows from telemetry: samples join timed blocks by time, and energy is told where it means something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pynvml
import pytest
from conftest import make_result, make_spec

from harness.reporting import document, summary, telemetry_section
from harness.reporting.model import Section, Table, walk
from harness.reporting.tables import telemetry_table
from harness.reporting.values import Beside, Missing
from harness.results import telemetry_summary
from harness.results.telemetry_summary import (
    NO_BLOCKS,
    NO_ENERGY,
    NO_SAMPLES,
    NOT_AROUND,
    NOT_WAITED_FOR,
    TOO_SHORT,
    WENT_BACK,
    Summary,
    highest_load,
    share_at_power_limit,
    steal_percent,
    summarize,
)
from harness.spec import GpuTelemetry, HostLoad, Telemetry, TrialResult

ZERO = 5000.0  # when the first block began, on the clock of the host
EVERY_SECOND = tuple(range(-1, 42))
STEADY = {"energy_joules": tuple(600.0 * (second + 1) for second in EVERY_SECOND)}  # 600 W


def launch(
    *gpus: dict[str, Any],
    seconds: tuple[float, ...] = EVERY_SECOND,
    starts: tuple[float, ...] = (0.0, 10.0, 20.0, 30.0),
    lasting: float = 10.0,
    protocol: Any = "resident",
) -> TrialResult:
    """A launch on one rank, 2 steps a block of 50 samples each. Starts are relative to the first block's."""
    spec = make_spec(devices=len(gpus), global_batch=50, protocol=protocol, platform="gpu")
    row = make_result(spec=spec, block_seconds=((lasting,) * len(starts),), steps_per_block=2)
    (rank,) = row.ranks
    assert rank.timing is not None
    timing = replace(rank.timing, block_starts=tuple(ZERO + start for start in starts))
    columns = tuple(GpuTelemetry(uuid=f"GPU-{at}", **gpu) for at, gpu in enumerate(gpus))
    telemetry = Telemetry(zero=ZERO, seconds=seconds, gpus=columns)
    return replace(row, ranks=(replace(rank, timing=timing),), telemetry=telemetry)


def found(*gpus: dict[str, Any], **known: Any) -> Summary:
    seen = summarize(launch(*gpus, **known))
    assert seen is not None
    return seen


# Joined by time


def test_only_samples_within_timed_blocks_count():
    clocks = {"sm_clock_mhz": (1, 1000, 1200, 2, 1400, 1600, 3)}
    known = {"seconds": (-0.1, 0.0, 1.0, 1.5, 2.0, 3.0, 3.1), "starts": (0.0, 2.0), "lasting": 1.0}
    (gpu,) = found(clocks, **known).gpus
    assert gpu.sm_clock_mhz == (1000, 1200, 1400, 1600)
    assert found(clocks, **known).window_seconds == 3.0


def test_a_block_lasts_from_its_first_rank_to_its_last():
    row = launch({"sm_clock_mhz": (1, 2, 3)}, seconds=(-0.4, 0.5, 1.4), starts=(0.0,), lasting=1.0)
    (rank,) = row.ranks
    assert rank.timing is not None and row.telemetry is not None
    ranks = [replace(rank, timing=replace(rank.timing, block_starts=(ZERO + at,))) for at in (-0.5, 0.0, 0.5)]
    seen = summarize(replace(row, ranks=tuple(ranks)))
    assert seen is not None
    assert (seen.gpus[0].sm_clock_mhz, seen.window_seconds) == ((1, 2, 3), 2.0)


def test_where_no_sample_lies_in_a_block_nothing_is_said():
    known = {"seconds": (-0.5, 0.5), "starts": (0.0,), "lasting": 0.1}
    assert found({"power_watts": (600.0, 610.0)}, **known).unknown == NO_SAMPLES
    assert found({"power_watts": (600.0, 610.0)}, **known).gpus == ()
    assert found({"power_watts": (600.0,)}, seconds=(0.05,), starts=(0.0,), lasting=0.1).unknown == ""


def test_a_launch_that_was_not_timed_or_not_sampled_says_so():
    row = launch(STEADY)
    seen = summarize(replace(row, ranks=make_result().ranks))  # an earlier worker: when blocks began is not known
    assert seen is not None
    assert (seen.unknown, seen.no_energy, seen.gpus) == (NO_BLOCKS, NO_BLOCKS, ())
    assert summarize(replace(row, telemetry=None)) is None
    assert summarize(replace(row, telemetry=Telemetry(zero=0.0))) is None  # CPU devices


def test_what_a_gpu_did_not_say_is_left_out():
    clocks = {"sm_clock_mhz": (None, 1500, None), "clock_reasons": (0x4, None, 0x4)}
    (gpu,) = found(clocks, seconds=(0.0, 1.0, 2.0), starts=(0.0,)).gpus
    assert (gpu.sm_clock_mhz, gpu.at_power_limit) == ((1500,), (True, True))
    assert (gpu.power_watts, gpu.temperature_celsius, gpu.energy_joules) == ((), None, None)
    assert gpu.power_violation_ms is None


# Reasons for lower clocks


def test_the_bits_are_those_of_nvml():
    named = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("nvmlClocksThrottleReason")}
    assert named["nvmlClocksThrottleReasonSwPowerCap"] == telemetry_summary.AT_POWER_LIMIT
    covered = {0x1, telemetry_summary.AT_POWER_LIMIT, *telemetry_summary.OTHER_REASONS}
    assert sum(covered) == named["nvmlClocksThrottleReasonAll"]
    assert named["nvmlClocksThrottleReasonGpuIdle"] == 0x1
    for bit, part in ((0x20, "heat"), (0x40, "heat"), (0x80, "power"), (0x10, "boost")):
        assert part in telemetry_summary.OTHER_REASONS[bit]


def test_reasons_are_told_apart():
    masks = {"clock_reasons": (0x4, 0x5, 0x24, 0x0, 0x20, 0x8000, 0x1)}
    seen = found(masks, seconds=tuple(range(7)), starts=(0.0,))
    (gpu,) = seen.gpus
    assert gpu.at_power_limit == (True, True, True, False, False, False, False)
    words = ", ".join(gpu.other_reasons)
    assert len(gpu.other_reasons) == 2 and "heat" in words and "0x8000" in words
    assert share_at_power_limit([seen, seen]) == pytest.approx(3 / 7)
    assert share_at_power_limit([]) is None


# Energy


def test_energy_per_sample_is_that_of_all_gpus_in_the_timed_blocks():
    seen = found(STEADY, STEADY)
    assert seen.joules_per_sample == pytest.approx(2 * 600.0 * 40.0 / (4 * 2 * 50))
    assert [gpu.energy_joules for gpu in seen.gpus] == pytest.approx([24000.0, 24000.0])
    assert (seen.no_energy, seen.window_seconds) == ("", 40.0)


def test_energy_between_blocks_belongs_to_no_sample():
    """600 W in the blocks, nothing from second 10 to 20."""
    column, joules = [], 0.0
    for second in EVERY_SECOND:
        column.append(joules)
        joules += 0.0 if 10 <= second < 20 else 600.0
    seen = found({"energy_joules": tuple(column)}, starts=(0.0, 20.0, 30.0))
    assert seen.joules_per_sample == pytest.approx(600.0 * 30.0 / (3 * 2 * 50))


def test_a_counter_is_read_between_its_samples():
    seen = found(STEADY, starts=(0.25, 10.5, 20.75, 30.5), lasting=9.5)
    assert seen.gpus[0].energy_joules == pytest.approx(600.0 * 38.0)


@pytest.mark.parametrize(
    ("gpu", "known", "reason"),
    [
        (STEADY, {"starts": (0.0, 10.0), "lasting": 9.9}, TOO_SHORT),
        (STEADY, {"starts": (0.0, 10.0, 20.0), "lasting": 9.9}, TOO_SHORT),  # 29.9 s
        (STEADY, {"protocol": "from_host"}, NOT_WAITED_FOR),
        (STEADY, {"starts": (0.0, 32.0)}, NOT_AROUND),  # until 42, and the last sample is at 41
        (STEADY, {"starts": (-1.5, 10.0, 20.0, 30.0)}, NOT_AROUND),
        ({}, {}, NO_ENERGY),
        ({"energy_joules": (7.0,) * len(EVERY_SECOND)}, {}, NO_ENERGY),
        ({"energy_joules": tuple(600.0 * second if second < 20 else 0.0 for second in EVERY_SECOND)}, {}, WENT_BACK),
        ({"energy_joules": (5.0, *(600.0 * second for second in EVERY_SECOND[1:]))}, {}, WENT_BACK),  # 5 J, then 0 J
    ],
)
def test_energy_that_nobody_knows_is_none_with_the_reason(gpu, known, reason):
    for seen in (found(gpu, **known), found(STEADY, gpu, **known)):  # one GPU of two is enough
        assert seen.no_energy == reason
        assert seen.joules_per_sample is None
        assert [each.energy_joules for each in seen.gpus] == [None] * len(seen.gpus)


def test_samples_that_are_missing_leave_the_energy_known():
    column = tuple(None if second in (5, 6) else 600.0 * second for second in EVERY_SECOND)
    assert found({"energy_joules": column}).joules_per_sample == pytest.approx(60.0)


def test_the_time_of_violations_is_that_within_the_blocks():
    column = {"power_violation_ms": tuple(100.0 * (second + 1) for second in EVERY_SECOND)}
    column["thermal_violation_ms"] = tuple(float(-second) for second in EVERY_SECOND)
    (gpu,) = found(column, starts=(0.0, 2.0), lasting=1.0).gpus
    assert gpu.power_violation_ms == pytest.approx(200.0)  # also where energy is not told
    assert gpu.thermal_violation_ms is None


# The host


@pytest.mark.parametrize(
    ("cpu", "steal", "percent"),
    [((100.0, 300.0), (10.0, 12.0), 1.0), ((100.0, 100.0), (0.0, 0.0), None), ((9.0, 19.0), (5.0, 4.0), None)],
)
def test_steal_is_a_share_of_the_time_of_all_cores(cpu, steal, percent):
    host = tuple(HostLoad(load=at, cpu_seconds=cpu[at], steal_seconds=steal[at]) for at in (0, 1))
    assert steal_percent(Telemetry(zero=0.0, host=host)) == percent
    assert highest_load(Telemetry(zero=0.0, host=host)) == 1
    assert steal_percent(Telemetry(zero=0.0, host=host[:1])) is None
    assert highest_load(Telemetry(zero=0.0)) is None


# The report


def with_clocks(launch_number: int, mhz: int, *, limited: int, of: int = 4, **known: Any) -> TrialResult:
    """A launch with this clock, whose power limit lowered it in `limited` of the samples."""
    masks = tuple(0x4 if at < limited else 0x0 for at in range(of))
    gpu = {"sm_clock_mhz": (mhz,) * of, "clock_reasons": masks, "power_watts": (600.0 + mhz,) * of}
    gpu |= {"temperature_celsius": (70, 80, 60, 70)[:of]} | known
    row = launch(gpu, seconds=tuple(range(of)), starts=(0.0,))
    return replace(row, spec=replace(row.spec, launch=launch_number))


def table_of(*rows: TrialResult) -> Table:
    (cell,) = summary.summarize(rows)
    return telemetry_table.table(telemetry_table.sampled([cell]))


def test_the_table_shows_a_cell_over_its_launches():
    table = table_of(*(with_clocks(at, mhz, limited=3) for at, mhz in enumerate((1000, 1500, 1100))))
    assert table.values("SM clock") == (Beside(1200.0, 1000.0),)
    assert table.values("power") == (1800.0,)
    assert table.values("limited") == (Beside(75.0, 75.0),)
    assert table.values("temperature") == (80,)
    assert "energy" not in {column.name for column in table.columns}  # known for no cell: the blocks are too short


def test_a_launch_that_failed_does_not_count():
    failed = replace(with_clocks(1, 100, limited=0), status="crashed")
    assert table_of(with_clocks(0, 1000, limited=0), failed).values("SM clock") == (Beside(1000.0, 1000.0),)


def test_reasons_and_their_absence_are_told_apart():
    reasons: dict[str, Any] = {"clock_reasons": (0x4, 0x20, 0x20, 0x0)}
    (words,) = table_of(with_clocks(0, 1000, limited=0, **reasons)).values("lowered by")
    assert "heat" in str(words)
    (none,) = table_of(with_clocks(0, 1000, limited=4)).values("lowered by")
    (unsaid,) = table_of(with_clocks(0, 1000, limited=0, clock_reasons=())).values("lowered by")
    assert isinstance(none, str) and unsaid is None


def test_a_cell_without_a_sample_in_its_blocks_says_so():
    row = launch({"sm_clock_mhz": (1, 2)}, seconds=(-0.5, 0.5), starts=(0.0,), lasting=0.1)
    assert table_of(row).values("SM clock") == (Missing(NO_SAMPLES),)
    assert table_of(row).values("power") == (None,)


def test_the_energy_of_a_sample_is_the_mean_of_its_launches():
    twice = {"energy_joules": tuple(2 * joules for joules in STEADY["energy_joules"])}
    rows = [launch(STEADY), launch(twice), launch({})]
    rows = [replace(row, spec=replace(row.spec, launch=at)) for at, row in enumerate(rows)]
    assert table_of(*rows).values("energy") == (pytest.approx(90.0),)


@pytest.mark.parametrize(("limited", "told"), [(2, False), (3, True)])
def test_cells_at_the_power_limit_in_more_than_half_of_the_samples_are_named(limited, told):
    cells = summary.summarize([with_clocks(0, 1000, limited=limited)])
    assert [cell.title in line for line in telemetry_section.sentence(cells) for cell in cells] == [True] * told


def test_the_report_has_a_section_where_a_launch_was_sampled():
    row = with_clocks(0, 1000, limited=3)
    titles = {}
    for name, each in {"gpu": row, "off": replace(row, telemetry=None)}.items():
        report = document.build(summary.summarize([each]), [each])
        titles[name] = [node.title for node in walk(report) if isinstance(node, Section)]
    assert set(titles["gpu"]) - set(titles["off"]) == {telemetry_section.OF_GPUS}


def test_cpu_devices_have_the_load_of_the_host_alone():
    host = tuple(HostLoad(load=at, cpu_seconds=100.0 * at, steal_seconds=float(at)) for at in (1, 2))
    row = replace(make_result(), telemetry=Telemetry(zero=0.0, host=host))
    (section,) = telemetry_section.section(summary.summarize([row]))
    (table,) = (node for node in section.body if isinstance(node, Table))
    assert section.title == telemetry_section.OF_HOSTS
    assert [column.name for column in table.columns] == ["cell", "steal", "load"]
    assert (table.values("steal"), table.values("load")) == ((1.0,), (2,))
