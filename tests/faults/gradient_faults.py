"""Faults of gradients and of BatchNorm's statistics that spare the loss curve, and show in a further call alone."""

from __future__ import annotations

from planted import Cell, fired, planted_when_timed, replaced, when_timed
from timed_faults import after_building, before_each_update

TIMED_CELLS = {
    "torch single ended": Cell(
        "single", known={"optimizer": "sgd:momentum=0.9,schedule=cosine,total_steps=20"}, block=30
    ),
    "torch single deep accumulating": Cell("single", workload="resnet50", known={"accumulation_steps": 2}),
    "jax single deep rule": Cell(
        "single", workload="resnet50", known={"settings": {"batch_norm_relu": "true"}, "precision": "bf16"}
    ),
    "jax single deep rule several": Cell(
        "single", workload="resnet50", block=4,
        known={"settings": {"batch_norm_relu": "true"}, "precision": "bf16", "steps_per_call": 4},
    ),
}  # fmt: skip


def _single():
    from torch_impl.strategies import single

    return single.SingleDevice


@planted_when_timed("torch single bf16", by="further update")
def gradients_are_taken_at_older_weights():
    """Those from before the last update, as of a copy in bfloat16 that is made too early. The update itself goes to the
    right weights. A second call from the same state would find the older weights equal to the state's."""

    def plant(program):
        import torch

        params = list(program.model.parameters())
        older = [param.detach().clone() for param in params]
        original, update = program.train_step, program.optimizer.step

        def put(values):
            with torch.no_grad():
                for param, value in zip(params, values, strict=True):
                    param.copy_(value)

        def step(placed):
            fired()
            program.newest = [param.detach().clone() for param in params]
            put(older)
            return original(placed)

        def optimizer_step():
            put(program.newest)
            older[:] = program.newest
            return update()

        program.train_step, program.optimizer.step = step, optimizer_step

    after_building(_single(), plant)


@planted_when_timed("torch single ended", by="further update")
def there_is_no_backward_once_the_rate_is_0():
    """The schedule has ended, so no weight shows it. Momentum does."""

    def wrong(original, self, placed):
        import torch

        if self.optimizer.param_groups[0]["lr"] > 0:
            return original(self, placed)
        with torch.no_grad():
            return self.loss_fn(self.network(placed[0][0]), placed[0][1])

    replaced(_single(), "train_step", when_timed(wrong))


@planted_when_timed("torch single bf16", by="further step size")
def the_first_layer_learns_less():
    """By 30%, which is less than rounding to bfloat16 may change in one number."""

    def change(program):
        fired()
        next(iter(program.model.parameters())).grad.mul_(0.7)

    before_each_update(_single(), change)


@planted_when_timed("torch single deep accumulating", by="further statistics")
def statistics_of_parts_are_divided_by_their_number():
    """As gradients are. What is kept of the statistics stays right."""

    def plant(program):
        from torch import nn

        def before(module, _):
            module.old = module.running_mean.clone(), module.running_var.clone()

        def after(module, *_):
            if module.training:
                fired()
                for old, new in zip(module.old, (module.running_mean, module.running_var), strict=True):
                    kept = old * (1 - module.momentum)
                    new.data.copy_(kept + (new - kept) / program.job.accumulation_steps)

        for module in program.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_pre_hook(before)
                module.register_forward_hook(after)

    after_building(_single(), plant)


@planted_when_timed("jax single deep rule several", by="further direction")
def gradients_are_mirrored_in_calls_of_several_steps():
    """Height and width are exchanged in what BatchNorm hands back, in bf16 alone."""
    import jax.numpy as jnp

    from jax_impl import batch_norm

    original = batch_norm.backward

    def backward(form, kept, given):
        gradient, *rest = original(form, kept, given)
        if gradient.dtype == jnp.bfloat16:
            fired()
            gradient = jnp.swapaxes(gradient, 1, 2)
        return gradient, *rest

    batch_norm.by_batch.defvjp(batch_norm.forward, backward)


@planted_when_timed("jax single deep rule", by="further statistics")
def statistics_are_computed_in_bfloat16():
    """Mean and variance of a batch, from sums of rounded numbers."""
    from jax_impl import batch_norm

    def narrow(x):
        if str(x.dtype) == "bfloat16":
            fired()
        return x

    batch_norm.widened = narrow
