"""What every process that the harness starts does about its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent() -> None:
    """On Linux, ask for SIGKILL when the supervisor dies, even by SIGKILL itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.environ.get("LIKEFORLIKE_SUPERVISOR") != str(os.getppid()):  # it died while this process was starting
            os._exit(1)
