"""A rank that is stopped while it is timed: its clock goes on, so its times would count the pause."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace

from harness.messages import answer_file, write
from harness.spec import Cause
from harness.worker.draft import Draft

REASON = (
    "the process was stopped and went on (SIGSTOP, SIGCONT), so its times would count the pause; run --resume measures "
    "it again"
)


def end_after_pause(draft: Draft) -> None:
    """From now on, the process ends as soon as it goes on after it was stopped. Its answer says why.

    Python runs handlers in the main thread alone, which may wait in a library for long. So a second thread is told of
    the signal as well, through a pipe.
    """

    def end(*_: object) -> None:
        cause = Cause(kind="killed", data={"rank": draft.rank, "signal": "SIGSTOP"})
        answer = replace(draft.answer, status="killed", reason=REASON, cause=cause, ended=time.monotonic())
        write(draft.folder / answer_file(draft.rank), answer)
        os._exit(1)  # an exception could be caught on its way, and a training could save a checkpoint meanwhile

    def wait() -> None:
        with contextlib.suppress(OSError):  # somebody has closed the pipe
            while told := os.read(reading, 1):
                if signal.SIGCONT in told:
                    end()

    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # a handler must not wait
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCONT, end)
    threading.Thread(target=wait, daemon=True).start()
