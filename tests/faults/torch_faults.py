"""Mistakes that people make, each planted into PyTorch's implementation by the smallest possible change.

Functions import the framework themselves: the tests read this file without one.
"""

from __future__ import annotations

import numpy as np
from planted import TRAINING, Cell, fired, firing, planted, replaced

CELLS = {
    "torch single": Cell("single"),
    "torch single classifier": Cell("single", workload="classifier", size="base"),
    "torch ddp": Cell("ddp"),
    "torch ddp compressed": Cell("ddp", options={"compression": "bf16"}),
    "torch ddp uneven": Cell("ddp", known=TRAINING),
    "torch ddp unused": Cell("ddp", "toy", "unused", options={"find_unused_parameters": "true"}),
    "torch ddp accumulating": Cell("ddp", known={"accumulation_steps": 2}),
    "torch average_gradients": Cell("average_gradients", options={"bucket_cap_mb": "0.001"}),
    "torch average_gradients tuned": Cell(
        "average_gradients", known={"tracks": ("tuned",), "settings": {"compile": "false"}}
    ),
    "torch local_sgd": Cell("local_sgd"),
    "torch async_sgd": Cell("async_sgd"),
    "torch async_sgd deep": Cell("async_sgd", workload="resnet50"),
    "torch async_sgd with a buffer": Cell("async_sgd", options={"push_every": "2"}),
    "torch async_sgd with a larger buffer": Cell("async_sgd", options={"push_every": "3"}, known=TRAINING),
    "torch single scheduled": Cell(
        "single", known={"optimizer": "sgd:momentum=0.9,schedule=step,step_size=1,gamma=0.5,warmup_steps=1"}
    ),
    "torch single deep": Cell("single", workload="resnet50"),
    "torch single adamw": Cell("single", known={"optimizer": "adamw:learning_rate=0.01,weight_decay=0.1"}),
    "torch single nesterov": Cell("single", known={"optimizer": "sgd:momentum=0.9,nesterov=true"}),
    "torch single accumulating": Cell("single", known={"accumulation_steps": 2}),
    "torch model_parallel": Cell("model_parallel", workload="resnet50", options={"cut": "layer2"}),
    "torch pipeline": Cell("pipeline", workload="resnet50", options={"cut": "layer2", "split_size": "5"}),
    "torch pipeline_schedules": Cell("pipeline_schedules", workload="resnet50"),
    "torch pipeline_schedules in a V": Cell(
        "pipeline_schedules", workload="resnet50", options={"schedule": "zero_bubble"}
    ),
    "torch fsdp": Cell("fsdp"),
    "torch fsdp accumulating": Cell("fsdp", known={"accumulation_steps": 3}),
}


def _change_model(change):
    """Apply `change`, in place, to each network that PyTorch's strategies build."""
    from torch_impl import models

    def wrap(original):
        def build(*args, **kwargs):
            model = original(*args, **kwargs)
            change(model)
            return model

        return build

    replaced(models, "build", wrap)


@planted("torch ddp")
def gradients_summed_over_ranks():
    """All-reduce sums, and nothing divides."""
    import torch.distributed as dist

    from torch_impl.strategies.ddp import DDP

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # pyright: ignore

    def change(original):
        def build(self, job):
            original(self, job)
            self.network.register_comm_hook(None, firing(hook))

        return build

    replaced(DDP, "__init__", change)


@planted("torch ddp")
def stale_weights_on_rank_1():
    """Rank 1 misses the second update."""
    from torch_impl.strategies.ddp import DDP

    def change(original):
        def build(self, job):
            original(self, job)
            if job.world.rank == 1:
                update, calls = self.optimizer.step, []

                def skip_the_second():
                    calls.append(1)
                    if len(calls) != 2:
                        return update()
                    return fired()

                self.optimizer.step = skip_the_second

        return build

    replaced(DDP, "__init__", change)


@planted("torch ddp")
def different_shuffle_on_rank_1():
    """Rank 1 draws its share from another order of the samples, as if its sampler had its own seed."""
    from torch_impl import program

    def change(original):
        def shares(batch, *, steps, rank, ranks):
            if rank == 1:
                fired()
                order = np.random.default_rng(1).permutation(len(batch["x"]))
                batch = {name: array[order] for name, array in batch.items()}
            return original(batch, steps=steps, rank=rank, ranks=ranks)

        return shares

    replaced(program, "shares", change)


