"""Programs that are right as long as somebody looks: they do less in a block of steps than in each of its steps.

Their curves, single steps and repeated curves are right.
"""

from __future__ import annotations

from functools import partial

from planted import Cell, fired, planted_when_timed, replaced
from timed_faults import after_building, before_each_update

TIMED_CELLS = {
    "torch single in blocks": Cell("single", block=10),
    "torch ddp in blocks": Cell("ddp", block=10),
    "torch fsdp in blocks": Cell("fsdp", block=10),
    "torch pipeline_schedules in blocks": Cell("pipeline_schedules", block=10),
    "torch local_sgd in blocks": Cell("local_sgd", block=10),
    "jax pmap in blocks": Cell("pmap", block=10),
    "jax jit_sharding in blocks": Cell("jit_sharding", block=10),
    "jax shard_map in blocks": Cell("shard_map", block=10),
    "tf mirrored in blocks": Cell("mirrored", block=10),
    "tf multi_worker_mirrored in blocks": Cell("multi_worker_mirrored", block=10),
    "jax single, eight steps a call": Cell("single", block=8, known={"steps_per_call": 8}),
    "tf single, eight steps a call": Cell("single", block=8, known={"steps_per_call": 8}),
}
wrong_block = partial(planted_when_timed, by="replayed block")

ALONE = 4  # steps without a wait that are made as they should be: the calls of a chunk of the repeated curve


def _running_ahead(program, change):
    """Put `change(original, placed)` in place of each step that was not waited for after ALONE others."""
    ahead, step, sync, loss = [0], program.step, program.sync, program.loss

    def stepping(placed):
        ahead[0] += 1
        if ahead[0] <= ALONE or program.job.precision == "fp64":
            return step(placed)
        fired()
        return change(step, placed)

    def waiting():
        ahead[0] = 0
        return sync()

    def reading(of=None):
        ahead[0] = 0
        return loss(of)

    program.step, program.sync, program.loss = stepping, waiting, reading


def _in_torch(module, name, change):
    import importlib

    program = getattr(importlib.import_module(f"torch_impl.strategies.{module}"), name)
    after_building(program, lambda program: _running_ahead(program, change(program)))


def _skip(program):
    return lambda step, placed: program.last_loss


