"""What every phase of a worker is given."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness.contract import Job, Program
from harness.datasets import Batches
from harness.messages import Order
from harness.reference.golden import Golden
from harness.spec import TrialSpec
from harness.spec.arrays import Arrays
from harness.worker.draft import Draft
from harness.worker.rank_agreement import Agreement

NUMBERS = "biufc"  # kinds of NumPy's own number formats; those of ml_dtypes, bfloat16 among them, are of kind V


@dataclass
class StepCount:
    """How many updates the program has made since it was built."""

    steps: int = 0

    def __call__(self, steps: int) -> None:
        self.steps += steps


@dataclass(frozen=True, kw_only=True)
class Context:
    """One rank in its phase: its order, what it trains with, and where its findings go."""

    order: Order
    job: Job
    build: Callable[[], Program]  # a fresh program
    built: list[Program]  # the program of this phase, until it is released
    batches: Batches  # training samples
    agree: Agreement
    draft: Draft
    runtime: Any  # the package's runtime module
    made: StepCount = field(default_factory=StepCount)

    @cached_property
    def golden(self) -> Golden | None:
        """The reference that the order names, if it names one."""
        return None if self.order.golden is None else Golden.load(self.order.golden)

    @property
    def program(self) -> Program:
        """The program that the phase works with."""
        return self.built[0]

    def state(self) -> Arrays:
        """The program's whole state on rank 0, and {} on the other ranks. All ranks call this together.

        Raises RuntimeError on rank 0 if the program returns none there, because nothing could be checked against it, or
        an array in a number format that NumPy lacks: its files would keep the bits and lose the format.
        """
        state = self.program.state()
        if self.draft.rank:
            return {}
        if not state:
            raise RuntimeError("state() returned nothing on rank 0, which has to return the program's whole state")
        for name, array in state.items():
            if (found := np.asarray(array).dtype).kind not in NUMBERS:
                raise RuntimeError(
                    f"state() returned {name} as {found}, which NumPy's files cannot keep. Return it as float32, "
                    "which holds every bfloat16, and convert it back in load_state()"
                )
        return state

    def replicas(self) -> list[Arrays]:
        """The parameters of each replica that this rank holds now. All ranks call this together.

        Raises RuntimeError on rank 0 if the program has none there, for the same reason.
        """
        replicas = list(self.program.export())
        if self.draft.rank == 0 and not (replicas and all(replicas)):
            raise RuntimeError("export() returned no parameters on rank 0, which has to return those of each replica")
        return replicas

    def build_anew(self) -> None:
        """Put a fresh program in the place of the one that the phase works with."""
        self.release()
        self.built.append(self.build())

    def release(self) -> None:
        """Forget the program. A phase that builds others would have two of them in the devices' memory."""
        self.built.clear()
        gc.collect()  # a program may be part of a cycle

    @property
    def spec(self) -> TrialSpec:
        """The trial."""
        return self.order.spec

    @property
    def dtype(self) -> type[np.floating]:
        """The number format in which batches of the timed program are made on the host."""
        return np.float64 if self.spec.precision == "fp64" else np.float32
