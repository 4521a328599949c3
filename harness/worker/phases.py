"""The phases that a worker knows. A new one needs a file, a line here, and a judge in harness/results/judge.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness import messages
from harness.worker.context import Context
from harness.worker.device_reference import make_reference
from harness.worker.measure import measure
from harness.worker.peer_reference import make_peer_reference
from harness.worker.prove import prove
from harness.worker.train import train


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What a worker does with the program that it has built.

    `small`: the program is built in float64, for the parity phase's batch, options and optimizer.
    """

    run: Callable[[Context], None]
    small: bool = False


def only_build(context: Context) -> None:
    """The phase "cut": a program with cut=time measured its blocks while it was built, as it will be timed. harness/
    worker/main.py has noted where it was cut."""


PHASES: dict[messages.Phase, Phase] = {
    "cut": Phase(run=only_build),
    "parity": Phase(run=prove, small=True),
    "peer": Phase(run=make_peer_reference, small=True),
    "reference": Phase(run=make_reference),
    "timing": Phase(run=measure),
    "training": Phase(run=train),
}