@planted("torch ddp unused")
def old_gradient_for_a_missing_one():
    """A parameter without a gradient gets what lies in the memory of another one in its place."""
    import torch

    from torch_impl.strategies.ddp import DDP

    def change(original):
        def build_optimizer(self, parameters):
            held = list(parameters)
            optimizer = original(self, held)
            update = optimizer.step

            def step():
                for parameter in held:
                    if parameter.grad is None:
                        fired()
                        parameter.grad = torch.full_like(parameter, 1e-3)
                update()

            optimizer.step = step
            return optimizer

        return build_optimizer

    replaced(DDP, "build_optimizer", change)


@planted("torch single")
def half_of_the_batch_dropped():
    """Only the first half of the samples is trained on."""
    from torch_impl import placement

    def change(original):
        def on_host(batch, *formats):
            fired()
            return original({name: a[: len(a) // 2] for name, a in batch.items()}, *formats)

        return on_host

    replaced(placement, "on_host", change)


@planted("torch single")
def last_sample_dropped():
    """An off-by-one in slicing: one sample of sixteen is missing."""
    from torch_impl import placement

    def change(original):
        def on_host(batch, *formats):
            fired()
            return original({name: a[:-1] for name, a in batch.items()}, *formats)

        return on_host

    replaced(placement, "on_host", change)


@planted("torch single")
def loss_divided_twice():
    """The mean is divided by the number of samples again."""
    from torch_impl import losses

    replaced(losses, "get", lambda original: lambda name: firing(lambda out, y: original(name)(out, y) / len(y)))


@planted("torch single")
def square_kernel_transposed():
    """Kernels are loaded as (out, in, width, height), which their shape does not show."""
    from torch_impl import weights

    def change(original):
        def to_torch(spec, array):
            array = original(spec, array)
            if array.ndim != 4:
                return array
            fired()
            return np.ascontiguousarray(array.swapaxes(2, 3))

        return to_torch

    replaced(weights, "_to_torch", change)


@planted("torch single")
def rows_behind_flatten_not_permuted():
    """The linear layer after the flatten keeps (height, width, channel) rows, which is not torch's order."""
    from torch_impl import weights

    def change(original):
        def to_torch(spec, array):
            if not spec.flattened:
                return original(spec, array)
            fired()
            return np.ascontiguousarray(array.T)

        return to_torch

    replaced(weights, "_to_torch", change)


@planted("torch single")
def bias_not_updated():
    """Biases are left out of the optimizer's parameters."""
    from torch_impl import optim

    def change(original):
        def build(spec, ps, **_):
            every = list(ps)
            kept = [p for p in every if p.ndim > 1]
            if len(kept) < len(every):
                fired()
            return original(spec, kept)

        return build

    replaced(optim, "build", change)


@planted("torch single scheduled")
def momentum_with_the_rate_inside():
    """v = mu v + lr g; w -= v, as Keras does: the same training until the rate changes."""
    import torch

    from torch_impl import optim

    class Inside(torch.optim.Optimizer):
        def __init__(self, parameters, spec):
            super().__init__(parameters, {"lr": spec.learning_rate, "momentum": spec.momentum})

        @torch.no_grad()
        def step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            fired()
            for group in self.param_groups:
                for p in group["params"]:
                    v = self.state[p].setdefault("v", torch.zeros_like(p))
                    v.mul_(group["momentum"]).add_(p.grad, alpha=group["lr"])
                    p -= v

    replaced(optim, "build", lambda _: lambda spec, ps, **_known: Inside(ps, spec))


@planted("torch single scheduled")
def schedule_a_step_late():
    """The schedule is stepped before the update."""
    from torch_impl.strategies.single import SingleDevice

    def change(original):
        def build(self, job):
            original(self, job)
            fired()
            self.lr_schedule.step()

        return build

    replaced(SingleDevice, "__init__", change)


@planted("torch single adamw")
def weight_decay_coupled():
    """Adam with its weight decay in the gradient, where AdamW decays the weights themselves."""
    import torch

    class Coupled(torch.optim.Adam):
        def step(self, closure=None):
            fired()
            return super().step(closure)

    replaced(torch.optim, "AdamW", lambda _: Coupled)


@planted("torch single nesterov")
def nesterov_forgotten():
    """Momentum without the look ahead."""
    from dataclasses import replace

    from torch_impl import optim

    def change(original):
        def build(spec, ps, **_):
            if spec.nesterov:
                fired()
            return original(replace(spec, nesterov=False), ps)

        return build

    replaced(optim, "build", change)


@planted("torch single accumulating")
def accumulated_gradients_summed():
    """The loss of each accumulation step is not divided by their number."""
    from torch_impl import losses

    replaced(losses, "get", lambda original: lambda name: firing(lambda out, y: original(name)(out, y) * 2))


@planted("torch ddp accumulating")
def only_the_last_accumulation_step_synchronized():
    """Ranks exchange only the last step's gradient; what no_sync has accumulated stays each rank's own."""
    import torch.distributed as dist

    from torch_impl.strategies.ddp import DDP

    def exchange(model):
        for p in model.parameters():
            mean = p.grad / 2
            dist.all_reduce(mean)
            p.grad = 0.5 * p.grad + 0.5 * mean

    def change(original):
        def build(self, job):
            original(self, job)
            self.network.require_backward_grad_sync = False  # DDP never exchanges: every step is as under no_sync
            update = self.optimizer.step

            def exchange_and_update():
                firing(exchange)(self.model)
                update()

            self.optimizer.step = exchange_and_update

        return build

    replaced(DDP, "__init__", change)


@planted("torch ddp compressed")
def compressed_gradients_summed():
    """The compression hook forgets to divide by the number of ranks."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def hook(state, bucket):
        small = bucket.buffer().to(torch.bfloat16)
        work = dist.all_reduce(small, async_op=True)
        return work.get_future().then(  # pyright: ignore
            lambda future: bucket.buffer().copy_(future.value()[0])
        )

    replaced(default_hooks, "bf16_compress_hook", lambda _: firing(hook))


@planted("torch average_gradients")
def last_bucket_not_sent():
    """The loop that fills buckets never sends the last one, which it is still filling when it ends."""
    from torch_impl.strategies import average_gradients

    replaced(average_gradients, "buckets", lambda original: firing(lambda *a, **k: list(original(*a, **k))[:-1]))


@planted("torch local_sgd")
def parameters_never_averaged():
    """Off by one: the step counter never reaches the step that averages."""
    from torch_impl.strategies.local_sgd import LocalSGD

    replaced(LocalSGD, "average_parameters", lambda _: firing(lambda self: None))


@planted("torch local_sgd")
def meeting_a_step_early():
    """The counter starts at 1."""
    from torch_impl.strategies.local_sgd import LocalSGD

    def change(original):
        def build(self, job):
            original(self, job)
            fired()
            self.steps_made = 1

        return build

    replaced(LocalSGD, "__init__", change)


@planted("torch async_sgd")
def lost_update():
    """Read, compute and write without a common lock: rank 1's third push is overwritten."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def change(original):
        def push(self, gradients):
            before = [p.detach().clone() for p in self.shared.parameters()]
            original(self, gradients)
            if self.job.world.rank == 1 and self.steps_made == 2:
                fired()
                for p, old in zip(self.shared.parameters(), before, strict=True):
                    p.data.copy_(old)

        return push

    replaced(AsyncSGD, "push", change)


@planted("torch async_sgd")
def pull_forgotten():
    """A rank computes with its old copy, though it records that it has pulled the new one."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def pull(self):
        self.seen = int(self.updates.item())

    replaced(AsyncSGD, "pull", lambda _: firing(pull))


@planted("torch async_sgd deep")
def statistics_of_rank_0_alone():
    """Each rank keeps the statistics of its own samples, and those of rank 0 are saved."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    replaced(AsyncSGD, "average_statistics", lambda _: firing(lambda self: None))


@planted("torch async_sgd with a buffer")
def buffer_not_cleared():
    """What was pushed stays in the buffer, and is pushed again with the next gradients."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def change(original):
        def exchange(self):
            original(self)
            fired()
            self.model.zero_grad = lambda **_: None

        return exchange

    replaced(AsyncSGD, "exchange", change)


@planted("torch async_sgd with a buffer")
def pushed_a_step_late():
    """The buffer is pushed when it holds more gradients than it should: off by one."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def is_full(self):
        return len(self.buffered) > self.job.options["push_every"]

    replaced(AsyncSGD, "is_full", lambda _: property(firing(is_full)))


@planted("torch async_sgd with a buffer")
def last_gradient_of_the_buffer_dropped():
    """The sum is taken before the gradient of the step that pushes, though the record has it."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def of_step(original):
        def train_step(self, placed):
            gradients = [parameter.grad for parameter in self.model.parameters()]
            self.sums = [None if each is None else each.clone() for each in gradients] if self.buffered else []
            return original(self, placed)

        return train_step

    def of_push(original):
        def push(self, gradients):
            fired()
            original(self, self.sums)

        return push

    replaced(AsyncSGD, "train_step", of_step)
    replaced(AsyncSGD, "push", of_push)


@planted("torch single")
def momentum_damped():
    """v = mu v + (1 - mu) g: an average of gradients, where torch's default is a sum."""
    import torch

    from torch_impl import optim

    def build(spec, ps, **_):
        return torch.optim.SGD(ps, lr=spec.learning_rate, momentum=spec.momentum, dampening=spec.momentum)

    replaced(optim, "build", lambda _: firing(build))


@planted("torch single")
def gradients_accumulated():
    """zero_grad is forgotten."""
    import torch

    replaced(torch.optim.SGD, "zero_grad", lambda _: firing(lambda self, set_to_none=True: None))


@planted("torch single")
def wrong_padding():
    """The second convolution sees its input shifted by one pixel, as SAME instead of symmetric padding does."""
    import torch

    def shifted(module, arguments):
        fired()
        return torch.nn.functional.pad(arguments[0], (1, -1, 1, -1))

    def change(model):
        model.conv2.register_forward_pre_hook(shifted)

    _change_model(change)


@planted("torch single")
def average_pool_for_max_pool():
    """The first pool averages."""
    import torch

    class Averaging(torch.nn.AvgPool2d):
        def forward(self, input):
            fired()
            return super().forward(input)

    def change(model):
        model.pool1 = Averaging(2)

    _change_model(change)


@planted("torch single classifier")
def softmax_applied_twice():
    """The model ends in a softmax, and cross-entropy applies its own."""
    import torch

    class Second(torch.nn.Softmax):
        def forward(self, input):
            fired()
            return super().forward(input)

    def change(model):
        model.append(Second(dim=1))

    _change_model(change)


@planted("torch single")
def bias_added_in_float32():
    """The output layer's bias goes through float32 in the float64 phase, nothing else does."""
    import torch

    class Through32(torch.nn.Linear):
        def forward(self, input):
            assert self.bias is not None
            fired()
            return input @ self.weight.T + self.bias.float().double()

    def change(model):
        model.fc2.__class__ = Through32

    _change_model(change)


@planted("torch single")
def layer_left_in_float32():
    """One layer computes in float32 in the float64 phase."""
    import torch

    class In32(torch.nn.Linear):
        def forward(self, input):
            assert self.bias is not None
            fired()
            return (input.float() @ self.weight.float().T + self.bias.float()).double()

    def change(model):
        model.fc2.__class__ = In32

    _change_model(change)


@planted("torch pipeline")
def last_micro_batch_dropped():
    """The loop over ticks ends one too early: the last micro-batch never leaves the first stage."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def train_step(self, placed):
            ((x, y),) = placed
            fired()
            kept = len(x) - len(x.split(self.job.options["split_size"])[-1])
            return original(self, [(x[:kept], y[:kept])])

        return train_step

    replaced(Pipeline, "train_step", change)


@planted("torch pipeline")
def micro_batches_weighted_alike():
    """The mean of the micro-batches' means, though the last one is smaller."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def build(self, job):
            original(self, job)
            whole = self.loss_fn

            def mean_of_means(outputs, targets):
                fired()
                size = job.options["split_size"]
                parts = [whole(a, b) for a, b in zip(outputs.split(size), targets.split(size), strict=True)]
                return sum(parts) / len(parts)

            self.loss_fn = mean_of_means

        return build

    replaced(Pipeline, "__init__", change)


@planted("torch pipeline")
def gradient_of_another_micro_batch():
    """Backward meets the micro-batches in the reverse order, but their gradients are taken in the order of forward."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def backward(self, taken, made, gradients):
            fired()
            whole = [number for number, gradient in enumerate(gradients) if len(gradient) == len(gradients[0])]
            turned = dict(zip(whole, reversed(whole), strict=True))
            original(self, taken, made, [gradients[turned.get(number, number)] for number in range(len(gradients))])

        return backward

    replaced(Pipeline, "backward", change)


@planted("torch pipeline")
def gradient_not_sent_back():
    """The first stage is not differentiated: autograd's graph ends where activations arrive."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def backward(self, taken, made, gradients):
            fired()
            last = len(self.stages) - 1
            for number, gradient in enumerate(gradients):
                made[last, number].backward(gradient)

        return backward

    replaced(Pipeline, "backward", change)


@planted("torch single deep")
def layer_of_a_deep_network_in_float32():
    """One convolution of ResNet-50 computes in float32: visible in spite of all the amplified rounding."""
    import torch

    class In32(torch.nn.Conv2d):
        def forward(self, input):
            fired()
            return self._conv_forward(input.float(), self.weight.float(), None).double()

    def change(model):
        model.conv1.__class__ = In32

    _change_model(change)


@planted("torch model_parallel")
def only_the_first_stage_updated():
    """The optimizer was made from the first stage's parameters."""
    from torch_impl import optim
    from torch_impl.strategies.model_parallel import ModelParallel

    def change(original):
        def build(self, job):
            original(self, job)
            fired()
            self.optimizer = optim.build(job.optimizer, self.stages[0].parameters())

        return build

    replaced(ModelParallel, "__init__", change)


@planted("torch model_parallel")
def batch_norm_over_micro_batches():
    """Model parallelism splits the batch, so BatchNorm sees its parts."""
    import torch

    from torch_impl.strategies.model_parallel import ModelParallel

    replaced(
        ModelParallel,
        "predict",
        lambda original: firing(
            lambda self, x: torch.cat([original(self, part) for part in x.split(len(x) // 2)]),
        ),
    )


@planted("torch fsdp")
def shards_of_summed_gradients():
    """Reduce-scatter sums over the ranks, and nothing divides."""
    from torch_impl.strategies.fsdp import FSDP

    def change(original):
        def build(self, job):
            original(self, job)
            for module in self.model.modules():
                if hasattr(module, "set_gradient_divide_factor"):
                    fired()
                    module.set_gradient_divide_factor(1.0)

        return build

    replaced(FSDP, "__init__", change)


@planted("torch fsdp accumulating")
def last_accumulation_step_not_synchronized():
    """Gradients are reduced after the first accumulation step instead of the last: the others come one step late."""
    from torch_impl.strategies.fsdp import FSDPModule

    def change(original):
        def set_requires_gradient_sync(model, last):
            begun = any(p.grad is not None for p in model.parameters())
            if last == begun:
                fired()
            original(model, not begun)

        return set_requires_gradient_sync

    replaced(FSDPModule, "set_requires_gradient_sync", change)


@planted("torch pipeline_schedules")
def micro_batch_gradients_summed():
    """Each micro-batch's loss is a mean, and the gradients are summed without dividing (scale_grads=False)."""
    from torch_impl.strategies.pipeline_schedules import PipelineSchedules

    def change(original):
        def build(self, job):
            original(self, job)
            fired()
            self.pipeline.scale_grads = False

        return build

    replaced(PipelineSchedules, "__init__", change)


@planted("torch pipeline_schedules in a V")
def second_stage_of_each_rank_not_updated():
    """The optimizer was made from the first of the two stages that a rank holds."""
    from torch_impl import optim
    from torch_impl.strategies.pipeline_schedules import PipelineSchedules

    def change(original):
        def build(self, job):
            original(self, job)
            fired()
            first, _ = self.pipeline._stages
            self.optimizer = optim.build(job.optimizer, first.submod.parameters())

        return build

    replaced(PipelineSchedules, "__init__", change)


@planted("torch ddp uneven")
def mean_of_uneven_means():
    """Each rank takes the mean over its own true samples, then all ranks average these uneven means equally."""
    from torch_impl import placement

    def change(original):
        def on_host(batch, *formats):
            y = batch["y"]
            if y.ndim == 2 and (true := y[:, -1] > 0).any():
                fired()
                batch = batch | {"y": np.column_stack([y[:, :-1], true * len(y) / true.sum()])}
            return original(batch, *formats)

        return on_host

    replaced(placement, "on_host", change)


@planted("torch average_gradients tuned")
def gradients_in_another_order_of_memory():
    """Parameters in NHWC get their averages in NCHW; the fused optimizer walks through both in the order of memory."""
    from torch_impl.strategies import average_gradients

    def change(original):
        def set_gradients(bucket, gradients):
            original(bucket, gradients)
            for parameter in bucket:
                parameter.grad = parameter.grad.contiguous()

        return firing(set_gradients)

    replaced(average_gradients, "set_gradients", change)


@planted("torch single deep")
def running_momentum_of_nine_tenths_when_proved():
    """BatchNorm's momentum is 0.9."""
    from torch import nn

    from torch_impl.strategies.single import SingleDevice

    def change(original):
        def build(self, job):
            original(self, job)
            for module in self.model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    fired()
                    module.momentum = 0.9

        return build

    replaced(SingleDevice, "__init__", change)


@planted("torch single deep")
def identity_shortcut_detached():
    """A shortcut without a convolution passes no gradient on."""
    from torchvision.models.resnet import Bottleneck

    def detached(x):
        fired()
        return x.detach()

    def change(original):
        def forward(self, x):
            if self.downsample is not None:
                return original(self, x)
            self.downsample = detached
            try:
                return original(self, x)
            finally:
                self.downsample = None

        return forward

    replaced(Bottleneck, "forward", change)
