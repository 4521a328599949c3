"""Requirements 6 to 10 and 16: warm-up, steadiness, what the clocks are read around, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.reporting import naming, repeatability
from harness.reporting.checklist.answers import (
    Answer,
    judged,
    names,
    not_applicable,
    of_cells,
    recorded,
    together,
    unknown,
)
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import count, from_to, number
from harness.reporting.summary import Cell
from harness.results.single_steps import LEAST_FOR_P99, of_all, percentile, single_steps, synchronization_seconds
from harness.spec import Check, TrialResult
from harness.statistics.steadiness import LEAST_BLOCKS

SETTLED_SECONDS = 5.0
"""Step times of GPUs at their power limit are steady enough after so long under load: reports/probes/steady."""
CALLS_BEFORE = 3  # the first compiles; CUDA graphs are captured in the second
TOGETHER = 0.01  # of a block: so far apart may its ranks begin
WORK_LEFT = "work after sync"


def warm_up(record: Record) -> Answer:
    """6. The warm-up is equally long for all cells and at least 5 s, in which step times were seen to settle
    (reports/probes/steady). At least three calls come before it: the first compiles. Every launch has as many timed
    blocks as planned, so that none was ended or prolonged by what it showed."""
    seconds = sorted({cell.spec.warmup_seconds for cell in record.timed})
    same = judged(
        len(seconds) == 1 and seconds[0] >= SETTLED_SECONDS,
        f"warm-up of {' and '.join(f'{each:g}' for each in seconds)} s; {SETTLED_SECONDS:g} s are asked for",
    )
    calls = [len(result.losses) // max(1, result.spec.steps_per_call) for result in record.launches]
    if 0 in calls:
        before = unknown("the calls before the warm-up are not recorded")
    else:
        before = judged(min(calls) >= CALLS_BEFORE, f"{from_to(calls)} calls before it")
    adapted = [result for result in record.launches if any(len(r) != result.spec.blocks for r in result.block_seconds)]
    planned = of_cells(record.cells_with(adapted), record.timed, "as many blocks as planned")
    return together(same, before, planned)


def steadiness(record: Record) -> Answer:
    """7. Every launch of every cell has at least eight blocks, so that its trends and changes of level are tested, and
    cells that do not settle are flagged. No claim rests on them: an order or a tie is claimed only if all flags of both
    cells are smaller than the difference, or than the margin of the tie."""
    short = [
        cell
        for cell in record.timed
        if cell.spec.protocol != "resident" or any(len(blocks) < LEAST_BLOCKS for blocks in cell.blocks)
    ]
    tested = of_cells(short, record.timed, f"{LEAST_BLOCKS} or more blocks of resident batches")
    flagged = [cell for cell in record.timed if repeatability.findings(cell)]
    worst = max(flagged, key=_largest_flag, default=None)
    figures = f"{count(len(flagged), 'cell')} flagged"
    if worst is not None:
        figures += f", worst: {worst.title}, {repeatability.words(repeatability.findings(worst))}"
    rough = [
        f"{group.best.title} and {other.title}"
        for group, other, verdict in record.claims
        if max(_largest_flag(group.best), _largest_flag(other))
        >= (group.margin if verdict.outcome == "tie" else abs(verdict.ratio.value - 1))
    ]
    rests = f"{count(len(rough), 'claim')} no larger than a flag: {rough[0]}" if rough else "no claim rests on a flag"
    return together(tested, judged(True, figures), judged(not rough, rests))


def _largest_flag(cell: Cell) -> float:
    return max((abs(found.size) for found in repeatability.findings(cell)), default=0.0)


def synchronization(record: Record) -> Answer:
    """8. On every rank of every launch, the work that was left after the sync at the end of a block was measured, and
    was within its tolerance. Single steps were timed beside the blocks, so that the cost of waiting is known. With
    protocol from_host, the clock stops without waiting."""
    early = [cell for cell in record.timed if cell.spec.protocol != "resident"]
    waited = of_cells(early, record.timed, "the devices are waited for")
    left = {id(result): _checks(result, WORK_LEFT) for result in record.launches}
    unread = [r for r in record.launches if len(left[id(r)]) < len(r.block_seconds)]
    measured = recorded(record.cells_with(unread), record.timed, "a measured end of the devices' work")
    errors = [check for checks in left.values() for check in checks]
    work = judged(
        all(check.passed for check in errors),
        f"reading a result after a block took at most {100 * max(check.error for check in errors):.3g}% of the block "
        "longer than reading it again"
        if errors
        else "",
    )
    without = [result for result in record.launches if not single_steps(result)]
    series = recorded(record.cells_with(without), record.timed, "single steps")
    costs = [cost for result in record.launches if (cost := synchronization_seconds(result)) is not None]
    cost = f"waiting for each step costs up to {number(1e3 * max(costs))} ms" if costs else ""
    return together(waited, measured, work, series, judged(True, cost))


def _checks(result: TrialResult, quantity: str) -> list[Check]:
    return [check for timing in result.timings for check in timing.checks if check.quantity == quantity]


def ranks(record: Record) -> Answer:
    """9. In cells with several processes, each block has the time of each rank, and counts as long as its slowest. The
    barrier before a block works: by the host's clock, all ranks begin it within 1% of its time. A process that is alone
    is its own slowest."""
    several = [result for result in record.launches if len(result.ranks) > 1]
    if not several:
        return not_applicable("every launch is one process")
    untimed = record.cells_with([result for result in several if len(result.block_seconds) < len(result.ranks)])
    cells = record.cells_with(several)
    timed = of_cells(untimed, cells, "times of every rank")
    skews = [(skew, cell) for cell in cells if (skew := repeatability.rank_skew(cell)) is not None]
    largest, at = max(skews, key=lambda each: each[0], default=(0.0, cells[0]))
    told = judged(True, f"largest median skew {100 * largest:.3g}% of a block, {at.title}")
    silent = record.cells_with([result for result in several if _apart(result) is None])
    if silent:
        return together(timed, told, recorded(silent, cells, "the moments at which ranks began"))
    apart = max((found for result in several if (found := _apart(result)) is not None), default=0.0)
    return together(timed, told, judged(apart <= TOGETHER, f"ranks began within {100 * apart:.3g}% of a block"))


def _apart(result: TrialResult) -> float | None:
    """The largest distance between the starts of a block on its ranks, as a share of the block; None: not recorded."""
    starts = [timing.block_starts for timing in result.timings]
    if not all(starts):
        return None
    blocks = zip(zip(*starts, strict=False), zip(*result.block_seconds, strict=False), strict=False)
    return max(((max(began) - min(began)) / max(seconds) for began, seconds in blocks), default=None)


def separate_clocks(record: Record) -> Answer:
    """10. Building, the first step and the steady blocks have clocks of their own in every launch. Whether the compile
    cache was cold is known from the files that were written; a cell that compiles has a cold launch, and cold and warm
    first steps are kept apart. The load of the host is recorded. Batches are ready before the clock of the blocks
    starts, which is not so with protocol from_host."""
    without = [r for r in record.launches if r.build_seconds is None or r.first_step_seconds is None]
    clocks = recorded(record.cells_with(without), record.timed, "clocks of building and of the first step")
    unread = record.cells_with([result for result in record.launches if not result.compile_cache])
    warm = [cell for cell in record.timed if {result.compile_cache for result in cell.timed} == {"warm"}]
    cache = (
        unknown(f"the state of the compile cache is not recorded in {names(unread)}")
        if unread
        else _first_steps(record.launches)
    )
    cold = judged(not warm, f"no cold first step of {names(warm)}" if warm else "")
    mixed = [cell for cell in record.timed if cell.spec.protocol != "resident"]
    setting_up = judged(not mixed, f"batches are made in the timed blocks of {names(mixed)}" if mixed else "")
    loads = [result.telemetry.host for result in record.launches if result.telemetry is not None]
    if len([load for load in loads if load]) < len(record.launches):
        load = unknown("the load of the host is not recorded")
    else:
        load = judged(True, f"load of the host up to {max(each.load for host in loads for each in host):.1f}")
    return together(clocks, cache, cold, setting_up, load)


def _first_steps(launches: Sequence[TrialResult]) -> Answer:
    """The first steps by framework: how long they take differs between these more than between anything else."""
    parts = []
    for framework in dict.fromkeys(map(naming.framework, launches)):
        own = [result for result in launches if naming.framework(result) == framework]
        for state in ("cold", "warm"):
            known = [r.first_step_seconds for r in own if r.compile_cache == state and r.first_step_seconds]
            parts += [f"{framework} {number(median(known))} s {state} (median of {len(known)})"] if known else []
    return judged(True, f"first steps: {', '.join(parts)}" if parts else "nothing is compiled")


def distribution(record: Record) -> Answer:
    """16. Every cell has at least 100 single steps in the rows, and some in each launch, so that median, p95, p99 and
    maximum are told. Intervals do not assume that times are normal: docs/method.md tries skewed ones."""
    without = [result for result in record.launches if not single_steps(result)]
    kept = recorded(record.cells_with(without), record.timed, "single steps of every launch are known")
    if len(record.cells_with(without)) == len(record.timed):
        return kept
    known = kept if without else judged(True, "")
    steps = {id(cell): of_all(cell.timed) for cell in record.timed}
    few = [cell for cell in record.timed if len(steps[id(cell)]) < LEAST_FOR_P99]
    counts = f"{from_to([len(each) for each in steps.values()])} single steps in each of {count(len(steps), 'cell')}"
    some = 0 < len(few) < len(steps)
    fewer = f", and {names(few)} {'has' if len(few) == 1 else 'have'} fewer" if some else ""
    enough = judged(not few, f"{counts}; {LEAST_FOR_P99} are asked for{fewer}")
    tails = [(_tail(steps[id(cell)]), cell) for cell in record.timed if cell not in few]
    longest, at = max(tails, key=lambda each: each[0], default=(0.0, record.timed[0]))
    told = f"p99 is up to {longest:.3g} times the median ({at.title}), for which there is no limit" if longest else ""
    return together(known, enough, judged(True, told))


def _tail(seconds: Sequence[float]) -> float:
    """The 99th percentile as a multiple of the median; 0 if not known."""
    high, middle = percentile(seconds, 99), percentile(seconds, 50)
    return high / middle if high and middle else 0.0
