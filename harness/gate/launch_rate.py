"""How fast the host launches work: a bound of programs whose steps are many small operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

LAUNCHES = 1000  # fewer than a CUDA stream holds: a full one would make the host wait


def seconds_of(launch: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds that the host takes to launch one tiny operation: the median of many, none of which is waited for.

    `wait` waits for the operations that are under way.
    """
    launch()  # the first one may compile or load a kernel
    wait()
    seconds = []
    for _ in range(LAUNCHES):
        start = time.perf_counter()
        launch()
        seconds.append(time.perf_counter() - start)
    wait()
    return median(seconds)
