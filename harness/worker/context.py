"""What every phase of a worker is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.contract import Job, Program
from harness.datasets import Batches
from harness.messages import Order
from harness.spec import TrialSpec
from harness.worker.draft import Draft
from harness.worker.rank_agreement import Agreement


@dataclass(frozen=True, kw_only=True)
class Context:
    """One rank in its phase: its order, what it trains with, and where its findings go."""

    order: Order
    job: Job
    build: Callable[[], Program]  # a fresh program
    program: Program
    batches: Batches  # training samples
    agree: Agreement
    draft: Draft

    @property
    def spec(self) -> TrialSpec:
        """The trial."""
        return self.order.spec

    @property
    def dtype(self) -> type[np.floating]:
        """The number format in which batches of the timed program are made on the host."""
        return np.float64 if self.spec.precision == "fp64" else np.float32
