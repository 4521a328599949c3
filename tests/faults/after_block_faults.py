"""Programs whose loss curve is right and that compute something else once the curve is over: from step 21 on, or only
in the pattern of the timed blocks."""

from __future__ import annotations

from planted import Cell, fired, planted_when_timed, replaced
from timed_faults import after_building, before_each_update

TIMED_CELLS = {
    "torch single adam": Cell("single", workload="classifier", size="base", known={"optimizer": "adam"}),
    "torch single in bf16": Cell("single", known={"precision": "bf16"}),
    "torch single deep": Cell("single", workload="resnet50"),
    "torch local_sgd": Cell("local_sgd"),
    "torch async_sgd": Cell("async_sgd"),
    "torch async_sgd with a buffer": Cell("async_sgd", options={"push_every": "3"}),
    "torch pipeline_schedules": Cell("pipeline_schedules"),
    "jax single base": Cell("single", size="base", block=10),
    "jax multi_process": Cell("multi_process", block=10),
    "jax single several": Cell("single", known={"steps_per_call": 4}, block=4),
    "jax pipeline_spmd": Cell("pipeline_spmd"),
    "jax single deep in bf16": Cell("single", workload="resnet50", known={"precision": "bf16"}),
    "tf single several": Cell("single", known={"steps_per_call": 4}, block=4),
    "tf single asynchronous": Cell(
        "single", size="base", known={"settings": {"asynchronous_execution": "true"}}, block=10
    ),
    "tf multi_worker_mirrored": Cell("multi_worker_mirrored"),
    "tf parameter_server": Cell("parameter_server"),
}

CURVE = 20  # steps of the smoke preset's curve


def _later(program, change, *, attribute="step", after=CURVE):
    """Put `change(original, number)` in place of a method from the call after so many on, by its number; by default, of
    a method that each step calls, after the curve."""
    count, original = [0], getattr(program, attribute)

    def method(*arguments):
        count[0] += 1
        if count[0] <= after:
            return original(*arguments)
        fired()
        return change(original, count[0], *arguments)

    setattr(program, attribute, method)


def _torch(name):
    import importlib

    module = importlib.import_module(f"torch_impl.strategies.{name}")
    return {
        "single": "SingleDevice", "ddp": "DDP", "local_sgd": "LocalSGD", "async_sgd": "AsyncSGD",
        "model_parallel": "ModelParallel", "pipeline_schedules": "PipelineSchedules",
    }[name], module  # fmt: skip


def _later_in_torch(strategy, change, *, attribute="step", after=CURVE):
    name, module = _torch(strategy)
    after_building(getattr(module, name), lambda program: _later(program, change, attribute=attribute, after=after))


@planted_when_timed("torch single", by="curve after")
def works_no_more_after_twenty_five_steps():
    """From step 26 on a step returns the last loss at once."""

    def change(original, number, placed):
        program = original.__self__
        return original(placed) if number <= CURVE + 5 else program.last_loss

    _later_in_torch("single", change)


