"""Timed programs that compute, communicate or remember in another number format than they say.

Most of them train so nearly alike that their curves do not show it. Functions import the framework themselves: the
tests read this file without one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planted import Cell, fired, firing, planted_when_timed, replaced
from timed_faults import after_building

BF16, FP64 = {"precision": "bf16"}, {"precision": "fp64"}
TIMED_CELLS = {
    "torch single bf16": Cell("single", known=BF16),
    "torch single bf16 accumulating": Cell("single", known=BF16 | {"accumulation_steps": 4}),
    "torch ddp bf16": Cell("ddp", known=BF16),
    "torch fsdp bf16": Cell("fsdp", known=BF16),
    "torch pipeline_schedules bf16": Cell("pipeline_schedules", known=BF16),
    "torch local_sgd": Cell("local_sgd"),
    "torch async_sgd bf16": Cell("async_sgd", known=BF16),
    "jax single adam": Cell("single", workload="classifier", size="base", known={"optimizer": "adam"}),
    "jax single bf16": Cell("single", known=BF16),
    "jax single bf16 several": Cell("single", known=BF16 | {"steps_per_call": 2}),
    "jax pmap accumulating": Cell("pmap", known={"accumulation_steps": 2}),
    "jax pmap bf16 accumulating": Cell("pmap", known=BF16 | {"accumulation_steps": 2}),
    "jax jit_sharding bf16": Cell("jit_sharding", known=BF16),
    "jax fsdp bf16": Cell("fsdp", known=BF16),
    "jax model_parallel bf16": Cell("model_parallel", known=BF16),
    "jax pipeline bf16": Cell("pipeline", known=BF16),
    "tf single bf16": Cell("single", known=BF16),
    "tf single bf16 accumulating": Cell("single", known=BF16 | {"accumulation_steps": 2}),
    "tf single several": Cell("single", known={"steps_per_call": 2}),
    "tf mirrored bf16": Cell("mirrored", known=BF16),
    "tf mirrored one_device": Cell("mirrored", options={"cross_device": "one_device"}),
    "tf model_parallel": Cell("model_parallel"),
    "tf mirrored bf16 in two programs": Cell(
        "mirrored", known=BF16 | {"tracks": ("tuned",), "settings": {"xla_step": "false"}}
    ),
    "tf parameter_server": Cell("parameter_server"),
    "tf parameter_server bf16 by XLA": Cell("parameter_server", known=BF16 | {"tracks": ("tuned",)}),
    # In these no fault is planted: they were refused, and are right.
    "torch single adam fp64": Cell("single", workload="classifier", size="base", known=FP64 | {"optimizer": "adam"}),
    "tf single adam fp64": Cell("single", workload="classifier", size="base", known=FP64 | {"optimizer": "adam"}),
    "jax pipeline_spmd fp64": Cell("pipeline_spmd", known=FP64),
    "jax pmap with a schedule": Cell("pmap", known={"optimizer": "sgd:schedule=cosine,total_steps=1000"}),
    "torch single after its schedule": Cell(
        "single", workload="classifier", size="base", known={"optimizer": "adam:schedule=cosine,total_steps=8"}
    ),
}
wrong_format = partial(planted_when_timed, by="number formats")


def _torch_single():
    from torch_impl.strategies.single import SingleDevice

    return SingleDevice


def _rounded_when_accumulated(program):
    """Each backward leaves a gradient that is rounded to bfloat16."""

    def hook(parameter):
        fired()
        parameter.grad = parameter.grad.bfloat16().float()

    for parameter in program.model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def _after_updates(change):
    """Make a program call `change(a parameter's optimizer state)` after each update."""

    def build(program):
        def step():
            original()
            fired()
            for state in program.optimizer.state.values():
                change(state)

        original = program.optimizer.step
        program.optimizer.step = step

    return build


@wrong_format("torch ddp")
def buckets_compressed_unasked():
    """DDP's bf16 hook, although no option asks for it."""
    _compressed()


