"""Programs that are right when they are proved and wrong when they are timed: faults that act in float32 alone.

Functions import the framework themselves: the tests read this file without one.
"""

from __future__ import annotations

from planted import Cell, fired, planted_when_timed, replaced, when_timed

TIMED_CELLS = {
    "torch single": Cell("single"),
    "torch single toy": Cell("single", workload="toy", size="base"),
    "torch single at a tiny rate": Cell("single", known={"optimizer": "sgd:learning_rate=1e-9"}),
    "torch single accumulating": Cell("single", known={"accumulation_steps": 4}),
    "torch single adam": Cell("single", workload="classifier", size="base", known={"optimizer": "adam"}),
    "torch ddp": Cell("ddp"),
    "torch ddp compressed": Cell("ddp", options={"compression": "bf16"}),
    "torch average_gradients": Cell("average_gradients"),
    "torch fsdp": Cell("fsdp"),
    "torch pipeline uneven": Cell("pipeline", options={"split_size": "5"}),
    "torch model_parallel": Cell("model_parallel"),
    "jax single": Cell("single"),
    "jax pmap": Cell("pmap"),
    "jax shard_map": Cell("shard_map"),
    "tf single": Cell("single"),
    "tf mirrored": Cell("mirrored"),
}


def after_building(program, change):
    """Call `change(program)` on each program of this class that is built for another precision than float64."""

    def wrap(original):
        def build(self, job, *rest):
            original(self, job, *rest)
            if job.precision != "fp64":
                change(self)

        return build

    replaced(program, "__init__", wrap)


def statistics_move_by(share):
    """For `after_building`: each BatchNorm of torch moves its running statistics by this share in each pass."""

    def change(program):
        from torch import nn

        for module in program.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                fired()
                module.momentum = share

    return change


def before_each_update(owner, change):
    """Call `change(program)` between backward and update, in each program of one of torch's strategies."""

    def plant(program):
        update = program.optimizer.step

        def step(*arguments, **known):
            change(program)
            return update(*arguments, **known)

        program.optimizer.step = step

    after_building(owner, plant)


def _single():
    from torch_impl.strategies.single import SingleDevice

    return SingleDevice


def no_decay(program):
    """Torch's optimizer forgets its weight decay."""
    fired()
    for group in program.optimizer.param_groups:
        group["weight_decay"] = 0.0


def _without_updates(program):
    program.optimizer.step = lambda *_, **__: fired()


@planted_when_timed("torch single")
def never_updates():
    """The optimizer does not step. The losses of a slow training hardly show it."""
    after_building(_single(), _without_updates)


@planted_when_timed("torch single toy")
def never_updates_a_toy():
    """The same on a network whose loss falls by 3e-4 in the steps that are compared."""
    after_building(_single(), _without_updates)


@planted_when_timed("torch single")
def momentum_thrown_away():
    """Momentum begins anew in every step."""

    def change(program):
        program.optimizer.state.clear()
        fired()

    before_each_update(_single(), change)


@planted_when_timed("torch single")
def every_seventh_update_skipped():
    """Six updates of seven are made."""

    def change(program):
        count, original = [0], program.optimizer.step

        def step():
            count[0] += 1
            return fired() if count[0] % 7 == 0 else original()

        program.optimizer.step = step

    after_building(_single(), change)


@planted_when_timed("torch ddp")
def ranks_never_communicate():
    """Every step runs under no_sync()."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        def step(placed):
            fired()
            with program.network.no_sync():
                return original(placed)

        original = program.train_step
        program.train_step = step

    after_building(DDP, change)


@planted_when_timed("torch ddp")
def rate_times_the_ranks():
    """The learning rate is scaled by the number of ranks, although the batch is not."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        fired()
        for group in program.optimizer.param_groups:
            group["lr"] *= 2

    after_building(DDP, change)


@planted_when_timed("torch single", by="timed movement")
def rate_one_percent_too_high():
    """No tensor is off by more than a percent or two, which is less than what one flipped activation does."""

    def change(program):
        fired()
        for group in program.optimizer.param_groups:
            group["lr"] *= 1.01

    after_building(_single(), change)


@planted_when_timed("torch model_parallel")
def last_stage_frozen_after_five_steps():
    """After five steps, the last layer's parameters no longer change."""
    from torch_impl.strategies.model_parallel import ModelParallel

    def change(program):
        program.made = getattr(program, "made", 0) + 1
        if program.made > 5:
            fired()
            list(program.trained.parameters())[-1].grad = None

    before_each_update(ModelParallel, change)


@planted_when_timed("torch single accumulating")
def last_part_not_accumulated():
    """The gradient of the last accumulated part is lost."""

    def change(program):
        def step(placed):
            fired()
            x, y = placed[-1]
            return original([*placed[:-1], (x.detach() * 0, y)])

        original = program.train_step
        program.train_step = step

    after_building(_single(), change)


@planted_when_timed("jax single")
def jax_never_updates():
    """The new parameters are those of before."""
    import jax
    import jax.numpy as jnp

    from jax_impl import program

    def step(original, self, placed):
        before = jax.tree.map(jnp.copy, self.held.params)
        loss = original(self, placed)
        self.held = self.held._replace(params=before)
        return loss

    replaced(program.Program, "step", when_timed(step))


@planted_when_timed("tf single")
def tf_rate_doubled():
    """The optimizer's rate is twice the job's."""
    import dataclasses

    from tf_impl import optim

    def change(original):
        def build(spec, variables, **known):
            if variables[0].dtype == "float32":
                fired()
                spec = dataclasses.replace(spec, learning_rate=2 * spec.learning_rate)
            return original(spec, variables, **known)

        return build

    replaced(optim, "build", change)


@planted_when_timed("tf single", by="timed movement")
def tf_momentum_two_percent_too_low():
    """The velocity keeps 0.49 of itself where the job says 0.5."""
    import dataclasses

    from tf_impl import optim

    def change(original):
        def build(spec, variables, **known):
            if variables[0].dtype == "float32":
                fired()
                spec = dataclasses.replace(spec, momentum=0.98 * spec.momentum)
            return original(spec, variables, **known)

        return build

    replaced(optim, "build", change)


@planted_when_timed("jax single", by="timed movement")
def jax_rate_one_percent_too_low():
    """Updates are a percent smaller than they should be."""
    import jax
    import jax.numpy as jnp
    import optax

    from jax_impl import optim

    def without_state(params):
        del params
        return optax.EmptyState()

    def smaller(updates, state, params=None):
        del params
        fired()
        return jax.tree.map(lambda array: array * (0.99 if array.dtype == jnp.float32 else 1), updates), state

    def change(original):
        def build(spec):
            return optax.chain(original(spec), optax.GradientTransformation(without_state, smaller))

        return build

    replaced(optim, "build", change)
