"""No test repeats a sentence of ours: a better wording must not turn tests red one by one.

What reports say is held by approved files (`make approve`); other tests assert facts, for which refusals.py helps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT, TESTS

PACKAGES = ("harness", "torch_impl", "jax_impl", "tf_impl")
WORDS = 4
"""So many words of ours in a row are a sentence's. Three are also columns ("first step s") and commands."""
WORD = r"(?<![\w=/.-])[A-Za-z][A-Za-z'’-]*"
RUN = re.compile(rf"{WORD}(?:[\s,;:.()\"'\\]+{WORD})*")


def phrases(text: str) -> set[tuple[str, ...]]:
    """All runs of WORDS words of a text. Numbers, operators and what is filled in end a run; punctuation does not."""
    found = set()
    for run in RUN.findall(text):
        said = [word.lower() for word in re.findall(WORD, run)]
        found |= {tuple(said[start : start + WORDS]) for start in range(len(said) - WORDS + 1)}
    return found


def literals(code: str, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """The string literals of a module, each with its line; those that Python joins as one, f-strings with a gap for
    each expression. `docstrings`: also those that stand alone."""
    tree = ast.parse(code)
    passed = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and not docstrings)
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node.value])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.lineno, node.value


def frozen(test: str, ours: set[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Where a test's code repeats words of ours."""
    repeated = [(line, phrases(text) & ours) for line, text in literals(test, docstrings=False)]
    return [(line, " ".join(min(found))) for line, found in repeated if found]


def ours(code: str) -> set[tuple[str, ...]]:
    """What a module of ours says: messages and, since they are the command line's help, docstrings."""
    return {phrase for _, text in literals(code, docstrings=True) for phrase in phrases(text)}


def test_no_test_repeats_a_sentence_of_ours():
    said = {phrase for name in PACKAGES for path in (ROOT / name).rglob("*.py") for phrase in ours(path.read_text())}
    assert len(said) > 10_000
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}"
        for path in sorted(Path(TESTS).rglob("*.py"))
        if path.parent != TESTS / "net"  # these quote the code that a fault replaces
        for line, words in frozen(path.read_text(), said)
    ]
    assert not found, "assert facts (numbers, names, options, statuses), not our words:\n" + "\n".join(found)


def test_a_repeated_sentence_is_found_however_it_is_written():
    said = ours('raise Oops(f"the quick {colour} fox jumps over "\n  f"a lazy, sleeping dog, {count} times each")')
    for test in (
        'assert "fox jumps over a" in text',
        'with raises(Oops, match=r"over a lazy, sleeping .* times"): ...',
        'known = [(1, "A LAZY sleeping dog")]',
        'assert line == f"{x}fox jumps "\\\n  "over a dog"',
    ):
        assert frozen(test, said), test
    for test in (
        '"""A fox jumps over a lazy dog."""',  # says what is tested
        'assert "fox jumps over" in text',
        'assert "quick red fox jumps" in text',  # 'quick' and 'fox' are apart in ours
        'assert "fox_jumps_over_a" in names and "--fox=jumps over a" in line',
    ):
        assert not frozen(test, said), test
