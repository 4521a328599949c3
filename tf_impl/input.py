"""TensorFlow's input pipeline: tf.data reads and transforms, a thread brings to the devices, the program trains.

    tf.data | read steps 5, 6, ...   `workers` at once, in order, the shares of this process's devices
    thread  | put step 4             from host memory to where the program wants them
    program | train on step 3

`strategy.distribute_datasets_from_function`, the usual way to the devices, is not taken: under several processes it has
them agree at every step whether each still has data, which here all know; and model_parallel has no strategy to ask. So
batches go where `place` brings them, by the `put` that it ends in. That has a thread of its own, since whoever asks
TensorFlow for a copy to a GPU waits until it is made: in the training loop the next step would be launched late.
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
        """The batches of an epoch; one that was left early ends here."""
        self.leave()
        self.current = self._epoch(self.epochs.steps(number))
        return self.current

    def close(self) -> None:
        """End all threads."""
        self.leave()
        self.thread.shutdown(cancel_futures=True)

    def leave(self) -> None:
        """End the current epoch: what it has read ahead is let go."""
        if self.current is not None:
            self.current.close()

    def _epoch(self, steps: Sequence[Step]) -> Generator[Any]:
        if not self.program.own_shares:
            yield from itertools.repeat(None, len(steps))  # another process feeds this one's devices
            return
        # A data set's elements have one form, and a padded batch another than the rest: its targets have factors.
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
        """For each step this process's shares, in host memory: a tuple of placement.Parts."""
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
    """The loader of `program`; `workers` batches are read at once, 0: when they are asked for."""
    return Loader(program, job, epochs, workers)