@wrong_format("torch ddp bf16")
def buckets_compressed_unasked_in_bf16():
    """The same in bf16, where layers compute in bfloat16, and gradients cross in float32."""
    _compressed()


def _compressed():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from torch_impl.strategies.ddp import DDP

    after_building(
        DDP, lambda program: program.network.register_comm_hook(None, firing(default_hooks.bf16_compress_hook))
    )


@wrong_format("torch average_gradients")
def buckets_in_float16():
    """Buckets are summed in float16, and widened again."""
    import torch
    import torch.distributed as dist

    def change(original):
        def all_reduce(tensor, *arguments, **known):
            if tensor.dtype != torch.float32:
                return original(tensor, *arguments, **known)
            fired()
            half = tensor.half()
            original(half, *arguments, **known)
            tensor.copy_(half)

        return all_reduce

    replaced(dist, "all_reduce", change)


@wrong_format("torch fsdp")
def shards_reduced_in_bf16():
    """FSDP's own reduce_dtype."""
    _reduced_in_bf16()


@wrong_format("torch fsdp bf16")
def shards_reduced_in_bf16_in_bf16():
    """The same in bf16."""
    _reduced_in_bf16()


def _reduced_in_bf16():
    import torch

    from torch_impl.strategies import fsdp

    def change(original):
        def fully_shard(modules, *, mp_policy, **known):
            return original(modules, mp_policy=replace(mp_policy, reduce_dtype=torch.bfloat16), **known)

        return firing(fully_shard)

    replaced(fsdp, "fully_shard", change)


@wrong_format("torch single accumulating")
def accumulated_in_bf16():
    """Gradients of accumulation steps are added up in bfloat16."""
    after_building(_torch_single(), _rounded_when_accumulated)


@wrong_format("torch single bf16 accumulating")
def accumulated_in_bf16_in_bf16():
    """The same in bf16, where every layer's gradient has been in bfloat16 once anyway."""
    after_building(_torch_single(), _rounded_when_accumulated)


@wrong_format("torch single")
def one_layer_in_bf16():
    """fc1 computes in bfloat16."""
    import torch

    def change(program):
        def forward(x):
            fired()
            with torch.autocast("cpu", torch.bfloat16):
                return original(x).float()

        original = program.model.fc1.forward
        program.model.fc1.forward = forward

    after_building(_torch_single(), change)


@wrong_format("torch single")
def momentum_kept_in_bf16():
    """The momentum is a bfloat16 tensor."""

    def change(state):
        state["momentum_buffer"] = state["momentum_buffer"].bfloat16()

    after_building(_torch_single(), _after_updates(change))


@wrong_format("torch single bf16")
def momentum_rounded_in_bf16():
    """The momentum is a float32 tensor of values that were rounded by their bits, with no cast."""
    import torch

    def change(state):
        state["momentum_buffer"].view(torch.int32).bitwise_and_(-65536)

    after_building(_torch_single(), _after_updates(change))


@wrong_format("torch single adam")
def squares_rounded_to_bf16():
    """Adam's second moment is rounded after each update, and kept in float32."""

    def change(state):
        state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())

    after_building(_torch_single(), _after_updates(change))


@wrong_format("torch single bf16")
def only_the_input_rounded():
    """Images are rounded to bfloat16, and everything is computed in float32."""
    import contextlib

    def change(program):
        def train_step(placed):
            fired()
            return original([(x.bfloat16().float(), y) for x, y in placed])

        original = program.train_step
        program.train_step, program.autocast = train_step, contextlib.nullcontext

    after_building(_torch_single(), change)


@wrong_format("torch single bf16")
def convolutions_left_in_float32():
    """Only the linear layers compute in bfloat16."""
    import torch

    def change(program):
        def outside_of_autocast(forward):
            def called(x):
                fired()
                with torch.autocast("cpu", enabled=False):
                    return forward(x.float())

            return called

        for layer in (program.model.conv1, program.model.conv2):
            layer.forward = outside_of_autocast(layer.forward)

    after_building(_torch_single(), change)


