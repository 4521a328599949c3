"""The 20 requirements, and the answers that a record gives to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.reporting.checklist import clocks, launches, machine, order, programs
from harness.reporting.checklist.answers import Answer, not_applicable, unknown
from harness.reporting.checklist.record import Record
from harness.reporting.summary import Cell
from harness.spec import TrialResult


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One requirement in a few words, and the function that decides it.

    `of`: what it is about. Trainings claim no speeds; without any cell that was timed or trained, nothing is known of
    programs either.
    """

    words: str
    rule: Callable[[Record], Answer]
    of: Literal["speeds", "programs", "rows"] = "speeds"

    def answer(self, record: Record) -> Answer:
        """What a record says of it."""
        if self.of == "rows" or record.timed or (self.of == "programs" and record.measured):
            return self.rule(record)
        if record.measured:
            return not_applicable("trainings claim no speed")
        return unknown("no cell has a speed")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the checklist."""

    number: int
    requirement: str
    answer: Answer


REQUIREMENTS = (
    Requirement(words="launches are the unit of replication", rule=launches.replication),
    Requirement(words="95% interval of every mean", rule=launches.intervals),
    Requirement(words="two levels of variance", rule=launches.variance),
    Requirement(words="paired ratios, Holm, ties", rule=launches.comparisons),
    Requirement(words="random interleaved order", rule=order.order, of="programs"),
    Requirement(words="fixed warm-up", rule=clocks.warm_up),
    Requirement(words="steady state is tested", rule=clocks.steadiness),
    Requirement(words="devices are synchronized", rule=clocks.synchronization),
    Requirement(words="slowest rank counts", rule=clocks.ranks),
    Requirement(words="separate clocks", rule=clocks.separate_clocks),
    Requirement(words="time to target", rule=programs.time_to_target, of="rows"),
    Requirement(words="parity before speed", rule=programs.same_training, of="programs"),
    Requirement(words="equal settings, as data", rule=programs.settings, of="programs"),
    Requirement(words="named base cases", rule=programs.base_case),
    Requirement(words="right means", rule=programs.means),
    Requirement(words="distribution of steps", rule=clocks.distribution),
    Requirement(words="bounds of the machine", rule=machine.bounds),
    Requirement(words="clocks, power, disturbances", rule=machine.telemetry),
    Requirement(words="no launch left out", rule=machine.every_launch, of="rows"),
    Requirement(words="scope and environment", rule=machine.scope, of="programs"),
)


def check(results: Sequence[TrialResult], cells: Sequence[Cell]) -> list[Row]:
    """The answers to all requirements, in their order. `cells`: those of these results."""
    record = Record(results=results, cells=cells)
    return [
        Row(number=number, requirement=requirement.words, answer=requirement.answer(record))
        for number, requirement in enumerate(REQUIREMENTS, 1)
    ]
