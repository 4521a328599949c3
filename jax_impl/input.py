"""Input pipeline: threads that gather batches and bring them to the devices, ahead of the step that takes them.

JAX has no loader of its own, and one process here drives all devices, so a pool of threads does: NumPy lets go of the
interpreter's lock while it gathers and converts samples. jax.device_put returns while its copy is still under way, and
the step that takes the batch waits for it on the device. At most `workers` batches are in the making and READY more
behind them, which bounds the memory that waiting batches take, on host and devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from harness.contract import Job
from harness.datasets import Epochs, Step
from jax_impl import runtime
from jax_impl.program import Program

READY = 2  # batches beyond those in the making: one is trained on while the next one waits


class ThreadedLoader:
    """See harness.contract.Loader."""

    def __init__(self, program: Program, job: Job, epochs: Epochs, *, workers: int) -> None:
        self.program, self.epochs = program, epochs
        self.dtype = runtime.DTYPES[job.precision]
        self.ahead = workers + READY
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="input") if workers else None

    def load(self, step: Step) -> Any:
        """What the program's step takes. The global batch: the process drives all devices, and the program cuts it."""
        return self.program.put(self.epochs.whole(step, dtype=self.dtype))

    def epoch(self, number: int) -> Iterator[Any]:
        steps = self.epochs.steps(number)
        if self.pool is None:
            yield from map(self.load, steps)
            return
        loading: deque[Future[Any]] = deque()  # in the order of the steps, whichever is done first
        try:
            for step in steps:
                loading.append(self.pool.submit(self.load, step))
                if len(loading) == self.ahead:
                    yield loading.popleft().result()  # raises what the thread raised
            while loading:
                yield loading.popleft().result()
        finally:  # also when the epoch is left early
            for future in loading:
                future.cancel()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def make_loader(program: Program, job: Job, epochs: Epochs, *, workers: int) -> ThreadedLoader:
    """The loader of a program. `workers`: so many threads; 0 loads each batch when it is asked for."""
    return ThreadedLoader(program, job, epochs, workers=workers)