@wrong_format("torch model_parallel")
def activations_sent_in_bf16():
    """What goes from stage to stage is rounded to bfloat16."""
    from torch_impl.stages import StagedProgram

    def change(original):
        def run_stage(self, index, x, micro_batch=0):
            fired()
            return original(self, index, x.bfloat16().float(), micro_batch)

        return run_stage

    replaced(StagedProgram, "run_stage", change)


@wrong_format("torch local_sgd")
def parameters_averaged_in_bf16():
    """At every meeting, parameters are averaged in bfloat16."""
    import torch.distributed as dist

    def change(original):
        def all_reduce(tensor, *arguments, **known):
            if tensor.numel() < 100:
                return original(tensor, *arguments, **known)
            fired()
            rounded = tensor.bfloat16()
            original(rounded, *arguments, **known)
            tensor.copy_(rounded)

        return all_reduce

    replaced(dist, "all_reduce", change)


def _in_bf16(tree):
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)


def _in_float32(tree):
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


@wrong_format("jax pmap")
def averaged_in_bf16():
    """pmean gets gradients in bfloat16."""
    _pmean_in_bf16()


@wrong_format("jax pmap bf16 accumulating")
def averaged_in_bf16_in_bf16():
    """The same in bf16."""
    _pmean_in_bf16()


def _pmean_in_bf16():
    import jax

    def change(original):
        def pmean(tree, axis):
            fired()
            return _in_float32(original(_in_bf16(tree), axis))

        return pmean

    replaced(jax.lax, "pmean", change)


@wrong_format("jax pmap accumulating")
def jax_accumulated_in_bf16():
    """The sums over accumulation steps are bfloat16 numbers."""
    _scan_in_bf16()


@wrong_format("jax pmap bf16 accumulating")
def jax_accumulated_in_bf16_in_bf16():
    """The same in bf16."""
    _scan_in_bf16()


def _scan_in_bf16():
    import jax

    def change(original):
        def scan(body, init, xs, **known):
            if not isinstance(init, tuple) or len(init) != 2:
                return original(body, init, xs, **known)
            fired()

            def rounded(sums, part):
                (statistics, totals), made = body((sums[0], _in_float32(sums[1])), part)
                return (statistics, _in_bf16(totals)), made

            (statistics, totals), made = original(rounded, (init[0], _in_bf16(init[1])), xs, **known)
            return (statistics, _in_float32(totals)), made

        return scan

    replaced(jax.lax, "scan", change)


@wrong_format("jax single bf16")
def gradients_rounded_again():
    """Gradients are rounded to bfloat16 before the update, and so is what the layers computed in float32."""
    import jax

    def change(original):
        def value_and_grad(function, **known):
            def rounded(*arguments):
                fired()
                found, gradients = computed(*arguments)
                return found, _in_float32(_in_bf16(gradients))

            computed = original(function, **known)
            return rounded

        return value_and_grad

    replaced(jax, "value_and_grad", change)


@wrong_format("jax single adam")
def moments_in_bf16():
    """Both of Adam's moments are kept in bfloat16."""
    import jax
    import jax.numpy as jnp
    import optax

    from jax_impl import optim

    def change(original):
        def build(spec):
            fired()
            rule = original(spec)

            def narrow(state):
                return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim else leaf, state)

            def update(updates, state, params=None):
                wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.ndim else leaf, state)
                updates, wide = rule.update(updates, wide, params)
                return updates, narrow(wide)

            return optax.GradientTransformation(lambda params: narrow(rule.init(params)), update)

        return build

    replaced(optim, "build", change)


@wrong_format("jax single bf16")
def jax_bf16_in_name():
    """The layers compute in float32."""
    import jax.numpy as jnp

    from jax_impl import models

    class Formats(dict):
        def __getitem__(self, key):
            fired()
            return jnp.float32

    replaced(models.runtime, "COMPUTE_DTYPES", Formats)


@wrong_format("jax single bf16")
def jax_convolutions_in_float32():
    """Only the dense layers compute in bfloat16."""
    import jax.numpy as jnp
    from flax import linen as nn

    replaced(
        nn, "Conv", lambda original: firing(lambda *given, **known: original(*given, **known | {"dtype": jnp.float32}))
    )


