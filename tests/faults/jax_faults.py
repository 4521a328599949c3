"""Mistakes that people make, planted into the JAX implementation with the smallest possible change.

The functions import the framework themselves, because the tests read this file without one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planted import SEVERAL, TRAINING, Cell, fired, firing, planted, replaced

CELLS = {
    "jax single": Cell("single"),
    "jax single classifier": Cell("single", workload="classifier", size="base"),
    "jax single cosine": Cell(
        "single", known={"optimizer": "sgd:momentum=0.9,schedule=cosine,warmup_steps=2,total_steps=6"}
    ),
    "jax single several": Cell("single", known=SEVERAL),
    "jax single adagrad": Cell("single", known={"optimizer": "adagrad"}),
    "jax single deep": Cell("single", workload="resnet50"),
    "jax pmap": Cell("pmap"),
    "jax pmap uneven": Cell("pmap", known=TRAINING),
    "jax pmap accumulating": Cell("pmap", known={"accumulation_steps": 3}),
    "jax jit_sharding": Cell("jit_sharding"),
    "jax jit_sharding per_device": Cell("jit_sharding", workload="resnet50", known={"batch_norm": "per_device"}),
    "jax jit_explicit": Cell("jit_explicit"),
    "jax shard_map": Cell("shard_map"),
    "jax multi_process": Cell("multi_process"),
    "jax fsdp": Cell("fsdp"),
    "jax model_parallel": Cell("model_parallel"),
    "jax pipeline": Cell("pipeline", options={"split_size": "7"}),
    "jax pipeline_spmd": Cell("pipeline_spmd"),
}


@planted("jax pmap")
def psum_for_pmean():
    """Gradients and loss are summed over the devices, not averaged."""
    import jax

    replaced(jax.lax, "pmean", lambda _: firing(jax.lax.psum))


@planted("jax pmap")
def no_pmean():
    """Every device follows its own gradient; only the reported loss is averaged."""
    import jax

    replaced(jax.lax, "pmean", lambda original: firing(lambda tree, axis: (original(tree[0], axis), tree[1])))


@planted("jax single classifier")
def adam_without_bias_correction():
    """The moments are used without correcting their bias."""
    import optax

    from jax_impl import optim

    def build(spec):
        def update(g, s, p=None):
            import jax

            fired()
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


@planted("jax single cosine")
def schedule_in_float32():
    """Optax's schedule unchanged: it counts in int32, and a quotient of int32 is float32 even in the float64 phase."""
    import jax.numpy as jnp

    from jax_impl import optim

    def change(original):
        return lambda spec: firing(lambda count: original(spec)(count).astype(jnp.float32))

    replaced(optim, "schedule", change)


@planted("jax single several")
def first_batch_twice_in_a_scan():
    """The second step of a call reuses the first batch."""
    from jax_impl.strategies import single

    def change(original):
        def scanned(step):
            steps = original(step)
            return firing(lambda state, batches: steps(state, (batches[0], batches[0], *batches[2:])))

        return scanned

    replaced(single, "scanned", change)


@planted("jax single several")
def schedule_stands_still_in_a_scan():
    """The number of updates is read once per call, so all steps of a call have the rate of the first."""
    from optax import tree_utils

    from jax_impl.strategies import single

    def change(original):
        def scanned(step):
            def steps(state, batches):
                fired()
                count = tree_utils.tree_get(state.opt_state, "count")

                def at_the_first_count(state, x, y):
                    opt_state = tree_utils.tree_set(state.opt_state, count=count)
                    return step(state._replace(opt_state=opt_state), x, y)

                state, losses = original(at_the_first_count)(state, batches)
                opt_state = tree_utils.tree_set(state.opt_state, count=count + len(batches))
                return state._replace(opt_state=opt_state), losses

            return steps

        return scanned

    replaced(single, "scanned", change)


@planted("jax single adagrad")
def optax_adagrad():
    """Optax's own adagrad with torch's epsilon: its sum starts at 0.1, and its epsilon is inside the root."""
    import optax

    from jax_impl import optim

    replaced(optim, "build", lambda _: firing(lambda spec: optax.adagrad(spec.learning_rate, eps=spec.epsilon)))


