"""Rounds: every cell launched once. Launches of one round are compared with each other, so a round is begun only if all
of it is expected to end before the session must."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from harness.session.budget import Budget
from harness.session.proofs import Proofs
from harness.spec import TrialSpec
from harness.spec.progress import Display


class Rounds:
    """The rounds of a session: which of them may begin."""

    def __init__(
        self,
        budget: Budget,
        proofs: Proofs,
        *,
        launches: int,
        at_most: float,
        later: Collection[str] = (),
        display: Display,
    ) -> None:
        """`launches`: of each cell in the whole run; a run of single launches has no rounds to compare, and begins all
        that it can. `at_most`: seconds that a session as long as this one can have for a round. `later`: computations
        that are proved within the rounds."""
        self._budget, self._proofs, self._display = budget, proofs, display
        self._launches, self._at_most, self._later = launches, at_most, later

    def that_fit(self, trials: Sequence[TrialSpec]) -> Iterator[list[TrialSpec]]:
        """The rounds that may begin, each with the trials that are left of it.

        Whether one may is decided, and told, when the one before it has ended. The first one may also begin if no
        session as long as this one would have time for it.
        """
        rounds = [list(trials_of_round) for _, trials_of_round in groupby(trials, key=lambda spec: spec.launch)]
        begun = False
        for number, trials_of_round in enumerate(rounds):
            left, expected = self._budget.left(), self._expected(trials_of_round)
            launches = len(self._launched(trials_of_round))
            if launches:
                name = f"round {trials_of_round[0].launch + 1} of {self._launches}"
                later = [] if math.isinf(left) else map(self._expected, rounds[number + 1 :])
                self._display.done(f"{name}: {_outlook(expected, later, left=left, launches=launches)}", "note")
            never = not begun and expected is not None and expected >= self._at_most
            if expected is None or expected < left or never or self._launches == 1:
                begun = True
                yield trials_of_round

    def _launched(self, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Those of cells that are proved, or will be: the others have failed, and take no time."""
        found = [(spec, self._proofs.get(spec)) for spec in trials]
        return [spec for spec, proof in found if (proof.status == "ok" if proof else spec.computation in self._later)]

    def _expected(self, trials: Sequence[TrialSpec]) -> float | None:
        return self._budget.expected(self._launched(trials))


def _outlook(expected: float | None, later: Iterable[float | None], *, left: float, launches: int) -> str:
    """How long a round is expected to take, and how many of the later ones fit into the time that is left after it."""
    what = "1 launch" if launches == 1 else f"{launches} launches"
    if expected is None:  # nothing is known yet
        return what
    found = f"{what}, expected to take {_minutes(expected)}"
    if math.isinf(left):
        return found
    if expected >= left:
        return f"{found}, more than the {_minutes(left)} that are left"
    fit, rest = 0, left - expected
    for seconds in later:
        if seconds is None or seconds >= rest:
            break
        fit, rest = fit + 1, rest - seconds
    return f"{found} of the {_minutes(left)} that are left; {fit} more after it fit as well"


def _minutes(seconds: float) -> str:
    return f"{max(0.0, seconds) / 60:.1f} min"