@wrong_format("jax single")
def jax_default_precision_in_a_layer():
    """One kind of layer asks for the default precision of products, which is TF32 on GPUs."""
    import jax
    from flax import linen as nn

    default = {"precision": jax.lax.Precision.DEFAULT}
    replaced(nn, "Dense", lambda original: firing(lambda *given, **known: original(*given, **known | default)))


@wrong_format("tf mirrored")
def tf_all_reduced_in_float16():
    """The all-reduce gets gradients in float16."""
    _all_reduced_in("float16")


@wrong_format("tf mirrored bf16")
def tf_all_reduced_in_bf16():
    """In bf16, the all-reduce gets gradients in bfloat16."""
    _all_reduced_in("bfloat16")


def _all_reduced_in(name):
    import tensorflow as tf

    def change(original):
        def all_reduce(self, operation, value, *arguments, **known):
            fired()
            return tf.cast(original(self, operation, tf.cast(value, name), *arguments, **known), tf.float32)

        return all_reduce

    replaced(tf.distribute.ReplicaContext, "all_reduce", change)


@wrong_format("tf parameter_server bf16 by XLA")
def tf_gradients_rounded_in_a_program_of_xla():
    """The function that XLA compiles returns gradients that were bfloat16 for a moment. The update is outside of it."""
    import tensorflow as tf

    def change(original):
        def gradient(self, *given, **known):
            fired()
            return [tf.cast(tf.cast(each, tf.bfloat16), tf.float32) for each in original(self, *given, **known)]

        return gradient

    replaced(tf.GradientTape, "gradient", change)


@wrong_format("tf mirrored bf16 in two programs")
def tf_gradients_returned_in_bf16():
    """The function that XLA compiles returns its gradients in bfloat16, and they become float32 outside of it."""
    import tensorflow as tf

    from tf_impl.strategies.mirrored import Mirrored

    def change(original):
        def narrow(self, x, y):
            fired()
            loss, gradients = original.__wrapped__(self, x, y)
            return loss, [tf.cast(each, tf.bfloat16) for each in gradients]

        compiled = tf.function(narrow, jit_compile=True)

        def loss_and_gradients(self, x, y):
            loss, gradients = compiled(self, x, y)
            return loss, [tf.cast(each, tf.float32) for each in gradients]

        return loss_and_gradients

    replaced(Mirrored, "loss_and_gradients", change)


@wrong_format("tf single")
def tf_loss_in_bf16():
    """The loss is computed in bfloat16."""
    import tensorflow as tf

    from tf_impl import losses

    def change(original):
        def get(name):
            loss = original(name)

            def rounded(outputs, targets):
                fired()
                return tf.cast(loss(tf.cast(outputs, tf.bfloat16), targets), tf.float32)

            return rounded

        return get

    replaced(losses, "get", change)


@wrong_format("tf single bf16")
def tf_convolutions_in_float32():
    """Only the dense layers compute in bfloat16."""
    from keras import layers

    replaced(
        layers, "Conv2D", lambda original: firing(lambda *given, **known: original(*given, dtype="float32", **known))
    )


@wrong_format("tf single bf16 accumulating")
def tf_accumulated_in_bf16():
    """Sums over the parts of a batch are made in bfloat16."""
    import tensorflow as tf

    def change(original):
        def add(one, other):
            fired()
            return tf.cast(original(tf.cast(one, tf.bfloat16), tf.cast(other, tf.bfloat16)), tf.float32)

        return add

    replaced(tf, "add", change)


@wrong_format("tf single several")
def tf_velocity_in_bf16():
    """The momentum is rounded to bfloat16 wherever it is assigned."""
    import tensorflow as tf

    from tf_impl import optim

    def sgd(spec, g, slots, t):
        fired()
        v = tf.cast(tf.cast(spec.momentum * slots[0] + g, tf.bfloat16), g.dtype)
        slots[0].assign(v)
        return v

    optim.RULES["sgd"] = sgd
