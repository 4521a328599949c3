"""What tests ask of an error: its kind or exit code, one line, and facts. Never its words, which may become better."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from harness.spec.errors import UsageError


def names(text: str, *facts: str) -> None:
    """Asserts that `text` is one line with all `facts`: values, options, allowed values. No part of a word or number
    counts."""
    assert len(text.strip().splitlines()) == 1, text
    for fact in facts:
        start, end = (r"\b" if edge.isalnum() else "" for edge in (fact[0], fact[-1]))
        assert re.search(f"{start}{re.escape(fact)}{end}", text), f"{fact!r} is not in {text!r}"


@contextlib.contextmanager
def refused(*facts: str, kind: type[Exception] = UsageError) -> Iterator[pytest.ExceptionInfo]:
    """The block raises an error of this kind, in one line with these facts."""
    with pytest.raises(kind) as error:
        yield error
    names(str(error.value), *facts)


def refused_command(done: subprocess.CompletedProcess, *facts: str, code: int = 2) -> None:
    """The command ended with this code and, beside progress, one line with these facts."""
    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith("preparing")]  # progress
    names("\n".join(said), *facts)
    assert "Traceback" not in done.stderr
