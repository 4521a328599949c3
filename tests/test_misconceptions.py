"""docs/misconceptions.md and its Chinese version: what they name exists, and both name the same."""

from __future__ import annotations

import ast
import re
import shlex
import sys

import pytest
from conftest import ROOT, TESTS, harness

sys.path.insert(0, str(TESTS / "faults"))
from planted import FAULTS, TIMED, TRAINED, register_all

from harness.spec import registry

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("misconceptions", "misconceptions.zh")}
ENGLISH = PAGES["misconceptions"]
COMMANDS = dict(re.findall(r"^\| ([A-Z]) \| `python -m (.*)` \|$", ENGLISH, re.MULTILINE))
LINK = r"\]\(([^)]+)\)"


def facts(text: str) -> dict[str, object]:
    """What a page refers to, whatever its language."""
    return {
        "claims": re.findall(r"S\d:\d+(?:-\d+)?", text),
        "links": [link for link in re.findall(LINK, text) if not link.startswith("misconceptions")],
        "commands": re.findall(r"`(python [^`]+)`", text),
        "names": sorted(re.findall(r"`([A-Za-z_.]+)`", text)),
    }


def test_both_languages_refer_to_the_same():
    english, chinese = map(facts, PAGES.values())
    assert english == chinese
    assert len(set(re.findall(r"S\d:\d+", ENGLISH))) > 60


def defined(code: str) -> set[str]:
    """The names that a module defines, methods as "Class.method"."""
    names: set[str] = set()
    for node in ast.parse(code).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def test_the_code_that_is_named_exists():
    found = re.findall(rf"{LINK} ((?:`[\w.]+`(?:, )?)+)", ENGLISH)
    assert len(found) > 40
    for link, names in found:
        there = defined((ROOT / "docs" / link).read_text("utf-8"))
        assert set(re.findall(r"`([\w.]+)`", names)) <= there, f"{link}: {names}"


def test_the_planted_faults_that_are_named_exist_where_the_commands_look():
    register_all()
    kinds = {"timed": TIMED, "trained": TRAINED}
    strategies = {each.name for name in registry.FRAMEWORKS for each in registry.framework(name).strategies}
    rows = [line.strip("| ").split(" | ") for line in ENGLISH.splitlines()]
    evidence = [row[3] for row in rows if len(row) == 4 and re.search(r"S\d:\d", row[0])]
    named = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`(?: \((timed|trained)\))?", " ".join(evidence))
    faults = [(name, kind) for name, kind in named if name not in strategies]
    assert len(faults) > 12
    for name, kind in faults:
        assert name in kinds.get(kind, FAULTS), f"{name}: {kind or 'gate'}"


RUNS = [letter for letter, command in COMMANDS.items() if command.startswith("harness run")]


@pytest.mark.frameworks
@pytest.mark.parametrize("letter", RUNS)
def test_the_runs_can_be_planned(letter):
    _, _, *arguments = shlex.split(COMMANDS[letter])
    done = harness("plan", "--platform", "cpu", *arguments, fakes=False)
    assert done.returncode == 0, done.stderr
