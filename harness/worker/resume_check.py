"""Does a saved state hold the whole training? Steps from a state that was saved and loaded must be the steps that the
program makes without it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.datasets import Epochs, Step
from harness.gate import trained
from harness.gate.distances import unchanged
from harness.gate.timed_program import updates_counted
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.spec.checks import finding
from harness.spec.optimizers import rate
from harness.worker import timing
from harness.worker.calls import make_in_calls, place_each
from harness.worker.context import Context
from harness.worker.loading import load_on_all
from harness.worker.prove import copied_replicas
from harness.worker.update_check import LEAST_RATE

STEPS = 3
"""How many steps are made from a loaded state, if a call makes no more."""


class ResumeCheck:
    """The check of one rank's saved state. All ranks call it together."""

    def __init__(self, context: Context, epochs: Epochs) -> None:
        self.context, self.epochs = context, epochs

    def compare(self, steps: Sequence[Step], *, made: int) -> list[Check]:
        """Save the state, make some steps, load the state, and make the same steps: the weights must be the same.

        The state is loaded into this program and then into a fresh one, as in a training that is resumed. Call it at
        the end of a training: it makes further steps. `made`: the updates before it.
        """
        context, spec, found = self.context, self.context.spec, []
        context.draft.progress("checking the saved state")
        steps = steps[: timing.whole_rounds(STEPS, of=spec.steps_per_call)]
        if spec.exchange_interval > 1 and made % spec.exchange_interval == 0:
            # a state that is saved right after an exchange could lose its count of steps unnoticed
            self._after(steps[: spec.steps_per_call])
            made += spec.steps_per_call
        state = context.state()
        if state:
            found.append(updates_counted(state, made, spec.optimizer))
        saved = context.agree.arrays("state", state)
        before = copied_replicas(context)
        straight = self._after(steps)
        found += self._resumed(saved, steps, before, straight, how="loaded in place")
        if not getattr(context.program, "once_a_process", False):
            context.build_anew()
            found += self._resumed(saved, steps, before, straight, how="loaded into a fresh program")
        if before and rate(spec.optimizer, made) >= LEAST_RATE:
            still = unchanged(before, straight)
            found.append(finding("updates", f"no weight of replica {still[0]} moved at the end" if still else ""))
        return found

    def _resumed(
        self, saved: Arrays, steps: Sequence[Step], before: Sequence[Arrays], straight: Sequence[Arrays], *, how: str
    ) -> list[Check]:
        """Load the saved state, make the steps, and compare. The weights were `before`, and went `straight` on. Where
        that fails, do it once more: how far do two such runs differ?"""
        agree, spec = self.context.agree, self.context.spec
        runs: list[list[Arrays]] = []
        while True:
            name = f"{how.replace(' ', '-')}-{len(runs)}"
            has_it, wrong = load_on_all(self.context, saved, f"{name}-is-there")
            if not has_it:
                return [finding("resumed training", f"{how}: {wrong}")] if wrong else []
            runs.append(self._after(steps))
            checks = trained.compare_again(before, straight, runs, spec=spec, how=how)
            passed = agree.everywhere(f"{name}-passed", all(check.passed for check in checks))
            if passed or len(runs) == 2 or trained.repeats_exactly(spec):
                return checks

    def _after(self, steps: Sequence[Step]) -> list[Arrays]:
        """The weights of each replica after these steps."""
        make_in_calls(self.context, steps, place_each(self.context, self.epochs, steps), wait=False)
        return copied_replicas(self.context)
