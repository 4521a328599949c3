"""What the requirements are judged from: the rows of one or more runs, and the cells and comparisons that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.reporting import contrasts, descriptions, training
from harness.reporting.contrasts import Group, Twins
from harness.reporting.summary import Cell
from harness.spec import TrialResult
from harness.statistics.verdicts import Verdict


@dataclass(frozen=True, kw_only=True)
class Record:
    """All rows, and the cells that a report makes of them."""

    results: Sequence[TrialResult]
    cells: Sequence[Cell]

    @cached_property
    def timed(self) -> list[Cell]:
        """The cells that have a speed."""
        return [cell for cell in training.timed(self.cells) if cell.estimate is not None]

    @cached_property
    def trained(self) -> list[Cell]:
        """The cells that were trained to a target."""
        return training.trained(self.cells)

    @cached_property
    def measured(self) -> list[Cell]:
        """The cells that have a speed; in a record of trainings alone, those that trained."""
        return self.timed or [cell for cell in self.trained if any(r.status == "ok" for r in cell.launches)]

    @cached_property
    def launches(self) -> list[TrialResult]:
        """The launches that the speeds are of, or the trainings."""
        if self.timed:
            return [result for cell in self.timed for result in cell.timed]
        return [result for cell in self.measured for result in cell.launches if result.status == "ok"]

    @property
    def on_cpu(self) -> bool:
        """Whether the run used virtual CPU devices, of which a report compares no speeds."""
        return descriptions.on_cpu(self.results)

    @cached_property
    def pairs(self) -> list[Twins]:
        """The A/A pairs."""
        return contrasts.twins(self._compared)

    @cached_property
    def groups(self) -> list[Group]:
        """The comparisons of the verdict."""
        return contrasts.groups(self._compared, self.pairs)

    @cached_property
    def comparisons(self) -> list[tuple[Group, Cell, Verdict | None]]:
        """Each comparison of the fastest cell of a group with another one of it."""
        return [
            (group, other, verdict)
            for group in self.groups
            for other, verdict in zip(group.cells[1:], group.verdicts, strict=True)
        ]

    @cached_property
    def claims(self) -> list[tuple[Group, Cell, Verdict]]:
        """The comparisons from which the report claims an order or a tie."""
        return [
            (group, other, verdict)
            for group, other, verdict in self.comparisons
            if verdict is not None and verdict.outcome in ("faster", "slower", "tie")
        ]

    @property
    def _compared(self) -> list[Cell]:
        """The verdict compares cells without a failed launch alone, and no cells on CPU devices."""
        return [] if self.on_cpu else [cell for cell in self.timed if cell.status == "ok"]

    def cells_with(self, wanted: Sequence[TrialResult]) -> list[Cell]:
        """The measured cells that have one of these launches."""
        numbers = {id(result) for result in wanted}
        return [cell for cell in self.measured if any(id(result) in numbers for result in cell.launches)]
