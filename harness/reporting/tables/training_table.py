"""The columns of the training table, one row per cell: accuracy, time to target, speed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import IDENTITY, PARITY, STATUS, throughput_column
from harness.reporting.training import share, throughput, to_target
from harness.reporting.values import Kind, OutOf, Quantity, Value
from harness.spec import TrainingSpec, TrialResult
from harness.statistics.intervals import median_interval


def table(cells: Sequence[Cell]) -> Table:
    """One row per training."""
    return make_table(COLUMNS, cells)


def _training(cell: Cell) -> TrainingSpec:
    assert cell.spec.training is not None, "only trainings are rows of this table"
    return cell.spec.training


def _loads(cells: Sequence[Cell]) -> bool:
    """Whether any cell has a loader."""
    return any(_training(cell).input == "loader" for cell in cells)


def _validates(cells: Sequence[Cell]) -> bool:
    """Whether any cell has validation samples."""
    return any(_training(cell).validation_share for cell in cells)


def _input(cell: Cell) -> Value:
    training = _training(cell)
    return "resident" if training.input == "resident" else f"loader, {training.workers} workers"


def _seen(cell: Cell) -> list[TrialResult]:
    """The launches that were evaluated at least once."""
    return [result for result in cell.launches if result.epochs]


def _tried(cell: Cell) -> list[TrialResult]:
    """The launches that count for the time to target. One that failed before it reached the target never did.

    None do where nothing was trained (--epochs 0).
    """
    if cell.disagreement or not _training(cell).epochs:
        return []
    return [result for result in cell.launches if result.status != "skipped"]


def _median_of(value_of: Callable[[TrialResult], float | None]) -> Callable[[Cell], float | None]:
    """The median of a value over the successful seeds that have it; None if there are none."""

    def value(cell: Cell) -> float | None:
        good = [result for result in _seen(cell) if result.status == "ok" and not cell.disagreement]
        return _median([found for result in good if (found := value_of(result)) is not None])

    return value


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _interval_to_target(cell: Cell) -> Value:
    """Of the median time; None where no seed in it reached the target, and "never" says it all."""
    found = median_interval([to_target(result)[0] for result in _tried(cell)])
    return None if found is None or math.isinf(found.low) else found


def _percent(share_of: Callable[[Cell], float | None]) -> Callable[[Cell], float | None]:
    """A share in percent."""

    def value(cell: Cell) -> float | None:
        found = share_of(cell)
        return None if found is None else 100 * found

    return value


def _reached(cell: Cell) -> Value:
    tried = _tried(cell)
    return OutOf(sum(math.isfinite(to_target(result)[0]) for result in tried), len(tried)) if tried else None


def _rate(cell: Cell) -> Value:
    # a training without steady epochs has no throughput, rather than none per second
    rate = _median_of(lambda result: throughput(result) or None)(cell)
    return None if rate is None else Quantity(rate, f"{cell.first.unit}s/s")


COLUMNS = (
    *IDENTITY,
    ColumnOf[Cell](name="input", kind=Kind.TEXT, value=_input, shown=_loads),
    ColumnOf[Cell](
        name="epochs",
        kind=Kind.COUNT,
        value=lambda cell: max((result.epochs[-1].number for result in _seen(cell)), default=None),
        meaning="how many were made; the most of all seeds, of which one may end when it reaches the target.",
    ),
    ColumnOf[Cell](
        name="accuracy",
        kind=Kind.HUNDREDTHS,
        value=_percent(_median_of(lambda result: result.epochs[-1].test_accuracy)),
        unit="%",
        meaning="on the test set after the last epoch; median over seeds. Every test sample counts once.",
    ),
    ColumnOf[Cell](
        name="validation",
        kind=Kind.HUNDREDTHS,
        value=_percent(_median_of(lambda result: result.epochs[-1].validation_accuracy)),
        unit="%",
        shown=_validates,
        meaning=(
            "accuracy after the last epoch on samples that were held out of the training samples; median over seeds. "
            "The target is judged on them, so that nothing is chosen by the test set."
        ),
        on_screen=False,
    ),
    ColumnOf[Cell](
        name="test loss",
        kind=Kind.ROUNDED,
        value=_median_of(lambda result: result.epochs[-1].test_loss),
        meaning="after the last epoch; median over seeds.",
    ),
    ColumnOf[Cell](
        name="target",
        kind=Kind.SHORTEST,
        value=lambda cell: 100 * _training(cell).target_accuracy,
        unit="%",
        on_screen=False,
    ),
    ColumnOf[Cell](
        name="reached",
        kind=Kind.COUNT,
        value=_reached,
        meaning="seeds that reached the target, out of all that were tried.",
    ),
    ColumnOf[Cell](
        name="samples to target",
        kind=Kind.UNTIL,
        value=lambda cell: _median([to_target(result)[1] for result in _tried(cell)]),
        meaning="samples trained on before the target was reached; median over seeds.",
        on_screen=False,
    ),
    ColumnOf[Cell](
        name="to target",
        kind=Kind.UNTIL,
        value=lambda cell: _median([to_target(result)[0] for result in _tried(cell)]),
        unit="s",
        meaning=(
            "time of all training steps up to the first evaluation that reaches the target. It includes compilation in "
            "the first step, but not the evaluations. Median over seeds, each with its own weights and order of "
            "samples; a seed that never reaches the target counts as infinite."
        ),
    ),
    ColumnOf[Cell](
        name="interval",
        kind=Kind.UNTIL,
        value=_interval_to_target,
        unit="s",
        shown_as="interval",
        meaning=(
            "the median of that time lies in this interval, with the confidence in brackets. The interval is computed "
            "from order statistics, which assume no distribution."
        ),
    ),
    throughput_column(
        _rate,
        meaning="median over seeds. Epochs in which a process started do not count, because it compiled then.",
    ),
    ColumnOf[Cell](
        name="waiting",
        kind=Kind.HUNDREDTHS,
        value=_percent(_median_of(lambda result: share(result, "wait_seconds"))),
        unit="%",
        shown=_loads,
        meaning="share of the training time in which the host waited for the next batch.",
    ),
    ColumnOf[Cell](
        name="first step",
        kind=Kind.ROUNDED,
        value=_median_of(lambda result: result.first_step_seconds or 0.0),
        unit="s",
        meaning="time of the first step, including compilation; median over seeds.",
        on_screen=False,
    ),
    ColumnOf[Cell](
        name="reporting",
        kind=Kind.HUNDREDTHS,
        value=_percent(_median_of(lambda result: share(result, "report_seconds"))),
        unit="%",
        meaning=(
            "reporting overhead: time for reading losses and printing progress, relative to the training time, which "
            "does not include it."
        ),
        on_screen=False,
    ),
    PARITY,
    STATUS,
)