def _half(program):
    return lambda step, placed: step([(x[: len(x) // 2], y[: len(y) // 2]) for x, y in placed])


@wrong_block("torch single in blocks")
def skips_steps_that_run_ahead():
    """A step that nobody waits for is not made."""
    _in_torch("single", "SingleDevice", _skip)


@wrong_block("torch single in blocks")
def half_of_the_batch_while_nobody_waits():
    """Steps that run ahead take half of their batch."""
    _in_torch("single", "SingleDevice", _half)


@wrong_block("torch pipeline_schedules in blocks")
def all_ranks_skip_steps_that_run_ahead():
    """No rank of a pipeline makes a step that nobody waits for."""
    _in_torch("pipeline_schedules", "PipelineSchedules", _skip)


@wrong_block("torch local_sgd in blocks")
def workers_average_less_often_while_nobody_waits():
    """Workers that run ahead pass over their averaging."""

    def change(program):
        def without_averaging(step, placed):
            program.average_parameters = lambda: None
            try:
                return step(placed)
            finally:
                del program.average_parameters

        return without_averaging

    _in_torch("local_sgd", "LocalSGD", change)


@wrong_block("torch ddp in blocks")
def averages_only_when_somebody_waits():
    """Ranks train on their own while they run ahead; `sync` averages their parameters."""
    import torch

    def build(program):
        def alone(step, placed):
            with program.network.no_sync():
                return step(placed)

        _running_ahead(program, alone)
        waiting = program.sync

        def averaging():
            with torch.no_grad():
                for parameter in program.model.parameters():
                    parameter.copy_(program.over_ranks(parameter))
            return waiting()

        program.sync = averaging

    from torch_impl.strategies.ddp import DDP

    after_building(DDP, build)


@wrong_block("torch single in blocks")
def reuses_gradients_until_a_state_is_loaded():
    """From step 31 on, every other step applies the gradient of the one before, until a state is loaded."""

    def change(program):
        program.made = getattr(program, "made", 0) + 1
        if program.made > 30 and program.made % 2:
            fired()
            for parameter, gradient in program.kept.items():
                parameter.grad = gradient
        program.kept = {parameter: parameter.grad.clone() for parameter in program.model.parameters()}

    def from_the_beginning(original):
        def load_state(self, state):
            self.made = 0
            return original(self, state)

        return load_state

    from torch_impl.strategies.single import SingleDevice

    before_each_update(SingleDevice, change)
    replaced(SingleDevice, "load_state", from_the_beginning)


def _every_program_of(package, change):
    """The same for all programs of a package that are built for another precision than float64."""
    import importlib

    program = importlib.import_module(f"{package}.program").Program
    ahead = {}

    def step(original):
        def stepping(self, placed):
            ahead[id(self)] = ahead.get(id(self), 0) + 1
            if self.job.precision == "fp64" or ahead[id(self)] <= ALONE:
                return original(self, placed)
            fired()
            return change(original, self, placed)

        return stepping

    def forgetting(original):
        def method(self, *arguments):
            ahead[id(self)] = 0
            return original(self, *arguments)

        return method

    replaced(program, "step", step)
    replaced(program, "sync", forgetting)
    replaced(program, "loss", forgetting)


@wrong_block("jax pmap in blocks")
def jax_skips_steps_that_run_ahead():
    """A step that nobody waits for is not made."""
    _every_program_of("jax_impl", lambda step, program, placed: program.last_loss)


@wrong_block("tf multi_worker_mirrored in blocks")
def tf_skips_steps_that_run_ahead():
    """A step that nobody waits for is not made."""
    _every_program_of("tf_impl", lambda step, program, placed: program.last_loss)


@wrong_block("torch fsdp in blocks")
def fsdp_takes_half_of_the_batch_while_nobody_waits():
    """Steps that run ahead take half of their batch."""
    _in_torch("fsdp", "FSDP", _half)


@wrong_block("jax jit_sharding in blocks")
def remembers_batches_that_it_has_seen():
    """A batch that was seen before gives its old loss, and no update, while nobody waits."""
    seen = {}

    def change(step, program, placed):
        if id(placed[0]) not in seen:
            seen[id(placed[0])] = step(program, placed)
        return seen[id(placed[0])]

    _every_program_of("jax_impl", change)


@wrong_block("jax shard_map in blocks")
def reads_stale_inputs_while_nobody_waits():
    """Steps that run ahead train on the first batch that did, as a graph whose inputs are not copied."""
    first = []

    def change(step, program, placed):
        first[:] = first or [placed]
        return step(program, first[0])

    _every_program_of("jax_impl", change)


@wrong_block("tf mirrored in blocks")
def mirrored_skips_steps_that_run_ahead():
    """A step that nobody waits for is not made."""
    _every_program_of("tf_impl", lambda step, program, placed: program.last_loss)


@wrong_block("torch single in blocks")
def a_known_batch_is_not_computed_again():
    """The gradients of a batch that was seen before are those of its first time: the blocks have four batches."""

    def remember(program):
        known, step = {}, program.train_step

        def train_step(placed):
            if id(placed) not in known:
                loss = step(placed)
                gradients = [parameter.grad.clone() for parameter in program.model.parameters()]
                known[id(placed)] = placed, loss, gradients
                return loss
            fired()
            _, loss, gradients = known[id(placed)]
            for parameter, gradient in zip(program.model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            program.optimizer.step()
            return loss

        program.train_step = train_step

    from torch_impl.strategies.single import SingleDevice

    after_building(SingleDevice, remember)


def _without_repetition(program):
    """A batch that comes twice in a call makes one step."""

    def change(original):
        def steps(self, batches):
            distinct = list({id(batch): batch for batch in batches}.values())
            if len(distinct) == len(batches):
                return original(self, batches)
            fired()
            losses = original(self, distinct)
            return [losses[number % len(distinct)] for number in range(len(batches))]

        return steps

    replaced(program, "steps", change)


@wrong_block("jax single, eight steps a call")
def a_batch_twice_in_a_call_is_one_step_in_jax():
    """Half of the updates."""
    from jax_impl.several_steps import SeveralSteps

    _without_repetition(SeveralSteps)


@wrong_block("tf single, eight steps a call")
def a_batch_twice_in_a_call_is_one_step_in_tf():
    """Half of the updates."""
    from tf_impl.several_steps import SeveralSteps

    _without_repetition(SeveralSteps)
