"""Input pipeline: threads that gather batches and bring them to the devices before the step needs them.

JAX has no loader of its own. A pool of threads is enough: NumPy releases the interpreter's lock while it gathers and
converts samples. jax.device_put returns while its copy is still under way, and the step that takes the batch waits for
the copy on the device. At most `workers` batches are being made and READY more wait, which bounds the memory of waiting
batches on host and devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from harness.contract import Job
from harness.datasets import Epochs, Step
from jax_impl import placement, runtime
from jax_impl.program import Program

READY = 2  # batches besides those being made: one is trained on while the next one waits


class ThreadedLoader:
    """See harness.contract.Loader."""

    def __init__(self, program: Program, job: Job, epochs: Epochs, *, workers: int) -> None:
        self.program, self.epochs = program, epochs
        self.dtype = runtime.DTYPES[job.precision]
        several = job.world.processes > 1
        parts = job.accumulation_steps if several else 1  # one process takes all rows of all parts at once
        self.share = {"rank": job.world.rank, "ranks": job.world.processes, "parts": parts}
        self.ahead = workers + READY
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="input") if workers else None

    def load(self, step: Step) -> Any:
        """A batch as the step takes it. This process reads only the samples of its own devices."""
        parts = self.epochs.gather(step, dtype=self.dtype, **self.share)
        return self.program.put(placement.joined(parts))

    def epoch(self, number: int) -> Iterator[Any]:
        steps = self.epochs.steps(number)
        if self.pool is None:
            yield from map(self.load, steps)
            return
        loading: deque[Future[Any]] = deque()  # in the order of the steps, in whatever order they finish
        try:
            for step in steps:
                loading.append(self.pool.submit(self.load, step))
                if len(loading) == self.ahead:
                    yield loading.popleft().result()  # raises any error of the thread
            while loading:
                yield loading.popleft().result()
        finally:  # also if the caller leaves the epoch early
            for future in loading:
                future.cancel()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def make_loader(program: Program, job: Job, epochs: Epochs, *, workers: int) -> ThreadedLoader:
    """The loader of a program. `workers`: the number of threads; with 0, each batch is loaded when it is asked for."""
    return ThreadedLoader(program, job, epochs, workers=workers)
