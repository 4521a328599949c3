"""What each target of make tests: nothing is lost between them, and the usual one finds a strategy that is wrong."""

from __future__ import annotations

import re
import tomllib
from types import FunctionType, ModuleType, SimpleNamespace

import conftest
import pytest
import test_frameworks
import test_training_frameworks
from conftest import ROOT
from refusals import names


def left_out(target: str) -> set[str]:
    """The marks of the tests that a target of make leaves out."""
    text = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(
        rf"^{target}: setup\n\t\$\(PYTEST\) -m 'not \(([a-z or]+)\)'( \$\(if \$\(SHARE\),--share \$\(SHARE\)\))?$",
        text,
        re.MULTILINE,
    )
    assert found, target
    return set(found[1].split(" or "))


def marks(module: ModuleType, test: FunctionType) -> set[str]:
    """The marks of a test and of its module."""
    of_module = getattr(module, "pytestmark", [])
    of_both = [*(of_module if isinstance(of_module, list) else [of_module]), *getattr(test, "pytestmark", [])]
    return {mark.name for mark in of_both}


def test_each_tier_has_the_tests_of_the_one_below_and_ci_runs_the_last():
    quick, usual, every = map(left_out, ("test-quick", "test", "test-cpu"))
    assert quick > usual > every == {"gpu", "hosts"}
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert quick == {line.partition(":")[0] for line in options["markers"]}
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1].startswith("make test-all SHARE=")


def test_shares_have_each_long_test_once_and_all_others_every_time():
    long = [f"long-{number}" for number in range(7)]
    found = [shared(f"{kth}/3", long, others=["a", "b"]) for kth in (1, 2, 3)]
    assert all(each[-2:] == ["a", "b"] for each in found)
    assert sorted(name for each in found for name in each[:-2]) == long
    assert shared("1/1", long, others=[]) == long


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", ""])
def test_a_share_that_is_none_is_refused(wrong):
    with pytest.raises(pytest.UsageError) as refused:
        conftest.share(wrong)
    names(str(refused.value), f"--share {wrong}", "K/N")


def shared(option: str, long: list[str], *, others: list[str]) -> list[str]:
    """The names of the tests that a share leaves of these."""

    def item(name: str, marks: set[str]) -> SimpleNamespace:
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark in marks)

    items = [item(name, {"faults" if number % 2 else "slow"}) for number, name in enumerate(long)]
    items += [item(name, {"runs"}) for name in others]
    config = SimpleNamespace(getoption=lambda name: option, hook=SimpleNamespace(pytest_deselected=lambda items: None))
    conftest.keep_share(config, items)
    return [each.nodeid for each in items]


@pytest.mark.parametrize(
    ("module", "test"),
    [
        (test_frameworks, test_frameworks.test_every_strategy_on_a_network_with_batch_norm_and_tuned),
        (test_training_frameworks, test_training_frameworks.test_every_strategy_trains_evaluates_and_saves),
    ],
)
def test_the_usual_tests_prove_and_train_every_strategy_of_every_framework(module, test):
    """Each of them loops over all strategies of a manifest."""
    assert marks(module, test) == {"frameworks", "parametrize"}
    assert not marks(module, test) & left_out("test")
