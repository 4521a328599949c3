"""Intervals, ratios, verdicts, variance and steadiness: against scipy's tests, published examples, and known truths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats

from harness.statistics import intervals, simulation, steadiness, variance, verdicts
from harness.statistics.ratios import Ratio, paired, unpaired

VALUES = [101.0, 99.5, 100.2, 103.1, 98.7]
OTHERS = [97.0, 99.9, 95.5, 98.8, 99.0]


def ratio(value, error=0.01, degrees=4.0):
    return Ratio(value=value, deviation=error * 5**0.5, standard_error=error, degrees=degrees, pairs=5)


def test_a_means_interval_is_that_of_students_t():
    found = intervals.mean_interval(VALUES)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(VALUES), scale=stats.sem(VALUES))
    assert found and (found.low, found.high) == pytest.approx((low, high))
    assert intervals.mean_interval([1.0]) is None
    logs = intervals.mean_interval([math.log(value) for value in VALUES])
    scaled = intervals.geometric_interval(VALUES)
    assert logs and scaled and (scaled.low, scaled.high) == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert intervals.geometric_mean([1.0, 100.0]) == pytest.approx(10.0)


def test_a_ratio_within_rounds_is_a_paired_t_test_of_logarithms():
    found = paired(dict(enumerate(VALUES)), dict(enumerate(OTHERS)))
    expected: Any = stats.ttest_rel(np.log(VALUES), np.log(OTHERS))
    low, high = np.exp(expected.confidence_interval(0.95))
    assert found and found.interval
    assert (found.interval.low, found.interval.high, found.p) == pytest.approx((low, high, expected.pvalue))
    assert found.inverse.value == pytest.approx(1 / found.value)
    # only common rounds count
    fewer = paired({0: 2.0, 1: 4.0, 7: 9.0}, {0: 1.0, 1: 1.0, 8: 5.0})
    assert fewer and (fewer.value, fewer.pairs) == (pytest.approx(8**0.5), 2)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_a_ratio_without_rounds_is_welchs_test_of_logarithms():
    found = unpaired(VALUES, OTHERS[:3])
    expected: Any = stats.ttest_ind(np.log(VALUES), np.log(OTHERS[:3]), equal_var=False)
    low, high = np.exp(expected.confidence_interval(0.95))
    assert found.interval
    assert (found.interval.low, found.interval.high, found.p) == pytest.approx((low, high, expected.pvalue))
    assert unpaired([1.0], [2.0, 2.1]).interval is None


def test_two_values_have_no_interval_that_is_reported_and_are_tested_all_the_same():
    assert intervals.mean_interval([1.0, 2.0]) is None and intervals.mean_interval([1.0, 2.0, 3.0])
    far, near = paired({0: 8.0, 1: 8.1}, {0: 1.0, 1: 1.0}), paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 1.0})
    assert far and near and (far.interval, near.interval) == (None, None)
    low, high = np.exp(stats.ttest_1samp(np.log([8.0, 8.1]), 0).confidence_interval(0.95))
    assert far.tested and (far.tested.low, far.tested.high) == pytest.approx((low, high))
    assert [each.outcome for each in verdicts.judge([far, near])] == ["faster", "unresolved"]
    without_pairs = unpaired([1.0, 1.2], [2.0, 2.1])
    assert without_pairs.interval is None and without_pairs.tested


def test_one_pair_has_no_interval_and_no_significance():
    found = paired({0: 2.0}, {0: 1.0})
    assert found and (found.value, found.interval, found.p) == (2.0, None, 1.0)
    assert verdicts.judge([found])[0].outcome == "unknown"


def test_holms_adjustment_is_that_of_its_definition():
    # Aickin & Gensler 1996, American Journal of Public Health 86, p. 727: the smallest times k, the next times k - 1
    assert verdicts.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert verdicts.holm([0.5, 0.9]) == [1.0, 1.0]
    assert verdicts.holm([0.01, 0.02], family=10) == pytest.approx([0.1, 0.18])
    assert verdicts.holm([]) == []


def test_each_verdict_needs_its_evidence():
    outcomes = [verdict.outcome for verdict in verdicts.judge([ratio(2.0), ratio(0.5), ratio(1.0, 0.001), ratio(1.02)])]
    assert outcomes == ["faster", "slower", "tie", "unresolved"]
    # significant, but of no practical interest: its interval reaches beyond the margin, so it is no tie either
    (small,) = verdicts.judge([ratio(1.009, 0.001)])
    assert (small.outcome, small.adjusted_p < 0.01) == ("unresolved", True)
    # among many comparisons, the same ratio shows less
    assert [verdicts.judge([ratio(1.05)] * count)[0].outcome for count in (1, 20)] == ["faster", "unresolved"]
    assert verdicts.judge([ratio(1.05)], family=20)[0].outcome == "unresolved"
    # a wider margin makes a tie of what was an order
    assert verdicts.judge([ratio(1.02, 0.001)], margin=0.05)[0].outcome == "tie"


def test_the_launches_that_are_said_to_be_needed_suffice():
    """A two-sided t test at 5% with a power of 80%, in a simulation with that many launches."""
    found = verdicts.launches_needed(Ratio(value=1.02, deviation=0.02, standard_error=0.01, degrees=3, pairs=4))
    assert found is not None
    random, hits = np.random.default_rng(0), 0
    for _ in range(1_000):
        logs = math.log(1.02) + 0.02 * random.standard_normal(found)
        tested: Any = stats.ttest_1samp(logs, 0.0)
        hits += tested.pvalue < 0.05
    assert 0.75 < hits / 1_000 < 0.9
    assert verdicts.launches_needed(ratio(1.0101, 1.0)) is None


def test_the_margin_is_twice_the_floor_and_at_least_one_percent():
    assert verdicts.practical_margin(None) == verdicts.practical_margin(0.001) == 0.01
    assert verdicts.practical_margin(0.02) == pytest.approx(math.expm1(0.04))
    assert verdicts.floor_of(unpaired(VALUES, OTHERS)) is None
    assert floor_of_logs([0.01]) is None
    assert floor_of_logs([0.01, -0.01, 0.01, -0.01]) == pytest.approx(0.01 / 2)  # sd over sqrt(4), around 0


@pytest.mark.parametrize("logs", [[0.01, 0.03], [0.02, 0.02, 0.02], [0.3, -0.1, 0.02, 0.004, -0.2]])
def test_the_floor_is_the_standard_error_around_a_true_ratio_of_one(logs):
    assert floor_of_logs(logs) == pytest.approx(math.sqrt(np.mean(np.square(logs)) / len(logs)))


def floor_of_logs(logs):
    """The floor of an A/A pair whose ratios within rounds have these logarithms."""
    found = paired(dict(enumerate(np.exp(logs))), dict.fromkeys(range(len(logs)), 1.0))
    assert found
    return verdicts.floor_of(found)


def test_the_two_levels_of_variance_are_told_apart():
    random = np.random.default_rng(1)
    launches = np.exp(0.03 * random.standard_normal((400, 1)) + 0.01 * random.standard_normal((400, 10)))
    found = variance.components(launches.tolist())
    assert (found.between, found.within) == pytest.approx((0.03, 0.01), rel=0.1)
    assert found.share_between == pytest.approx(0.9, abs=0.02)
    assert variance.best_blocks(found, launch_cost=81.0, block_cost=1.0) == 3  # 0.01 / 0.03 * sqrt(81)
    assert variance.components([[1.0, 1.1]]).between is None
    # blocks that vary as much as launches do: nothing is left for launches
    assert variance.components([[1.0, 2.0], [2.0, 1.0]]).between == 0.0


def test_a_trend_and_a_change_of_level_are_found_in_the_launch_that_has_them():
    random = np.random.default_rng(2)
    launches = (1 + 0.002 * random.standard_normal((5, 10))).tolist()
    assert steadiness.findings(launches) == []
    trend = [*launches[:3], [1 + 0.01 * block for block in range(10)], launches[4]]
    (found,) = (each for each in steadiness.findings(trend) if each.kind == "trend")
    assert found.launches == (3,)
    assert found.size == pytest.approx(0.09 / 1.045)
    falling = [[value * (0.95 if block >= 5 else 1.0) for block, value in enumerate(launches[0])]]
    (change,) = (each for each in steadiness.findings(falling) if each.kind == "change")
    assert change.size == pytest.approx(-0.05, abs=0.01)


def test_a_pattern_that_launches_share_is_found_although_no_launch_shows_it():
    random = np.random.default_rng(3)
    swings = 1 + 0.02 * np.sin(2.4 * np.arange(10))
    launches = swings * (1 + 0.005 * random.standard_normal((5, 10)))
    kinds = {found.kind for found in steadiness.findings(launches.tolist())}
    assert kinds == {"pattern"}


def test_few_blocks_and_small_changes_are_not_flagged():
    assert steadiness.findings([[1.0, 1.2, 1.4, 1.6]]) == []
    assert steadiness.findings([[1 + 0.0005 * block for block in range(10)]]) == []


def test_mann_kendalls_p_value_is_that_of_kendalls_tau():
    random = np.random.default_rng(4)
    for _ in range(10):
        blocks = random.standard_normal(10) + 10 + 0.2 * np.arange(10)
        p, _ = steadiness._trend(blocks)
        expected: Any = stats.kendalltau(np.arange(10), blocks)
        assert p == pytest.approx(expected.pvalue, abs=0.01)


def percents(line):
    cells = (cell.strip() for cell in line.split("|"))
    return [float(cell.strip("%")) for cell in cells if cell.endswith("%")]


def test_the_page_shows_what_the_simulation_gives_and_that_it_suffices():
    page = (ROOT / "docs" / "method.md").read_text("utf-8")
    covered = simulation.coverage_table()
    assert covered in page
    rows = [(line, percents(line)) for line in covered.splitlines() if percents(line)]
    assert len(rows) == 6
    for line, shares in rows:
        assert min(shares) >= (93 if "| normal |" in line else 90)
    equal = page.partition("**A/A**")[2].partition("**Power**")[0]
    told_apart = [share for line in equal.splitlines() for share in percents(line)]
    assert len(told_apart) == 12 and max(told_apart) <= 5
