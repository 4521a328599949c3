"""Requirement 5: the order in which cells were launched."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, combinations, pairwise

from harness.planning.launch_order import shuffled_together
from harness.reporting.checklist.answers import Answer, judged, not_applicable, together, unknown
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import count
from harness.results.holds import hold_of
from harness.spec import FAILURES, TrialResult, TrialSpec
from harness.statistics.verdicts import SIGNIFICANCE

MOST_PLACES = 10_000  # at which cells that were left out may have stood in a plan


def order(record: Record) -> Answer:
    """5. Rows stand in the order of their launches: all of one round before any of the next. No round is split over
    machines or uses of a machine. The orders of all whole rounds are the ones that the run's seed gives. Where rows
    tell when their blocks began, the clock confirms their order. A single cell has no order."""
    runs: dict[str, list[TrialResult]] = {}
    for result in record.results:
        runs.setdefault(result.run.started, []).append(result)
    answers = []
    for rows in runs.values():
        launched = [row for row in rows if row.launched or _in_its_turn(row)]
        if len({row.spec.cell for row in launched}) > 1:
            gaps = len({row.spec.cell for row in rows if _left_out(row)})
            answers.append(_of_run(launched, gaps))
    return together(*answers) if answers else not_applicable("one cell alone has no order")


def _left_out(row: TrialResult) -> bool:
    """Whether a cell that was to be launched never was: its parity phase failed, or its framework did not start."""
    return row.status in FAILURES and not row.launched


def _in_its_turn(row: TrialResult) -> bool:
    """Whether the row of a trial that was skipped stands where it would have been launched."""
    return row.cause is not None and row.cause.kind == "too_large"


def _of_run(rows: Sequence[TrialResult], gaps: int) -> Answer:
    """`rows`: of one run, in the order in which they were written. `gaps`: how many of its cells were left out."""
    cells = {row.spec.cell for row in rows}
    first = min(row.spec.launch for row in rows)  # a common report of several runs counts their rounds on
    numbers = [row.spec.launch - first for row in rows]
    rounds: dict[int, list[TrialResult]] = {}
    for number, row in zip(numbers, rows, strict=True):
        rounds.setdefault(number, []).append(row)
    early = sum(number < highest for number, highest in zip(numbers, accumulate(numbers, max), strict=True))
    told = f"{count(len(rounds), 'round')} of {count(len(cells), 'cell')}"
    interleaved = judged(not early, told if not early else f"{early} of {len(rows)} launches come after a later round")
    return together(interleaved, _on_one_hold(rounds), _as_seeded(rounds, gaps), _by_the_clock(rows))


def _on_one_hold(rounds: dict[int, list[TrialResult]]) -> Answer:
    holds = {
        number: {hold_of(row.conditions.hardware) for row in rows if row.launched} for number, rows in rounds.items()
    }
    if any(not any(hold) for of_round in holds.values() for hold in of_round):
        return unknown("which machine a launch ran on is not recorded")
    split = [1 + number for number, of_round in sorted(holds.items()) if len(of_round) > 1]
    return judged(
        not split,
        f"round {', '.join(map(str, split))} split over machines" if split else "no round split over machines",
    )


def _as_seeded(rounds: dict[int, list[TrialResult]], gaps: int) -> Answer:
    """Whether one plan of the cells, shuffled with the seed for each round, gives all orders. The plan itself is not in
    the rows: the first round tells it. Where the cells that were left out stood in it must be tried, so it is not known
    if random orders would pass as well."""
    cells = {number: [row.spec.cell for row in rows] for number, rows in rounds.items()}
    planned = {cell for cell in cells[0] if any(cell in of for number, of in cells.items() if number)}
    orders = {number: [cell for cell in of if cell in planned] for number, of in cells.items()}
    whole = {number: of for number, of in orders.items() if len(of) == len(planned) and {*of} == planned}
    if len(whole) < 2:
        return unknown("fewer than two whole rounds show no seeded order")
    seed = min(row.spec.seed for rows in rounds.values() for row in rows)
    specs = {row.spec.cell: row.spec for row in rounds[0]}
    several = len(shuffled_together(list(specs.values()))) > 1
    places = math.comb(len(planned) + gaps, gaps)
    by_chance = places / math.factorial(len(planned)) ** (len(whole) - 1)
    if gaps and (several or places > MOST_PLACES or by_chance > SIGNIFICANCE):
        return unknown(f"{count(gaps, 'cell')} without a launch: where they stood in the seeded orders is not known")
    seeded = any(
        len({tuple(_plan_of(of, specs, f"{seed}/{number}", missing)) for number, of in whole.items()}) == 1
        for missing in combinations(range(len(planned) + gaps), gaps)
    )
    told = f"{len(whole)} rounds in the orders of seed {seed}"
    return judged(seeded, told if seeded else f"not {told}")


def _plan_of(shuffled: Sequence[str], specs: Mapping[str, TrialSpec], seed: str, missing: Sequence[int]) -> list[str]:
    """The plan that harness/planning/launch_order.py shuffles into this order, without the cells at the `missing`
    places. In a sweep of batches, it shuffles the cells of each batch on their own."""
    plan: list[str] = []
    for number, group in enumerate(shuffled_together([specs[cell] for cell in shuffled])):
        part = shuffled[len(plan) : len(plan) + len(group)]
        plan += _unshuffled(part, f"{seed}/{number}" if number else seed, missing)
    return plan


def _unshuffled(shuffled: Sequence[str], seed: str, missing: Sequence[int]) -> list[str]:
    """The order before the shuffle."""
    planned = len(shuffled) + len(missing)
    places = [place for place in random.Random(seed).sample(range(planned), planned) if place not in missing]
    return [cell for _, cell in sorted(zip(places, shuffled, strict=True))]


def _by_the_clock(rows: Sequence[TrialResult]) -> Answer:
    """Whether launches of one session in one hold began in the order of their rows."""
    starts: dict[Hashable, list[float]] = {}
    for row in rows:
        began = [timing.block_starts[0] for timing in row.timings if timing.block_starts]
        if began:
            key = (row.run.session, hold_of(row.conditions.hardware))
            starts.setdefault(key, []).append(min(began))
    if all(row.spec.training for row in rows):
        return judged(True, "")  # trainings have no blocks
    if not starts:
        return unknown("when blocks began is not recorded")
    wrong = sum(later < earlier for times in starts.values() for earlier, later in pairwise(times))
    return judged(not wrong, f"{wrong} of them begun before the launch of the row above" if wrong else "")
