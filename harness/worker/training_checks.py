"""Checks of a training while it runs: its samples, single steps, and evaluations.

They run between chunks of steps, when no clock runs, and on all ranks together. What NumPy computes again is bounded by
FLOPs; what is left out is noted with the reason. harness/gate/trained.py has the comparisons.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.contract import Program
from harness.datasets import Batches, Step, epochs_of
from harness.gate import trained
from harness.gate.distances import moved, unchanged
from harness.gate.runs import normalization
from harness.spec import Check, Quantity
from harness.spec.arrays import Arrays
from harness.spec.checks import finding
from harness.spec.optimizers import rate
from harness.worker import formats
from harness.worker.calls import in_calls, place_each
from harness.worker.chunk_checks import ChunkChecks
from harness.worker.context import Context
from harness.worker.evaluation import EvaluatedBatch, evaluate_samples
from harness.worker.further_call import statistics_kept
from harness.worker.prove import copied_replicas
from harness.worker.resume_check import ResumeCheck
from harness.worker.sample_check import SampleCheck
from harness.worker.timing import whole_rounds
from harness.worker.update_check import LEAST_RATE, UpdateCheck

STEP_FLOPS = 1e9
"""What one checked step or one batch of an evaluation between epochs may cost in NumPy: some tenths of a second."""
WHOLE_FLOPS = 1e10
"""The same for all checked steps of a process, and for the last evaluation of the validation samples and of the test
set: a second or two each."""


class TrainingChecks:
    """The checks of one training on one rank. All ranks call the same methods in the same order."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.epochs = epochs_of(context.spec, context.batches, batch=context.spec.global_batch)
        self.spec, self.workload = context.spec, context.job.workload
        self.found: list[Check] = []
        self.unchecked: dict[Quantity, str] = {}
        self.forward_flops = self.workload.flops_per_unit() / 3  # of one sample
        self.flops_left = WHOLE_FLOPS  # for steps
        self.samples, self.chunks = SampleCheck(context), ChunkChecks(context, self.epochs)
        self.before: _Weights | None = None
        self.steps_checked, self.evaluations = 0, 0
        batches = self.epochs.batches
        self.step_updates = UpdateCheck(context, batches, step_flops=STEP_FLOPS, whole_flops=WHOLE_FLOPS)
        if self.spec.algorithm != "synchronous":
            why = "each worker has weights of its own" if self.spec.algorithm == "local" else "workers do not wait"
            self.unchecked["step losses"] = why

    @property
    def program(self) -> Program:
        """The program that is trained."""
        return self.context.program

    def note(self) -> None:
        """Note what was found so far."""
        self.found = list(trained.worst_of_each(self.found))
        found = trained.worst_of_each([*self.found, *self.chunks.checks()])
        training = self.context.draft.answer.training
        assert training is not None
        unchecked = self.unchecked | self.step_updates.unchecked() | self.chunks.unchecked()
        known: Any = {"checks": found, "unchecked": unchecked, "sample_digests": tuple(self.samples.digests)}
        self.context.draft.note_training(**known)

    # Which steps are looked at, and what they took.

    def choose(self, number: int, steps: Sequence[Step], *, made: int) -> tuple[int, set[int]]:
        """For an epoch: the step that is checked, and those whose samples are read back, this one among them.

        Any step may be chosen, but the same on every rank. In the first epoch it is the last step, which may be short.
        Where workers push after several steps, it is the last one before it that ends with a push, if there is one.
        `made`: the steps of the epochs before.
        """
        rng = np.random.default_rng([self.spec.seed, number, 0xC8EC])
        checked = int(rng.integers(len(steps) // 2, len(steps))) if number else len(steps) - 1
        checked -= checked % self.spec.steps_per_call  # the first step of its call
        checked = max(0, checked - (made + checked + 1) % self.spec.push_interval())
        return checked, {checked} | self.samples.choose(len(steps), rng)

    def compare_samples(self, number: int, steps: Sequence[Step]) -> None:
        """Compare what all ranks took in an epoch with the samples of its steps."""
        self.found += self.samples.compare(number, steps)

    # One step.

    def before_step(self, step: Step) -> None:
        """Look at the weights before a step, if it can be checked."""
        cost = self.forward_flops * len(step.chosen)
        affordable = cost <= min(STEP_FLOPS, self.flops_left)
        self.before = self._weights() if affordable else None
        if affordable:
            self.step_updates.read_moments()
            self.flops_left, self.steps_checked = self.flops_left - cost, self.steps_checked + 1
        elif not self.steps_checked:
            self.unchecked.setdefault("step losses", "NumPy would take too long")

    def after_step(self, step: Step, loss: float, *, number: int, made: int) -> None:
        """Look at the weights after it. `number`: of the epoch; `made`: the updates before this one."""
        if self.before is None:
            return
        before, after, where = self.before, self._weights(), f"step {made}, in epoch {number + 1}"
        self.before = None
        pushed = (made + 1) % self.spec.push_interval() == 0
        learning_rate = rate(self.spec.optimizer, made)
        if pushed and learning_rate >= LEAST_RATE:
            still = unchanged(before.replicas, after.replicas)
            self.found.append(finding("updates", f"no weight of replica {still[0]} moved in {where}" if still else ""))
        if learning_rate == 0 and self.spec.algorithm == "synchronous":
            name = moved(before.replicas, after.replicas)
            self.found.append(finding("updates", f"{name} moved at a learning rate of 0 in {where}" if name else ""))
        if self.spec.algorithm != "synchronous" or before.params is None:
            return
        weights: Any = {"before": before.replicas[0], "after": after.replicas[0]}
        self.found += self.step_updates.compare(step, made=made, where=where, **weights)
        samples = self.epochs.batches.gather(step.chosen)
        groups = normalization(self.spec, self.spec.options)(len(step.chosen))
        precision = self.spec.precision
        computed = trained.compute(self.workload, before.params, samples, precision=precision, groups=groups)
        self.found.append(trained.compare_loss(computed, loss, precision=precision, where=where))
        once = self.spec.normalization != "per_microbatch" and self.spec.accumulation_steps == 1
        if before.running and once:
            assert after.running is not None
            first_only = getattr(self.program, "statistics_of", "all") == "first"
            known: Any = {"first_only": first_only, "precision": precision, "where": where}
            self.found.append(trained.compare_statistics(computed, before=before.running, after=after.running, **known))

    def _weights(self) -> _Weights:
        """The program's weights now. A collective."""
        replicas = copied_replicas(self.context)
        first = replicas[0] if self.context.agree.rank == 0 else None
        if not self.workload.normalizes:
            return _Weights(replicas, first, {})
        params, running = _split(self.context.state())
        return _Weights(replicas, params, running)

    # The end.

    def at_end(self, steps: Sequence[Step], *, made: int) -> None:
        """Is work left after a chunk, in which formats does the program compute, and does its state hold all of the
        training? Makes some of these steps. `made`: the updates before them."""
        made += self.chunks.read_again(steps)
        made += self._number_formats(steps)
        self._resume(steps, made=made)
        self.note()

    def _number_formats(self, steps: Sequence[Step]) -> int:
        """Judge the number formats of the program that has trained. Returns how many further steps it makes for that.

        `steps`: of an epoch. As many are read as lie between two exchanges of workers. Placing their batches must not
        change the state.
        """
        of_call = self.spec.steps_per_call
        chosen = steps[: whole_rounds(self.spec.exchange_interval, of=of_call)]
        state = self.state_digests()
        calls = [list(place_each(self.context, self.epochs, call)) for call in in_calls(chosen, of=of_call)]
        self._compare_state(state, "state after placing", "placing batches")  # which no clock sees
        found, made = formats.read(self.context, calls)
        if found is not None:
            self.found += formats.judged(self.context, found)
        return made

    def _resume(self, steps: Sequence[Step], *, made: int) -> None:
        """Check at the end of a training what its saved state holds, and how much of BatchNorm's running statistics a
        call keeps. `made`: the updates before it."""
        if self.spec.algorithm == "asynchronous":
            self.unchecked["resumed training"] = "no two runs are equal"
        else:
            self.found += ResumeCheck(self.context, self.epochs).compare(steps, made=made)
        call = steps[: self.spec.steps_per_call]
        if self.workload.normalizes and len(call) == self.spec.steps_per_call:
            self.found += statistics_kept(self.context, list(place_each(self.context, self.epochs, call)))

    # Evaluations.

    def state_digests(self) -> dict[str, int]:
        """A checksum of each array of the program's state, on rank 0. A collective."""
        state = self.context.state()
        return {name: zlib.crc32(np.ascontiguousarray(array).tobytes()) for name, array in state.items()}

    def compare_state(self, before: Mapping[str, int], *, what: str) -> None:
        """Compare the state after an evaluation with that before it."""
        self._compare_state(before, "state after evaluations", f"the evaluation of the {what}")

    def _compare_state(self, before: Mapping[str, int], quantity: Quantity, by: str) -> None:
        after = self.state_digests()
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if self.context.agree.rank == 0:
            self.found.append(finding(quantity, f"{by} changed {min(changed)}" if changed else ""))

    def evaluated(self, samples: Batches, batches: Sequence[EvaluatedBatch], *, what: str, last: bool) -> None:
        """Compute batches of an evaluation again: all that are affordable in the `last` one, else two: its last batch,
        which may be padded, and any other."""
        left, chosen = (WHOLE_FLOPS if last else min(STEP_FLOPS, self.flops_left)), []
        others = np.random.default_rng([self.spec.seed, self.evaluations, 0xE7A1]).permutation(len(batches) - 1)
        self.evaluations += 1
        for batch in (batches[-1], *(batches[number] for number in others)):
            cost = self.forward_flops * batch.count
            if cost <= left and (last or len(chosen) < 2):
                chosen.append(batch)
                left -= cost
        if not chosen:
            if not last:
                return
            few = min(batches[0].count, max(1, int(WHOLE_FLOPS // self.forward_flops)))
            chosen = evaluate_samples(self.context, samples, first=few)
        elif not last:
            self.flops_left -= self.forward_flops * sum(batch.count for batch in chosen)
        params, running = _split(self.context.state())
        if params is None:
            return
        precision = self.spec.precision
        for batch in chosen:
            exact = samples.gather(batch.chosen)
            computed = trained.compute(self.workload, params, exact, precision=precision, running=running or {})
            where = f"samples {batch.chosen[0]} to {batch.chosen[-1]} of the {what}"
            said = (batch.loss, batch.accuracy)
            self.found += trained.compare_evaluation(computed, *said, precision=precision, where=where)


class _Weights:
    """A program's weights at a moment. `params` and `running` are those of the whole training, on rank 0."""

    def __init__(self, replicas: list[Arrays], params: Arrays | None, running: Arrays | None) -> None:
        self.replicas, self.params, self.running = replicas, params, running


def _split(state: Arrays) -> tuple[Arrays | None, Arrays | None]:
    """The parameters and the running statistics in a state; nothing on ranks without one."""
    if not state:
        return None, None
    params = {name.removeprefix("model/"): array for name, array in state.items() if name.startswith("model/")}
    running = {name.removeprefix("running/"): array for name, array in state.items() if name.startswith("running/")}
    return params, running
