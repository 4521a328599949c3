"""Runs and resumes that are killed at random moments lose nothing: a few of the kills of `python tests/kills.py`."""

from __future__ import annotations

import kills
import pytest

pytestmark = pytest.mark.kills


@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_and_nothing_is_left_after_kills_at_random_moments(tmp_path):
    found = kills.series(tmp_path, kills=12, seed=0)
    assert found.violations == []
    assert found.kills.total() == 12
    assert found.told.total() >= 3, found.text()  # a kill before run.json, or after the end, tells nothing
