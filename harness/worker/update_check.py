"""The updates of sampled steps of a training: which steps are exported, and what NumPy can afford to compute again.

harness/gate/step_update.py has the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.datasets import Batches, Step
from harness.gate.runs import normalization
from harness.gate.step_update import DEEP_UPDATES, UPDATES, compare_update
from harness.reference.loops import loss_and_gradients
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.spec.optimizers import rate
from harness.worker.context import Context

LEAST_RATE = 1e-6  # at a lower learning rate a float32 weight may rightly stand still


class UpdateCheck:
    """Checks the update of one step of an epoch, on rank 0. All ranks call `hold` together."""

    def __init__(self, context: Context, samples: Batches, *, step_flops: float, whole_flops: float) -> None:
        """`step_flops`, `whole_flops`: what one step and all steps may cost in NumPy."""
        self.context, self.spec, self.samples = context, context.spec, samples
        self.step_flops, self.flops_left = step_flops, whole_flops
        self.earlier: Arrays | None = None
        self.earlier_step: Step | None = None
        self.checked = 0
        self.left_out = ""  # why the last update that was not checked was not
        known = DEEP_UPDATES if context.job.workload.normalizes else UPDATES
        rounded = self.spec.tolerances == "bf16_gradients"
        self.tolerance = known.get("tf32" if rounded else self.spec.precision)
        self.why = self._never()

    def _never(self) -> str:
        """Why no update of this training can be checked, or ""."""
        if self.spec.algorithm != "synchronous":
            return "each worker has weights of its own" if self.spec.algorithm == "local" else "workers do not wait"
        if self.spec.optimizer.name != "sgd":
            return f"the state of {self.spec.optimizer.name} does not show in the weights"
        if self.spec.steps_per_call > 1:
            return "several steps are made in a call"
        if self.tolerance is None:
            return f"rounding in {self.spec.precision} may be as large as the gradient"
        return ""

    def starts_at(self, checked: int, steps: Sequence[Step]) -> int:
        """The step before which the weights are needed first: that before the checked one, with momentum."""
        self.earlier, self.earlier_step = None, None
        if self._cost(steps[checked]) > min(self.step_flops, self.flops_left):
            self.left_out = "NumPy would take too long"
            return checked
        if self.why or not self.spec.optimizer.momentum:
            return checked
        return max(checked - 1, 0)

    def hold(self, step: Step) -> None:
        """Keep the weights before a step that precedes the checked one."""
        exported = self.context.program.export()
        first = next(iter(exported), None)
        if self.context.agree.rank == 0 and first is not None:
            self.earlier = {name: array.copy() for name, array in first.items()}
        self.earlier_step = step

    def compare(self, step: Step, *, before: Arrays, after: Arrays, made: int, where: str) -> list[Check]:
        """Compare the weights after update `made`. Nothing is compared if that is too expensive or the rate too low."""
        optimizer, cost = self.spec.optimizer, self._cost(step)
        if self.why or cost > min(self.step_flops, self.flops_left):
            return []
        if optimizer.momentum and made and self.earlier is None:
            self.left_out = "an epoch has a single step"
            return []
        if min(rate(optimizer, made), rate(optimizer, max(made - 1, 0))) < LEAST_RATE:
            self.left_out = "the rate is too low"
            return []
        self.flops_left, self.checked = self.flops_left - cost, self.checked + 1
        assert self.tolerance is not None
        of_earlier = None
        if optimizer.nesterov and self.earlier is not None:
            assert self.earlier_step is not None
            of_earlier = self._gradients(self.earlier, self.earlier_step)
        check = compare_update(
            optimizer,
            earlier=self.earlier,
            before=before,
            after=after,
            gradients=self._gradients(before, step),
            earlier_gradients=of_earlier,
            made=made,
            tolerance=self.tolerance,
            where=where,
        )
        return [check]

    def unchecked(self) -> str:
        """Why no update has been checked so far, or ""."""
        return "" if self.checked else self.why or self.left_out

    def _gradients(self, params: Arrays, step: Step) -> Arrays:
        exact = {name: array.astype("float64") for name, array in params.items()}
        groups = normalization(self.spec, self.spec.options)(len(step.chosen))
        workload = self.context.job.workload
        return loss_and_gradients(workload, exact, self.samples.gather(step.chosen), groups=groups)[1]

    def _cost(self, step: Step) -> float:
        """The FLOPs of its gradients: three forward passes; with Nesterov's momentum, of two steps."""
        return self.context.job.workload.flops_per_unit() * len(step.chosen) * (1 + self.spec.optimizer.nesterov)
