"""Steps that were made while nobody waited for them are made again, one call at a time, from the state before them.

harness/worker/watched_block.py does this after the timed blocks, harness/worker/chunk_checks.py within a training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.gate import replay
from harness.gate.trained import repeats_exactly
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.spec.checks import finding
from harness.worker.context import Context
from harness.worker.loading import load_on_all
from harness.worker.prove import copied


def compare_replays(context: Context, before: Arrays, after: Arrays, make_steps: Callable[[], None]) -> Iterator[Check]:
    """Load the state from `before` the steps, make them, and compare with the state `after` them.

    A collective that yields the check on rank 0, whose states these are. Where the two differ, the steps are made once
    more, and the distance between the replays says how far any two runs differ.
    """
    agree, exact = context.agree, repeats_exactly(context.spec)
    begun = agree.arrays("replay", before)
    replays: list[Arrays] = []
    while True:
        has_it, wrong = load_on_all(context, begun, f"replay-{len(replays)}-loaded")
        if not has_it:
            if wrong:
                yield finding("replayed block", wrong)
            return
        make_steps()
        replays = [*map(copied, replays), context.state()]
        checks = [replay.replayed(before, after, replays, exact=exact)] if context.draft.rank == 0 else []
        ends = exact or len(replays) == 2 or all(check.passed for check in checks)
        if agree.on(f"replayed-{len(replays)}", float(ends)):
            yield from checks
            return