@planted("jax single")
def labels_shifted():
    """A label file read with its header: every label belongs to the previous sample."""
    from jax_impl import placement

    def change(original):
        return firing(lambda batch, job: original(batch | {"y": np.roll(batch["y"], 1)}, job))

    replaced(placement, "on_host", change)


@planted("jax pmap accumulating")
def accumulated_and_not_divided():
    """The gradients of the accumulation steps are added up, but not divided by their number."""
    from jax_impl.strategies import pmap

    def change(original):
        def make_objective(job, **known):
            of_one_step = original(job, **known)

            def objective(*given):
                loss, batch_stats = of_one_step(*given)
                fired()
                return loss * job.accumulation_steps, batch_stats

            return objective

        return make_objective

    replaced(pmap, "make_objective", change)


@planted("jax jit_sharding per_device")
def batch_norm_left_to_jit():
    """BatchNorm is expected to see a device's own samples, as under pmap; under jit it sees the whole batch."""
    import jax
    import jax.numpy as jnp

    from jax_impl import per_device

    def as_it_is(objective, devices):
        def whole(params, batch_stats, x, y):
            fired()
            loss, new = objective(params, jax.tree.map(lambda a: a[0], batch_stats), x, y)
            return loss, jax.tree.map(lambda a: jnp.stack([a] * devices), new)

        return whole

    replaced(per_device, "with_own_statistics", lambda _: as_it_is)


@planted("jax jit_sharding")
def copies_begin_apart():
    """The copies of a replicated array, one per device, start out different. JAX takes them for equal."""
    import jax

    from jax_impl.strategies.jit_sharding import JitSharding

    def apart(array):
        fired()
        first, second = (shard.data for shard in array.addressable_shards)
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [first, second * 1.001])

    def change(original):
        def build(self, job):
            original(self, job)
            self.held = self.held._replace(params=jax.tree.map(apart, self.held.params))

        return build

    replaced(JitSharding, "__init__", change)


@planted("jax shard_map")
def pcast_forgotten():
    """The step is pmap's, without pcast: gradients are sums over the devices already, updates twice too large."""
    import jax

    replaced(jax.lax, "pcast", lambda _: firing(lambda tree, *_, **__: tree))


@planted("jax shard_map")
def gradient_of_the_averaged_loss():
    """Averages the loss, not the gradients, and turns JAX's check off, which refuses that: gradients stay local."""
    import jax

    from jax_impl.placement import AXIS
    from jax_impl.strategies import shard_map

    pmean = jax.lax.pmean

    def change(original):
        def make_objective(job, **known):
            of_one_device = original(job, **known)

            def objective(params, batch_stats, x, y):
                loss, batch_stats = of_one_device(params, batch_stats, x, y)
                fired()
                return pmean(loss, AXIS), batch_stats

            return objective

        return make_objective

    replaced(shard_map, "make_objective", change)
    replaced(jax.lax, "pmean", lambda _: lambda tree, axis: tree)
    replaced(jax, "shard_map", lambda original: lambda step, **known: original(step, **known, check_vma=False))


@planted("jax jit_explicit")
def labels_shifted_within_devices():
    """Each device's labels belong to the samples before them: inputs and targets were sharded by different code."""
    import jax

    from jax_impl.strategies.jit_explicit import JitExplicit

    def change(original):
        def put(self, batch):
            fired()
            x, y = original(self, batch)
            shifted = [jax.numpy.roll(shard.data, 1, axis=0) for shard in y.addressable_shards]
            return x, jax.make_array_from_single_device_arrays(y.shape, y.sharding, shifted)

        return put

    replaced(JitExplicit, "put", change)


@planted("jax multi_process")
def every_process_takes_the_first_share():
    """Each process cuts the batch as if it were rank 0, so all train on the same samples."""
    from jax_impl import program

    replaced(program, "shares", lambda original: firing(lambda batch, **known: original(batch, **known | {"rank": 0})))


