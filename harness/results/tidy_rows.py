"""From the records of a run to the rows of a tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.results import disagreeing, rates
from harness.results.pooling import Pool, pools
from harness.results.tidy_columns import BLOCK_COLUMNS, LAUNCH_COLUMNS, Block, Launch
from harness.spec import TrialResult
from harness.spec.telemetry import timed_blocks

Row = dict[str, Any]


def launches(results: Sequence[TrialResult], *, run: str) -> list[Launch]:
    """The launches of a run, in the order of the record. `run` names it."""
    found = pools(results)
    wrong = disagreeing.find([pool.launches for pool in found])
    known = {id(result): (pool, number in wrong) for number, pool in enumerate(found) for result in pool.launches}
    return [_launch(result, *known[id(result)], run=run) for result in results]


def _launch(result: TrialResult, pool: Pool, disagrees: bool, *, run: str) -> Launch:
    apart = ", ".join(f"{difference.name} {difference.one}" for difference in pool.apart)
    return Launch(run=run, result=result, conditions=apart, disagrees=disagrees)


def launch_rows(found: Sequence[Launch]) -> list[Row]:
    """One row for each launch; None where a number is missing."""
    return [{column.name: column.value(launch) for column in LAUNCH_COLUMNS} for launch in found]


def block_rows(found: Sequence[Launch]) -> list[Row]:
    """One row for each timed block, of launches without a speed as well."""
    blocks = [block for launch in found for block in _blocks(launch)]
    return [{column.name: column.value(block) for column in BLOCK_COLUMNS} for block in blocks]


def _blocks(launch: Launch) -> Iterator[Block]:
    seconds = rates.slowest_rank(launch.result.block_seconds)
    bare: list[float | None] = [*rates.slowest_rank(launch.result.bare_block_seconds)]
    bare += [None] * len(seconds)
    starts = [start for start, _ in timed_blocks(launch.result.timings)]
    skipped = len(seconds) - len(launch.counted_seconds)
    for number, each in enumerate(seconds):
        yield Block(
            launch=launch,
            number=number,
            start=starts[number] - starts[0] if starts else None,
            seconds=each,
            bare_seconds=bare[number],
            counts=number >= skipped,
        )
