"""Comparing thousands of launches: there are few kinds of them, and each pair of kinds is compared once."""

from __future__ import annotations

from harness.results.condition_rules import Difference, Purpose, conditions, differences, must_match_for
from harness.spec import TrialResult


class Comparisons:
    """Differences between many launches for one purpose, each found once for all that are alike in what counts.

    A record of thousands of launches has few kinds of them, and most are compared with most others.
    """

    def __init__(self, purpose: Purpose) -> None:
        self._purpose: Purpose = purpose
        self._values = [each.value for each in conditions() if each.rule in must_match_for(purpose)]
        self._kinds: dict[tuple[str, ...], int] = {}
        self._kind_of: dict[int, tuple[TrialResult, int]] = {}  # by identity; the launch is kept, so that it is unique
        self._found: dict[tuple[int, int], list[Difference]] = {}

    def kind(self, result: TrialResult) -> int:
        """A number: launches with the same one differ in nothing that counts."""
        if id(result) not in self._kind_of:
            # what weak scaling and "the same run" depend on may count as well
            counts = (result.run.started, result.spec.devices, result.spec.batch_growth)
            key = (*map(repr, counts), *(repr(value(result)) for value in self._values))
            self._kind_of[id(result)] = (result, self._kinds.setdefault(key, len(self._kinds)))
        return self._kind_of[id(result)][1]

    def differences(self, one: TrialResult, other: TrialResult) -> list[Difference]:
        """What keeps these two apart. Empty: nothing does."""
        key = (self.kind(one), self.kind(other))
        if key not in self._found:
            self._found[key] = differences(one, other, purpose=self._purpose)
        return self._found[key]