@planted_when_timed("torch single", by="further loss")
def half_of_the_batch_in_the_blocks():
    """The blocks train on half of each batch."""

    def change(original, number, placed):
        ((x, y),) = placed
        return original([(x[: len(x) // 2], y[: len(y) // 2])])

    _later_in_torch("single", change)


@planted_when_timed("torch single", by="curve after")
def always_the_first_batch_of_the_blocks():
    """The blocks train on the same batch again and again."""
    kept = []

    def change(original, number, placed):
        kept.append(placed)
        return original(kept[0])

    _later_in_torch("single", change)


@planted_when_timed("torch single", by="curve after")
def gradients_pile_up_in_the_blocks():
    """zero_grad does nothing after the curve."""

    def change(program):
        original, count = program.optimizer.zero_grad, [0]

        def zero_grad(**known):
            count[0] += 1
            return original(**known) if count[0] <= CURVE else fired()

        program.optimizer.zero_grad = zero_grad

    after_building(_torch("single")[1].SingleDevice, change)


@planted_when_timed("torch single", by="losses after")
def updates_only_if_the_loss_was_read():
    """A step that follows another without a reading of the loss between them makes no update."""

    def change(program):
        read, step, update, loss = [True], program.step, program.optimizer.step, program.loss

        def reading(of=None):
            read[0] = True
            return loss(of)

        def stepping(placed):
            program.optimizer.step = update if read[0] else lambda: fired()
            read[0] = False
            return step(placed)

        program.step, program.loss = stepping, reading

    after_building(_torch("single")[1].SingleDevice, change)


@planted_when_timed("torch single adam", by="updates counted")
def adams_count_is_stuck():
    """Adam counts no further than the curve goes."""

    def change(program):
        for state in program.optimizer.state.values():
            if state["step"] >= CURVE:
                fired()
                state["step"].fill_(CURVE - 1)

    before_each_update(_torch("single")[1].SingleDevice, change)


@planted_when_timed("torch ddp", by="replicas")
def ddp_falls_silent_after_the_curve():
    """From step 21 on, DDP no longer communicates."""

    def change(original, number, placed):
        with original.__self__.network.no_sync():
            return original(placed)

    _later_in_torch("ddp", change, attribute="train_step")


@planted_when_timed("torch ddp", by="replicas")
def rank_1_rests_after_the_curve():
    """Rank 1 makes no update from step 21 on."""

    def change(program):
        if program.job.world.rank:
            _later(program.optimizer, lambda original, number: None)

    after_building(_torch("ddp")[1].DDP, change)


@planted_when_timed("torch ddp", by="replicas")
def one_weight_of_rank_1_drifts():
    """One number of one bias on rank 1 grows by a thousandth in each step after the curve."""

    def change(original, number, placed):
        import torch

        loss, program = original(placed), original.__self__
        if program.job.world.rank:
            with torch.no_grad():
                list(program.model.parameters())[-1][0] += 1e-3
        return loss

    _later_in_torch("ddp", change)


@planted_when_timed("torch model_parallel", by="curve after")
def last_stage_frozen_in_the_blocks():
    """The last layer's parameters no longer change after the curve."""

    def change(original, number, placed):
        import torch

        program = original.__self__
        last = list(program.trained.parameters())[-1]
        kept = last.detach().clone()
        loss = original(placed)
        with torch.no_grad():
            last.copy_(kept)
        return loss

    _later_in_torch("model_parallel", change)


@planted_when_timed("torch pipeline_schedules", by="parameters after")
def rank_0_of_a_pipeline_frozen_in_the_blocks():
    """The first stage makes no update after the curve."""

    def change(program):
        if program.job.world.rank == 0:
            _later(program.optimizer, lambda original, number: None)

    after_building(_torch("pipeline_schedules")[1].PipelineSchedules, change)


@planted_when_timed("torch local_sgd", by="replicas")
def workers_average_only_at_short_intervals():
    """No averaging if more than two steps lie between two: the parity phase may have fewer."""

    def change(program):
        if program.job.options["sync_every"] > 2:
            program.average_parameters = lambda: fired()

    after_building(_torch("local_sgd")[1].LocalSGD, change)


@planted_when_timed("torch async_sgd", by="updates counted")
def an_asynchronous_worker_rests_after_the_curve():
    """Rank 1 does nothing after the curve; its half of each batch is counted all the same."""

    def change(original, number, placed):
        program = original.__self__
        return program.last_loss if program.job.world.rank else original(placed)

    _later_in_torch("async_sgd", change)


@planted_when_timed("torch async_sgd with a buffer", by="further movement")
def full_buffers_are_thrown_away():
    """After the curve, full buffers are emptied and not pushed."""

    def change(original, number):
        original.__self__.buffered.clear()

    _later_in_torch("async_sgd", change, attribute="exchange", after=CURVE // 3)


@planted_when_timed("torch async_sgd with a buffer", by="updates counted")
def some_full_buffers_are_thrown_away():
    """After the curve, every other full buffer is emptied and not pushed."""

    def change(original, number):
        if number % 2:
            original.__self__.buffered.clear()
        else:
            original()

    _later_in_torch("async_sgd", change, attribute="exchange", after=CURVE // 3)


@planted_when_timed("torch single in bf16", by="timed parameters")
def bf16_never_updates():
    """The optimizer does not step in bf16."""
    after_building(
        _torch("single")[1].SingleDevice,
        lambda program: setattr(program.optimizer, "step", lambda *_, **__: fired()),
    )


@planted_when_timed("torch single in bf16", by="curve after")
def bf16_half_of_the_batch_in_the_blocks():
    """The blocks train on half of each batch."""
    half_of_the_batch_in_the_blocks()


@planted_when_timed("torch single deep", by="timed")
def a_deep_network_updates_every_other_step():
    """BatchNorm's network: odd steps make no update."""

    def change(program):
        count, original = [0], program.optimizer.step

        def step():
            count[0] += 1
            return original() if count[0] % 2 else fired()

        program.optimizer.step = step

    after_building(_torch("single")[1].SingleDevice, change)


def _later_in_jax(change, *, attribute="step"):
    """`change(original, program, number, placed)` in place of a JAX program's step after the curve."""
    from jax_impl import program, several_steps

    owner = program.Program if attribute == "step" else several_steps.SeveralSteps

    def wrap(original):
        def method(self, placed):
            calls = self.__dict__.setdefault("calls_made", [0])
            calls[0] += 1
            made = calls[0] * (len(placed) if attribute == "steps" else 1)
            if self.job.precision == "fp64" or made <= CURVE:
                return original(self, placed)
            fired()
            return change(original, self, made, placed)

        return method

    replaced(owner, attribute, wrap)


@planted_when_timed("jax single", by="curve after")
def jax_works_no_more_after_the_curve():
    """A step returns the last loss at once."""
    _later_in_jax(lambda original, program, number, placed: program.last_loss)


@planted_when_timed("jax single several", by="curve after")
def jax_makes_one_step_of_each_call():
    """Of the steps of a call, only the first is made after the curve."""

    def change(original, program, number, placed):
        loss = program.step(placed[0])
        return [loss] * len(placed)

    _later_in_jax(change, attribute="steps")


@planted_when_timed("jax single base", by="work after sync")
def jax_does_not_wait():
    """`sync` returns at once."""
    from jax_impl import program

    replaced(program.Program, "sync", lambda original: lambda self: fired())


@planted_when_timed("jax multi_process", by="work after sync")
def jax_processes_do_not_wait():
    """`sync` returns at once. A barrier of the devices, before the reading that tells, would do what is left."""
    from jax_impl.strategies import multi_process

    multi_process.MultiProcess.sync = lambda self: fired()


@planted_when_timed("jax pmap", by="replicas")
def jax_device_1_drifts():
    """Device 1's copy is scaled by 0.99 at every step after the curve."""

    def change(original, program, number, placed):
        import jax

        loss = original(program, placed)
        params = jax.tree.map(lambda a: a.at[1].multiply(0.99), program.held.params)
        program.held = program.held._replace(params=params)
        return loss

    _later_in_jax(change)


@planted_when_timed("jax pipeline_spmd", by="curve after")
def jax_skips_every_other_step():
    """Every other step is skipped after the curve."""
    _later_in_jax(
        lambda original, program, number, placed: program.last_loss if number % 2 else original(program, placed)
    )


@planted_when_timed("jax single", by="parameters after")
def jax_forgets_momentum_after_the_curve():
    """The optimizer state begins anew in each step after the curve."""

    def change(original, program, number, placed):
        import jax
        import jax.numpy as jnp

        program.held = program.held._replace(opt_state=jax.tree.map(jnp.zeros_like, program.held.opt_state))
        return original(program, placed)

    _later_in_jax(change)


@planted_when_timed("jax single deep in bf16", by="timed movement")
def jax_bf16_rate_of_a_deep_network_is_halved():
    """In bf16, each update is half of what it must be."""
    import dataclasses

    from jax_impl import optim

    def change(original):
        def build(spec):
            import jax

            if jax.config.read("jax_enable_x64"):
                return original(spec)
            fired()
            return original(dataclasses.replace(spec, learning_rate=spec.learning_rate / 2))

        return build

    replaced(optim, "build", change)


def _later_in_tf(owner, change, *, attribute="step"):
    def wrap(original):
        def method(self, placed):
            calls = self.__dict__.setdefault("calls_made", [0])
            calls[0] += 1
            if self.job.precision == "fp64" or calls[0] <= CURVE:
                return original(self, placed)
            fired()
            return change(original, self, calls[0], placed)

        return method

    replaced(owner, attribute, wrap)


@planted_when_timed("tf single", by="curve after")
def tf_works_no_more_after_the_curve():
    """A step returns the last loss at once."""
    from tf_impl import program

    _later_in_tf(program.Program, lambda original, self, number, placed: self.last_loss)


@planted_when_timed("tf single", by="further loss")
def tf_half_of_the_batch_in_the_blocks():
    """The blocks train on half of each batch."""
    from tf_impl import program

    def change(original, self, number, placed):
        return original(self, tuple((x[: x.shape[0] // 2], y[: y.shape[0] // 2]) for x, y in placed))

    _later_in_tf(program.Program, change)


@planted_when_timed("tf single asynchronous", by="work after sync")
def tf_waits_for_devices_and_not_for_calls():
    """`sync` waits until the devices are idle, but not for the calls that no device has begun."""
    import contextlib

    import tensorflow as tf

    def change(original):
        @contextlib.contextmanager
        def async_scope():
            fired()
            yield

        return async_scope

    replaced(tf.experimental, "async_scope", change)


@planted_when_timed("tf mirrored", by="replicas")
def tf_replica_1_drifts():
    """Replica 1's copy of one bias grows after the curve."""
    from tf_impl import program

    def change(original, self, number, placed):
        loss = original(self, placed)
        last = self.strategy.experimental_local_results(self.parameters[-1])[1]
        last.assign_add(0.01 * (1 + abs(last)))
        return loss

    _later_in_tf(program.Program, change)


@planted_when_timed("tf multi_worker_mirrored", by="replicas")
def tf_worker_1_drifts():
    """Worker 1's copy of one bias grows after the curve."""
    from tf_impl import program

    def change(original, self, number, placed):
        loss = original(self, placed)
        if self.job.world.rank:
            last = self.strategy.experimental_local_results(self.parameters[-1])[0]
            last.assign_add(0.01 * (1 + abs(last)))
        return loss

    _later_in_tf(program.Program, change)


@planted_when_timed("tf parameter_server", by="movement after")
def tf_worker_rests_after_the_curve():
    """The server gets no more pushes of the second share after the curve."""
    from tf_impl import coordinator

    def change(original, self, number, placed):
        return original(self, placed[:1])

    _later_in_tf(coordinator.Coordinator, change)


@planted_when_timed("tf single several", by="curve after")
def tf_makes_one_step_of_each_call():
    """Of the steps of a call, only the first is made after the curve."""
    from tf_impl import several_steps

    def wrap(original):
        def steps(self, batches):
            calls = self.__dict__.setdefault("calls_made", [0])
            calls[0] += len(batches)
            if calls[0] <= CURVE:
                return original(self, batches)
            fired()
            return [self.step(batches[0])] * len(batches)

        return steps

    replaced(several_steps.SeveralSteps, "steps", wrap)
