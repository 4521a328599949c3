"""A rank that is stopped while it is timed: its clock goes on, so its times would count the pause."""

from __future__ import annotations

import os
import signal
import time

from harness.spec import Cause
from harness.worker.draft import Draft

REASON = (
    "the process was stopped and went on (SIGSTOP, SIGCONT), so its times would count the pause; run --resume measures "
    "it again"
)


def end_after_pause(draft: Draft) -> None:
    """From now on, the process ends as soon as it goes on after it was stopped. Its answer says why."""

    def end(number: int, frame: object) -> None:
        cause = Cause(kind="killed", data={"rank": draft.rank, "signal": "SIGSTOP"})
        draft.note(status="killed", reason=REASON, cause=cause, ended=time.monotonic())
        draft.finish()
        os._exit(1)  # an exception could be caught on its way, and a training could save a checkpoint meanwhile

    signal.signal(signal.SIGCONT, end)
