"""The updates of sampled steps of a training: which steps are exported, and what NumPy can afford to compute again.

harness/gate/step_update.py has the comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.contract import Moments
from harness.datasets import Batches, Step
from harness.gate import step_update
from harness.gate.runs import normalization
from harness.reference.loops import loss_and_gradients
from harness.spec import Check, Quantity
from harness.spec.arrays import Arrays
from harness.spec.optimizers import rate
from harness.worker.context import Context
from harness.worker.package_modules import optional_module

LEAST_RATE = 1e-6  # at a lower learning rate a float32 weight may rightly stand still
SLOTS = {"adam": ("m", "s"), "adamw": ("m", "s"), "adagrad": ("s",)}  # what these rules remember of each parameter


class UpdateCheck:
    """Checks the update of one step of an epoch, on rank 0. All ranks call `starts_at`, `hold` and `read_moments`
    together."""

    def __init__(self, context: Context, samples: Batches, *, step_flops: float, whole_flops: float) -> None:
        """`step_flops`, `whole_flops`: what one step and all steps may cost in NumPy."""
        self.context, self.spec, self.samples = context, context.spec, samples
        self.step_flops, self.flops_left = step_flops, whole_flops
        self.earlier: Arrays | None = None
        self.earlier_step: Step | None = None
        self.moments: Moments = {}
        self.chosen = False  # whether the checked step of this epoch is computed again
        self.checked: set[Quantity] = set()
        self.left_out: dict[Quantity, str] = {}  # why the last update that was not checked was not
        known = step_update.DEEP_UPDATES if context.job.workload.normalizes else step_update.UPDATES
        rounded = self.spec.tolerances == "bf16_gradients"
        self.tolerance = known.get("tf32" if rounded else self.spec.precision)
        self.moments_of = getattr(optional_module(context.order.package, "moments"), "moments", None)
        self.wanted: tuple[Quantity, ...] = ("step updates",)
        if self.spec.optimizer.weight_decay:
            self.wanted += ("step weight decay",)
        self.never = {quantity: why for quantity in self.wanted if (why := self._never(quantity))}

    def _never(self, quantity: Quantity) -> str:
        """Why this can be checked in no update of this training, or ""."""
        rule = self.spec.optimizer.name
        if self.spec.algorithm != "synchronous":
            return "each worker has weights of its own" if self.spec.algorithm == "local" else "workers do not wait"
        if self.spec.steps_per_call > 1:
            return "several steps are made in a call"
        if rule in SLOTS and self.moments_of is None:
            return f"the state of {rule} does not show in the weights"
        if quantity == "step weight decay":
            return "" if rule in ("sgd", "adamw") else f"it is a part of the gradient, which {rule} scales"
        return (
            "" if self.tolerance is not None else f"rounding in {self.spec.precision} may be as large as the gradient"
        )

    def starts_at(self, checked: int, steps: Sequence[Step]) -> int:
        """The step before which the weights are needed first: that before the checked one, with momentum.

        It depends on nothing that only rank 0 knows, because all ranks must stop at the same steps.
        """
        self.earlier, self.earlier_step, self.moments = None, None, {}
        cost = self._cost(steps[checked])
        affordable = cost <= min(self.step_flops, self.flops_left)
        self.chosen = affordable and len(self.never) < len(self.wanted)
        if not affordable:
            self._leave_out("NumPy would take too long")
        if not self.chosen:
            return checked
        self.flops_left -= cost
        return max(checked - 1, 0) if self.spec.optimizer.momentum else checked

    def hold(self, step: Step) -> None:
        """Keep the weights before a step that precedes the checked one."""
        exported = self.context.replicas()
        if self.context.agree.rank == 0:
            self.earlier = {name: array.copy() for name, array in exported[0].items()}
        self.earlier_step = step

    def read_moments(self) -> None:
        """Keep the moments before the checked step, of a rule whose moments the weights do not show."""
        if not self.chosen or self.spec.optimizer.name not in SLOTS:
            return
        state = self.context.state()
        if self.context.agree.rank == 0:
            assert self.moments_of is not None
            found = self.moments_of(state, self.context.job.workload)
            self.moments = {key: np.array(array, np.float64) for key, array in found.items()}

    def compare(self, step: Step, *, before: Arrays, after: Arrays, made: int, where: str) -> list[Check]:
        """Compare the weights after update `made`. Nothing is compared if that is too expensive or the rate too low."""
        optimizer = self.spec.optimizer
        if not self.chosen:
            return []
        if min(rate(optimizer, made), rate(optimizer, max(made - 1, 0))) < LEAST_RATE:
            self._leave_out("the rate is too low")
            return []
        right = self._right(step, before, made)
        if right is None:
            return []
        found = []
        if self.tolerance is not None:
            found.append(step_update.compare_update(right, after, tolerance=self.tolerance, where=where))
        decay = step_update.compare_decay(right, after, where=where)
        if decay is not None:
            found.append(decay)
        else:
            self.left_out["step weight decay"] = "rounding hides it"
        self.checked |= {check.quantity for check in found}
        return found

    def unchecked(self) -> dict[Quantity, str]:
        """What has not been checked so far, and why."""
        known = self.left_out | self.never
        return {name: known[name] for name in self.wanted if name in known and name not in self.checked}

    def _leave_out(self, why: str) -> None:
        self.left_out |= dict.fromkeys(self.wanted, why)

    def _right(self, step: Step, before: Arrays, made: int) -> step_update.Right | None:
        """What update `made` must do, or None if that is not known."""
        optimizer, known = self.spec.optimizer, {"before": before, "made": made}
        if optimizer.name in SLOTS:
            if made and {(name, slot) for name in before for slot in SLOTS[optimizer.name]} - self.moments.keys():
                self._leave_out(f"its state does not show the moments of {optimizer.name}")
                return None
            return step_update.by_moments(
                optimizer, moments=self.moments, gradients=self._gradients(before, step), **known
            )
        if optimizer.momentum and made and self.earlier is None:
            self._leave_out("an epoch has a single step")
            return None
        of_earlier = None
        if optimizer.nesterov and self.earlier is not None:
            assert self.earlier_step is not None
            of_earlier = self._gradients(self.earlier, self.earlier_step)
        gradients = self._gradients(before, step)
        return step_update.by_two_steps(
            optimizer, earlier=self.earlier, gradients=gradients, earlier_gradients=of_earlier, **known
        )

    def _gradients(self, params: Arrays, step: Step) -> Arrays:
        exact = {name: array.astype("float64") for name, array in params.items()}
        groups = normalization(self.spec, self.spec.options)(len(step.chosen))
        workload = self.context.job.workload
        return loss_and_gradients(workload, exact, self.samples.gather(step.chosen), groups=groups)[1]

    def _cost(self, step: Step) -> float:
        """The FLOPs of its gradients: three forward passes; with Nesterov's momentum, of two steps."""
        return self.context.job.workload.flops_per_unit() * len(step.chosen) * (1 + self.spec.optimizer.nesterov)
