"""The list of guarantees (tests/net/) keeps up with the tree, its page with the list, and only failures are noticed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT

NET = Path(__file__).parent / "net"
sys.path.insert(0, str(NET))
import break_each  # noqa: E402
import faults_25  # noqa: E402
from break_each import Case  # noqa: E402
from guarantee import Break  # noqa: E402
from guarantees import GUARANTEES, PAGE  # noqa: E402

BREAKS = [each for guarantee in GUARANTEES for each in guarantee.breaks]


def test_the_page_is_what_the_list_says():
    done = subprocess.run([sys.executable, NET / "guarantees.py"], capture_output=True, text=True, check=True)
    assert done.stdout == PAGE.read_text(), "make it anew: see its first line"


def test_every_guarantee_is_held_by_a_test_that_was_to_fail():
    assert all(guarantee.breaks for guarantee in GUARANTEES)
    assert all(each.tests and each.edits for each in BREAKS)
    for names in ([guarantee.name for guarantee in GUARANTEES], [each.fault for each in BREAKS]):
        assert not [name for name, count in Counter(names).items() if count > 1]


def test_there_are_25_faults_around_a_run():
    assert len(faults_25.FAULTS) == 25
    assert len({each.fault for each in faults_25.FAULTS}) == 25


@pytest.mark.runs
def test_every_test_of_the_list_is_there():
    ids = list(dict.fromkeys(test for each in (*BREAKS, *faults_25.FAULTS) for test in each.ids))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *ids]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, [line for line in done.stderr.splitlines() if line.startswith("ERROR")]


def test_every_fault_can_be_planted_and_is_still_python(tmp_path):
    for number, each in enumerate(BREAKS):
        files = {file: (ROOT / file).read_text() for file, _, _ in each.edits}
        for file, old, new in each.edits:
            assert files[file].count(old) == 1, f"{each.fault}: in {file} once: {old!r}"
            assert old != new, each.fault
            files[file] = files[file].replace(old, new)
        for file, text in files.items():
            if not file.endswith(".py"):
                continue
            compile(text, f"{each.fault}: {file}", "exec")
            path = tmp_path / str(number) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if importlib.util.find_spec("ruff"):  # not all who run the tests have it: that no name is undefined
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--output-format=concise"]
        done = subprocess.run([*command, "--select=E9,F821,F823", tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("cases", "error", "expected"),
    [
        ([Case("failed", "assert 1 == 2")], "AssertionError", True),
        ([Case("failed", "AssertionError: assert []")], "AssertionError", True),
        ([Case("passed", ""), Case("failed", "Failed: DID NOT RAISE <class 'ValueError'>")], "AssertionError", True),
        ([Case("failed", "harness.spec.errors.UsageError: line 2")], "UsageError", True),
        ([Case("passed", "")], "AssertionError", False),
        ([Case("skipped", "no frameworks")], "AssertionError", False),
        ([Case("error", "AssertionError: in a fixture")], "AssertionError", False),
        ([Case("failed", "NameError: name 'x' is not defined")], "AssertionError", False),
        ([Case("failed", "harness.spec.errors.UsageError: line 2")], "AssertionError", False),
        ([Case("failed", "Failed: Timeout (>240.0s) from pytest-timeout.")], "AssertionError", False),
        ([], "AssertionError", False),
    ],
)
def test_a_fault_is_noticed_by_what_was_expected_alone(cases, error, expected):
    each = Break(fault="", edits=(), tests=(), error=error)
    assert break_each.noticed(each, cases) == expected


@pytest.mark.runs
@pytest.mark.parametrize(
    ("new", "expected"), [("max(ranks)", "passed"), ("min(ranks)", "failed"), ("max(ranks))", "error")]
)
def test_tests_run_in_a_copy_that_has_the_fault(new, expected):
    test = "test_timing::test_the_slowest_rank_counts_block_by_block"
    each = Break(fault="", edits=(("harness/results/rates.py", "max(ranks)", new),), tests=(test,))
    before = (ROOT / "harness" / "results" / "rates.py").read_text()
    with break_each.copied() as tree:
        break_each.plant(tree, each)
        (cases,) = break_each.run_tests(tree, each.ids).values()
    assert [case.outcome for case in cases] in ([expected], [] if expected == "error" else [expected])
    assert break_each.noticed(each, cases) == (expected == "failed")
    assert (ROOT / "harness" / "results" / "rates.py").read_text() == before
    assert not tree.exists()
