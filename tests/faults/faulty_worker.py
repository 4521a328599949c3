"""A worker with one planted fault: the fault's name is the trial's option "fault". "none" is the control.

Each fault is a mistake that people make, put into the real implementation in the smallest way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def replaced(owner, name, change):
    """Replace owner.name by change(original)."""
    setattr(owner, name, change(getattr(owner, name)))


# ------------------------------------------------------------------------------------------------ PyTorch


def gradients_summed_over_ranks():
    """All-reduce sums, nobody divides."""
    import torch.distributed as dist

    from torch_impl.strategies.ddp import DDP

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # pyright: ignore

    def change(original):
        def parallelize(self, model):
            wrapped = original(self, model)
            wrapped.register_comm_hook(None, hook)
            return wrapped

        return parallelize

    replaced(DDP, "parallelize", change)


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
                    return None if len(calls) == 2 else update()

                self.optimizer.step = skip_the_second

        return build

    replaced(DDP, "__init__", change)


def different_shuffle_on_rank_1():
    """Rank 1 draws its part from another order of the samples, as with a sampler of its own seed."""
    from torch_impl import placement

    def change(original):
        def share(batch, rank, ranks):
            if rank == 1:
                order = np.random.default_rng(1).permutation(len(batch["x"]))
                batch = {name: array[order] for name, array in batch.items()}
            return original(batch, rank, ranks)

        return share

    replaced(placement, "share", change)


def half_of_the_batch_dropped():
    """Only the first half of the samples is trained on."""
    from torch_impl import placement

    def change(original):
        def to_device(batch, device, dtype):
            return original({name: a[: len(a) // 2] for name, a in batch.items()}, device, dtype)

        return to_device

    replaced(placement, "to_device", change)


def last_sample_dropped():
    """An off-by-one in slicing: one sample of sixteen is missing."""
    from torch_impl import placement

    def change(original):
        def to_device(batch, device, dtype):
            return original({name: a[:-1] for name, a in batch.items()}, device, dtype)

        return to_device

    replaced(placement, "to_device", change)


def loss_divided_twice():
    """The mean is divided by the number of samples once more."""
    from torch_impl import losses

    replaced(losses, "get", lambda original: lambda name: lambda out, y: original(name)(out, y) / len(y))


def square_kernel_transposed():
    """Kernels loaded as (out, in, width, height): the shape does not tell."""
    from torch_impl import weights

    def change(original):
        def to_torch(spec, array):
            array = original(spec, array)
            return np.ascontiguousarray(array.swapaxes(2, 3)) if array.ndim == 4 else array

        return to_torch

    replaced(weights, "_to_torch", change)


def rows_behind_flatten_not_permuted():
    """The linear layer behind the flatten keeps (height, width, channel) rows, torch's order is another."""
    from torch_impl import weights

    def change(original):
        def to_torch(spec, array):
            return np.ascontiguousarray(array.T) if spec.flattened else original(spec, array)

        return to_torch

    replaced(weights, "_to_torch", change)


def bias_not_updated():
    """Biases are left out of the optimizer's parameters."""
    from torch_impl import optim

    replaced(optim, "build", lambda original: lambda spec, ps: original(spec, [p for p in ps if p.ndim > 1]))