@planted("jax multi_process")
def copies_of_processes_begin_apart():
    """Each process begins with weights of its own, as if each had drawn them with a seed of its own."""
    import jax

    from jax_impl.strategies.multi_process import MultiProcess

    def change(original):
        def spread(self, whole):
            fired()
            scale = 1 + 1e-3 * self.job.world.rank
            return original(self, whole._replace(params=jax.tree.map(lambda a: a * scale, whole.params)))

        return spread

    replaced(MultiProcess, "spread", change)


@planted("jax fsdp")
def gathered_in_float32():
    """Parameters are gathered in float32 to halve the traffic, even in the float64 phase."""
    import jax.numpy as jnp

    from jax_impl.strategies import fsdp

    def change(original):
        def gather(part, whole, dtype):
            return original(part.astype(jnp.float32), whole, dtype).astype(part.dtype)

        return firing(gather)

    replaced(fsdp, "gather", change)


@planted("jax model_parallel")
def last_stage_not_updated():
    """The loop over the stages' updates ends one stage too early: the last stage's update is dropped."""
    from jax_impl.strategies.model_parallel import ModelParallel

    def change(original):
        def build(self, job):
            original(self, job)
            dropped = firing(lambda params, opt_state, gradients: (params, opt_state))
            self.stages[-1] = replace(self.stages[-1], update=dropped)

        return build

    replaced(ModelParallel, "__init__", change)


@planted("jax pipeline")
def short_micro_batch_counts_as_much():
    """All micro-batches have the same weight, also the last one, which has fewer samples."""
    from jax_impl.strategies.pipeline import Pipeline

    def change(original):
        def build(self, job):
            original(self, job)
            weighted = self.loss_and_gradient

            def equal(outputs, y, share):
                fired()
                return weighted(outputs, y, 1 / count[0])

            self.loss_and_gradient = equal

        return build

    def counting(original):
        def step(self, placed):
            count[0] = len(placed)
            return original(self, placed)

        return step

    count = [1]
    replaced(Pipeline, "__init__", change)
    replaced(Pipeline, "step", counting)


@planted("jax pipeline")
def last_gradient_replaces_the_sum():
    """The gradients of a micro-batch replace those of the ones before it."""
    from dataclasses import replace

    from jax_impl.strategies.pipeline import Pipeline

    def change(original):
        def build(self, job):
            original(self, job)
            self.stages = [
                replace(stage, backward_and_add=firing(lambda total, *given, of=stage.backward: of(*given)))
                for stage in self.stages
            ]

        return build

    replaced(Pipeline, "__init__", change)


@planted("jax pipeline_spmd")
def bubble_trains_too():
    """No check whether a stage has work: in the bubble it trains on what it has, and the last stage counts its loss."""
    import jax.numpy as jnp

    from jax_impl.strategies import pipeline_spmd

    replaced(pipeline_spmd, "busy", lambda _: firing(lambda micro_batch, count: jnp.full((), True)))


@planted("jax pipeline_spmd")
def sum_of_the_micro_batches():
    """The mean losses of the micro-batches are added up, but not divided by their number."""
    from jax_impl.strategies.pipeline_spmd import PipelineSpmd

    def change(original):
        def on_one_device(self, params, batch_stats, x, y, **known):
            loss, batch_stats = original(self, params, batch_stats, x, y, **known)
            fired()
            return loss * len(x), batch_stats

        return on_one_device

    replaced(PipelineSpmd, "on_one_device", change)


@planted("jax pmap uneven")
def padding_is_trained_on():
    """A short batch is padded so that it can be cut evenly, and the padding counts like any sample."""
    import numpy as np

    from jax_impl import placement

    def change(original):
        def parts(batch, job):
            if batch["y"].ndim == 2:
                fired()
                batch = batch | {"y": np.column_stack([batch["y"][:, :-1], np.ones(len(batch["y"]))])}
            return original(batch, job)

        return parts

    replaced(placement, "parts", change)


@planted("jax single deep")
def identity_shortcut_stopped():
    """A shortcut without a convolution passes no gradient on."""
    import jax

    from jax_impl.models.resnet50 import Model

    def change(original):
        def norm(self, name, x, shortcut=None, **known):
            if name == "layer1.1.bn3":
                fired()
                shortcut = jax.lax.stop_gradient(shortcut)
            return original(self, name, x, shortcut, **known)

        return norm

    replaced(Model, "norm", change)
