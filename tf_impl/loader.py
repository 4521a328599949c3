"""TensorFlow's input pipeline: tf.data reads and transforms, a thread copies to the devices, the program trains.

    tf.data | read steps 5, 6, ...   `workers` at once, in order: the shares of this process's devices, by NumPy
    thread  | copy step 4            from host memory to the devices that train on it
    program | train on step 3

NumPy reads the samples, as in all frameworks, within tf.data's threads. These share Python's lock, so more of them help
only while NumPy has let go of it.

The usual way to the devices is `strategy.distribute_datasets_from_function`. It is not used here for two reasons. With
several processes, they would agree at every step on whether each still has data, if the dataset ends, as an epoch does.
And model_parallel has no tf.distribute strategy. So batches go to the devices by the program's `to_devices`, as in
`place`. The copies have a thread of their own because a call that copies to a GPU returns only when the copy is done:
made in the training loop, it would delay the launch of the next step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from harness.contract import Job
from harness.datasets import Epochs, Step
from tf_impl import placement
from tf_impl.program import Program

AHEAD = 2  # batches that wait on the devices while the program trains on one


class Loader:
    """See harness.contract.Loader."""

    def __init__(self, program: Program, job: Job, epochs: Epochs, workers: int) -> None:
        self.program, self.job, self.epochs, self.workers = program, job, epochs, workers
        self.thread = ThreadPoolExecutor(1, "to the devices")
        self.current: Generator[Any] | None = None

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of an epoch. An earlier epoch that is still open ends here."""
        self.leave()
        self.current = self._epoch(self.epochs.steps(number))
        return self.current

    def close(self) -> None:
        """End all threads."""
        self.leave()
        self.thread.shutdown(cancel_futures=True)

    def leave(self) -> None:
        """End the current epoch and discard what it has read ahead."""
        if self.current is not None:
            self.current.close()

    def _epoch(self, steps: Sequence[Step]) -> Generator[Any]:
        if not self.program.own_shares:
            yield from itertools.repeat(None, len(steps))  # another process puts the shares on this one's devices
            return
        # All elements of a tf.data.Dataset have the same form, and a padded batch differs: its targets have factors.
        forms = itertools.groupby(steps, key=lambda step: step.rows != len(step.chosen))
        batches = (shares for _, alike in forms for shares in self._read(list(alike)))
        if not self.workers:
            yield from map(self.program.to_devices, batches)
            return
        waiting: deque[Future] = deque()
        for shares in batches:
            waiting.append(self.thread.submit(self.program.to_devices, shares))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        yield from (put.result() for put in waiting)

    def _read(self, steps: Sequence[Step]) -> tf.data.Dataset:
        """For each step, this process's shares in host memory: a tuple of placement.Parts."""
        program, parts = self.program, self.job.accumulation_steps
        dtype = tf.as_dtype(program.dtype).as_numpy_dtype

        def gather(index: int) -> list[np.ndarray]:
            shares = (
                self.epochs.gather(steps[index], dtype=dtype, rank=rank, ranks=program.share_count, parts=parts)
                for rank in program.own_shares
            )
            return [part[name] for share in shares for part in share for name in ("x", "y")]

        def read(index: tf.Tensor) -> tuple[placement.Parts, ...]:
            flat = iter(tf.numpy_function(gather, [index], types * (parts * len(program.own_shares))))
            return tuple(tuple((next(flat), next(flat)) for _ in range(parts)) for _ in program.own_shares)

        sample = self.epochs.gather(steps[0], dtype=dtype, ranks=steps[0].rows)[0]
        types = [tf.as_dtype(sample["x"].dtype), tf.as_dtype(sample["y"].dtype)]
        data = tf.data.Dataset.range(len(steps))
        if not self.workers:
            return data.map(read)
        return data.map(read, num_parallel_calls=self.workers, deterministic=True).prefetch(self.workers)


def make_loader(program: Program, job: Job, epochs: Epochs, *, workers: int) -> Loader:
    """The loader of `program`. It reads `workers` batches at once; with 0 it reads each batch when it is asked for."""
    return Loader(program, job, epochs, workers)
