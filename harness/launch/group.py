"""Messages between the harness and the supervisor of a trial: the ranks to start, and how they ended."""

from __future__ import annotations

from dataclasses import dataclass

from harness.spec import Cause, Status

GROUP, ENDING = "group.json", "outcome.json"

SUPERVISOR = "LIKEFORLIKE_SUPERVISOR"
"""The variable of ranks, and of what they start, with their supervisor's process id."""

ROOM_FOR_ID = "0" * 10
"""Its value in a zygote, over which each supervisor that is forked writes its own."""

IMPORTS = "import.log"
"""What a zygote's imports have printed, in its working directory."""


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """How one rank is started."""

    command: tuple[str, ...]
    environment: dict[str, str]
    cores: tuple[int, ...] = ()  # the cores that it may use; empty: all


@dataclass(frozen=True, kw_only=True)
class Group:
    """All ranks of a trial on this machine, and its time limits."""

    ranks: tuple[RankProcess, ...]
    first_rank: int = 0  # the others follow; a host of several may have any
    timeout_seconds: float
    stall_seconds: float  # without progress on any rank
    timed: bool = False  # whether a pause of its processes would be in its times


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a group ended."""

    status: Status
    reason: str = ""
    cause: Cause | None = None
    traceback: str = ""
