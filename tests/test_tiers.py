"""What each target of make tests: nothing is lost between them, and the usual one finds a strategy that is wrong."""

from __future__ import annotations

import re
import tomllib
from types import FunctionType, ModuleType

import pytest
import test_frameworks
import test_training_frameworks
from conftest import ROOT


def left_out(target: str) -> set[str]:
    """The marks of the tests that a target of make leaves out."""
    text = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(rf"^{target}: setup\n\t\$\(PYTEST\) -m 'not \(([a-z or]+)\)'$", text, re.MULTILINE)
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
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == "make test-all"


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