def momentum_with_the_rate_inside():
    """v = mu v + lr g and then w -= lr v: the rate is applied inside the velocity and outside."""
    import torch

    from torch_impl import optim

    class Inside(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.mul_(group["lr"])
            return super().step(closure)

    replaced(optim, "build", lambda _: lambda spec, ps: Inside(ps, lr=spec.learning_rate, momentum=spec.momentum))


def momentum_damped():
    """v = mu v + (1 - mu) g: an average of gradients, where torch's default is a sum."""
    import torch

    from torch_impl import optim

    def build(spec, ps):
        return torch.optim.SGD(ps, lr=spec.learning_rate, momentum=spec.momentum, dampening=spec.momentum)

    replaced(optim, "build", lambda _: build)


def gradients_accumulated():
    """zero_grad is forgotten."""
    import torch

    replaced(torch.optim.SGD, "zero_grad", lambda _: lambda self, set_to_none=True: None)


def wrong_padding():
    """The second convolution sees its input shifted by one pixel, as SAME instead of symmetric padding does."""
    import torch

    from torch_impl import models

    def change(original):
        def build(workload):
            model = original(workload)
            model.conv2.register_forward_pre_hook(lambda m, args: torch.nn.functional.pad(args[0], (1, -1, 1, -1)))
            return model

        return build

    replaced(models, "build", change)


def average_pool_for_max_pool():
    """The first pool averages."""
    import torch

    from torch_impl import models

    def change(original):
        def build(workload):
            model = original(workload)
            model.pool1 = torch.nn.AvgPool2d(2)
            return model

        return build

    replaced(models, "build", change)


def softmax_applied_twice():
    """The model ends in a softmax, and cross-entropy applies its own."""
    import torch

    from torch_impl import models

    def change(original):
        def build(workload):
            model = original(workload)
            model.append(torch.nn.Softmax(dim=1))
            return model

        return build

    replaced(models, "build", change)


def bias_added_in_float32():
    """The output layer's bias goes through float32 in the float64 phase, nothing else does."""
    import torch

    from torch_impl import models

    class Through32(torch.nn.Linear):
        def forward(self, input):
            assert self.bias is not None
            return input @ self.weight.T + self.bias.float().double()

    def change(original):
        def build(workload):
            model = original(workload)
            model.fc2.__class__ = Through32
            return model

        return build

    replaced(models, "build", change)


def layer_left_in_float32():
    """One layer computes in float32 in the float64 phase."""
    import torch

    from torch_impl import models

    class In32(torch.nn.Linear):
        def forward(self, input):
            assert self.bias is not None
            return (input.float() @ self.weight.float().T + self.bias.float()).double()

    def change(original):
        def build(workload):
            model = original(workload)
            model.fc2.__class__ = In32
            return model

        return build

    replaced(models, "build", change)


def last_micro_batch_dropped():
    """The loop over ticks ends one too early: the last micro-batch never leaves the first stage."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def step(self, placed):
            x, y = placed
            kept = len(x) - len(x.split(self.job.options["split_size"])[-1])
            original(self, (x[:kept], y[:kept]))

        return step

    replaced(Pipeline, "step", change)


def micro_batches_weighted_alike():
    """The mean of the micro-batches' means, though the last one is smaller."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def build(self, job):
            original(self, job)
            whole = self.loss_fn

            def mean_of_means(outputs, targets):
                size = job.options["split_size"]
                parts = [whole(a, b) for a, b in zip(outputs.split(size), targets.split(size), strict=True)]
                return sum(parts) / len(parts)

            self.loss_fn = mean_of_means

        return build

    replaced(Pipeline, "__init__", change)


def only_the_first_stage_updated():
    """The optimizer was made from the first stage's parameters."""
    from torch_impl import optim
    from torch_impl.strategies.model_parallel import ModelParallel

    def change(original):
        def build(self, job):
            original(self, job)
            self.optimizer = optim.build(job.optimizer, self.stages[0].parameters())

        return build

    replaced(ModelParallel, "__init__", change)


def batch_norm_over_micro_batches():
    """Model parallelism that cuts the batch: BatchNorm then sees its parts."""
    import torch

    from torch_impl.strategies.model_parallel import ModelParallel

    replaced(
        ModelParallel,
        "forward",
        lambda original: lambda self, x: torch.cat([original(self, part) for part in x.split(len(x) // 2)]),
    )


# ------------------------------------------------------------------------------------------------ JAX


def psum_for_pmean():
    """Gradients and loss are summed over the devices."""
    import jax

    replaced(jax.lax, "pmean", lambda _: jax.lax.psum)


def no_pmean():
    """Every device follows its own gradient; the loss that is shown is still averaged."""
    import jax

    replaced(jax.lax, "pmean", lambda original: lambda tree, axis: (original(tree[0], axis), tree[1]))


def adam_without_bias_correction():
    """The moments are used as they are."""
    import optax

    from jax_impl import optim

    def build(spec):
        def update(g, s, p=None):
            import jax

            m = jax.tree.map(lambda a, b: spec.beta1 * a + (1 - spec.beta1) * b, s[0], g)
            v = jax.tree.map(lambda a, b: spec.beta2 * a + (1 - spec.beta2) * b * b, s[1], g)
            rate, eps = spec.learning_rate, spec.epsilon
            return jax.tree.map(lambda a, b: -rate * a / (b**0.5 + eps), m, v), (m, v)

        def init(p):
            import jax
            import jax.numpy as jnp

            return jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)

        return optax.GradientTransformation(init, update)  # pyright: ignore

    replaced(optim, "build", lambda _: build)


def labels_shifted():
    """A label file read with its header: every label belongs to the sample before."""
    from jax_impl import training

    replaced(training, "cast", lambda original: lambda batch, job: original(batch | {"y": np.roll(batch["y"], 1)}, job))


# ------------------------------------------------------------------------------------------------ TensorFlow


def adam_epsilon_misplaced():
    """Epsilon is added before the bias correction, as Keras does ("epsilon hat")."""
    import tensorflow as tf

    from tf_impl import optim

    def apply(self, gradients):
        t = self.steps + tf.constant(1.0, tf.float64)
        self.steps.assign(t)
        b1, b2 = (tf.constant(b, tf.float64) for b in (self.spec.beta1, self.spec.beta2))
        rate = tf.constant(self.spec.learning_rate, tf.float64) * tf.sqrt(1 - b2**t) / (1 - b1**t)
        for w, g, m_slot, s_slot in zip(self.variables, gradients, self.m, self.s, strict=True):
            m_slot.assign(b1 * m_slot + (1 - b1) * g)
            s_slot.assign(b2 * s_slot + (1 - b2) * g * g)
            w.assign_sub(rate * m_slot / (tf.sqrt(s_slot) + tf.constant(self.spec.epsilon, tf.float64)))

    replaced(optim.Adam, "apply", lambda _: apply)


def rate_through_float32():
    """The learning rate passes through float32, as every hyperparameter of a Keras optimizer does."""
    import tensorflow as tf

    from tf_impl import optim

    class Cast32:
        def constant(self, value, dtype):
            return tf.cast(tf.constant(value, tf.float32), dtype)

        def __getattr__(self, name):
            return getattr(tf, name)

    replaced(optim, "tf", lambda _: Cast32())


def replicas_summed():
    """MirroredStrategy with SUM where the loss is already a mean over each replica's part."""
    import tensorflow as tf

    class Reduce:
        MEAN = tf.distribute.ReduceOp.SUM

    replaced(tf.distribute, "ReduceOp", lambda _: Reduce)


def keras_optimizer():
    """Updates by Keras' SGD, which sums over replicas."""
    import keras

    from tf_impl import optim

    class Keras:
        def __init__(self, spec, variables):
            self.variables = variables
            self.optimizer = keras.optimizers.SGD(spec.learning_rate, momentum=spec.momentum)
            self.optimizer.build(variables)

        def apply(self, gradients):
            self.optimizer.apply(gradients, self.variables)

    replaced(optim, "build", lambda _: Keras)


def none():
    """Nothing is wrong."""


if __name__ == "__main__":
    orders = json.loads((Path(sys.argv[1]) / "job.json").read_text())
    globals()[orders["spec"]["options"]["fault"]]()
    from harness.worker import main

    main()
