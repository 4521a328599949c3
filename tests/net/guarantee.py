"""What an entry of the list is: a guarantee, and the faults under which its tests must fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Break:
    """A fault on purpose.

    `edits` are (file, old text, new text); each old text occurs once in its file. `tests` are named as
    "test_launch::test_name", with "[...]" for one of its cases; of a test without that one case at least must fail.
    They must fail by an assertion, or by an exception whose name ends with `error`.
    """

    fault: str  # what the edits stand for
    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]
    error: str = "AssertionError"

    @property
    def ids(self) -> tuple[str, ...]:
        """The tests as pytest names them."""
        return tuple(f"tests/{test.replace('::', '.py::', 1)}" for test in self.tests)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What the suite promises, in a sentence, and the faults that show that the promise is held by tests."""

    name: str
    promise: str
    breaks: tuple[Break, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """All its tests: no test is here that was not seen to fail."""
        return tuple(dict.fromkeys(test for each in self.breaks for test in each.ids))
