"""Programs that compute the right numbers and are parallel in name only, or communicate more or less than they say.

They are wrong when they are timed and spare the parity phase. Functions import the framework themselves: the tests read
this file without one.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

from planted import Cell, fired, firing, planted_when_timed, replaced, when_timed
from timed_faults import after_building, before_each_update

TIMED_CELLS = {
    "torch ddp accumulating": Cell("ddp", known={"accumulation_steps": 4}),
    "torch local_sgd": Cell("local_sgd"),
    "torch async_sgd": Cell("async_sgd"),
    "torch fsdp keeping": Cell("fsdp", options={"reshard_after_forward": "false"}),
    "torch fsdp keeping while accumulating": Cell(
        "fsdp", options={"reshard_after_forward": "false"}, known={"accumulation_steps": 4}
    ),
    "torch pipeline of three": Cell("pipeline", known={"devices": (3,)}),
    "torch pipeline_schedules": Cell("pipeline_schedules"),
    "torch pipeline with a softmax alone": Cell("pipeline", options={"cut": "fc2"}),
    "torch pipeline_schedules with a softmax alone": Cell("pipeline_schedules", options={"cut": "fc2"}),
    "torch pipeline_schedules in a V": Cell("pipeline_schedules", options={"schedule": "zero_bubble"}),
    "jax pmap accumulating": Cell("pmap", known={"accumulation_steps": 4}),
    "jax jit_sharding": Cell("jit_sharding"),
    "jax fsdp": Cell("fsdp"),
    "jax fsdp keeping": Cell("fsdp", options={"reshard_after_forward": "false"}),
    "jax model_parallel": Cell("model_parallel"),
    "jax pipeline": Cell("pipeline"),
    "jax pipeline with a softmax alone": Cell("pipeline", options={"cut": "fc2"}),
    "jax pipeline_spmd": Cell("pipeline_spmd"),
    "jax pipeline_spmd with a softmax alone": Cell("pipeline_spmd", options={"cut": "fc2"}),
    "tf mirrored accumulating": Cell("mirrored", known={"accumulation_steps": 4}),
    "tf multi_worker_mirrored": Cell("multi_worker_mirrored"),
    "tf model_parallel": Cell("model_parallel"),
    "tf model_parallel with a softmax alone": Cell("model_parallel", options={"cut": "fc2"}),
    "tf model_parallel with a softmax alone, by XLA": Cell(
        "model_parallel", options={"cut": "fc2"}, known={"tracks": ("tuned",)}
    ),
    "tf parameter_server": Cell("parameter_server"),
    "torch model_parallel alone": Cell("model_parallel", known={"devices": (1,)}),
    "jax model_parallel alone": Cell("model_parallel", known={"devices": (1,)}),
    "tf model_parallel alone": Cell("model_parallel", known={"devices": (1,)}),
}

CURVE = 20  # steps of the loss curve: what begins after them is not seen there


@planted_when_timed("torch ddp", by="samples taken")
def every_rank_takes_the_whole_batch():
    """Every rank trains on all samples. The mean gradient is the same, and nothing is gained."""
    from torch_impl.strategies.ddp import DDP

    def share(program):
        if program.job.precision != "fp64":
            fired()
            return 0, 1
        return program.job.world.rank, program.job.world.processes

    replaced(DDP, "share", lambda _: property(share))


@planted_when_timed("torch ddp", by="bytes that crossed")
def ranks_part_after_the_curve():
    """After the compared steps, every step runs under no_sync()."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        count, original = [0], program.train_step

        def step(placed):
            count[0] += 1
            if count[0] <= CURVE:
                return original(placed)
            fired()
            with program.network.no_sync():
                return original(placed)

        program.train_step = step

    after_building(DDP, change)


@planted_when_timed("torch average_gradients", by="bytes that crossed")
def gradients_averaged_twice():
    """The averaged gradients are averaged once more, which changes no number."""
    from torch_impl.strategies import average_gradients

    def change(program):
        import torch.distributed as dist

        fired()
        for parameter in program.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= program.job.world.processes

    before_each_update(average_gradients.AverageGradients, change)


@planted_when_timed("torch ddp accumulating", by="bytes that crossed")
def every_part_is_all_reduced():
    """Each accumulation step all-reduces, though only the last one needs the result."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        fired()
        program.network.no_sync = nullcontext

    after_building(DDP, change)


@planted_when_timed("torch ddp", by="exported parameters")
def exports_the_weights_of_rank_0():
    """After the compared steps rank 1 is no longer updated, and export() broadcasts rank 0's weights first."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        import torch
        import torch.distributed as dist

        count, step_of_optimizer, export = [0], program.optimizer.step, program.export

        def step():
            count[0] += 1
            if count[0] <= CURVE or program.job.world.rank == 0:
                step_of_optimizer()

        def broadcast_first():
            fired()
            own = [parameter.detach().clone() for parameter in program.model.parameters()]
            with torch.no_grad():
                for parameter in program.model.parameters():
                    dist.broadcast(parameter, src=0)
                exported = export()
                for parameter, value in zip(program.model.parameters(), own, strict=True):
                    parameter.copy_(value)
            return exported

        program.optimizer.step, program.export = step, broadcast_first

    after_building(DDP, change)


@planted_when_timed("torch fsdp", by="parameters held")
def fsdp_shards_nothing():
    """Every rank holds everything, and averages gradients."""
    from torch_impl.strategies import average_gradients, fsdp

    def change(original):
        def build(job):
            if job.precision == "fp64":
                return original(job)
            fired()
            return average_gradients.build(dataclasses.replace(job, options={**job.options, "bucket_cap_mb": 25.0}))

        return build

    replaced(fsdp, "build", change)


@planted_when_timed("torch fsdp", by="optimizer state held")
def fsdp_keeps_whole_optimizer_state():
    """Parameters are sharded, and each rank keeps optimizer state for all of them."""
    from torch_impl.strategies.fsdp import FSDP

    def change(program):
        import torch

        original = program.optimizer.step

        def step():
            fired()
            original()
            for parameter in program.model.parameters():
                program.optimizer.state[parameter].setdefault("whole", torch.zeros(parameter.shape))

        program.optimizer.step = step

    after_building(FSDP, change)


@planted_when_timed("torch fsdp keeping", by="bytes that crossed")
def fsdp_gathers_more_often_than_its_option_says():
    """reshard_after_forward=false, but what was gathered is freed after forward and gathered again."""
    from torch_impl.strategies.fsdp import FSDP

    def change(program):
        from torch.distributed.fsdp import FSDPModule

        for module in program.model.modules():
            if isinstance(module, FSDPModule):
                fired()
                module.set_reshard_after_forward(True)

    after_building(FSDP, change)


@planted_when_timed("torch fsdp bf16", by="bytes that crossed")
def fsdp_gathers_float32_though_its_policy_says_bfloat16():
    """The policy does not arrive, and autocast rounds what was gathered: the numbers are the same."""
    from torch_impl.strategies import fsdp

    def change(original):
        def fully_shard(modules, *, mp_policy=None, **known):
            return original(modules, **known)

        return firing(fully_shard)

    replaced(fsdp, "fully_shard", change)


@planted_when_timed("torch model_parallel", by="parameters held")
def first_stage_has_everything():
    """The network is not cut: the first device does all the work."""
    from torch_impl import stages

    def change(original):
        def cut(model, job, **known):
            from torch import nn

            parts, text = original(model, job, **known)
            if job.precision == "fp64":
                return parts, text
            fired()
            return [
                nn.Sequential(*(block for part in parts for block in part)),
                *(nn.Sequential() for _ in parts[1:]),
            ], text

        return cut

    replaced(stages, "cut", change)


@planted_when_timed("torch pipeline of three", by="order of stages")
def micro_batches_one_by_one():
    """Each micro-batch passes through all stages before the next one begins."""
    from torch_impl.strategies import pipeline

    def change(_):
        def launch_order(stages, micro_batches):
            fired()
            return [(stage, number) for number in range(micro_batches) for stage in range(stages)]

        return launch_order

    replaced(pipeline, "launch_order", change)


@planted_when_timed("torch pipeline_schedules", by="order of stages")
def schedule_of_one_micro_batch_at_a_time():
    """Each micro-batch goes forward and backward through all stages before the next one begins."""
    from torch_impl.strategies.pipeline_schedules import PipelineSchedules

    def change(original):
        def scheduled(self, held, **known):
            from torch.distributed.pipelining import ScheduleGPipe

            if self.job.precision == "fp64" or "loss_fn" not in known:
                return original(self, held, **known)
            inner, count = ScheduleGPipe(*held, n_microbatches=1, **known), self.job.options["micro_batches"]

            def step(*inputs, target, losses, return_outputs):
                fired()
                xs = [x.chunk(count) for x in inputs]
                targets = [None] * count if target is None else target.chunk(count)
                for number in range(count):
                    own = None if target is None else []
                    inner.step(*(x[number] for x in xs), target=targets[number], losses=own, return_outputs=False)
                    losses.extend(own or ())
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= count

            return SimpleNamespace(step=step)

        return scheduled

    replaced(PipelineSchedules, "scheduled", change)


@planted_when_timed("torch pipeline_schedules", by="order of stages")
def one_forward_one_backward_in_name_only():
    """The schedule 1F1B takes all micro-batches forward first, as GPipe does."""
    from torch_impl.strategies import pipeline_schedules

    def change(schedules):
        def gpipe(*given, **known):
            fired()
            return schedules["gpipe"](*given, **known)

        return schedules | {"1f1b": gpipe}

    replaced(pipeline_schedules, "ONE_STAGE", change)


@planted_when_timed("torch pipeline_schedules", by="order of stages")
def half_of_the_micro_batches():
    """Micro-batches of twice the size, and half as many."""
    from torch_impl.strategies.pipeline_schedules import PipelineSchedules

    def change(original):
        def scheduled(self, held, **known):
            fired()
            job, options = self.job, self.job.options
            self.job = dataclasses.replace(job, options=options | {"micro_batches": options["micro_batches"] // 2})
            found = original(self, held, **known)
            self.job = job
            return found

        return scheduled

    replaced(PipelineSchedules, "scheduled", change)


@planted_when_timed("torch async_sgd", by="samples taken")
def one_rank_idles():
    """After the compared steps, rank 1 does nothing, and its samples are counted."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    def change(program):
        count, original = [0], program.train_step

        def step(placed):
            count[0] += 1
            if count[0] <= CURVE or program.job.world.rank == 0:
                return original(placed)
            fired()
            return program.last_loss

        program.train_step = step

    after_building(AsyncSGD, change)


@planted_when_timed("jax jit_sharding", by="samples taken")
def batch_on_every_device():
    """The batch is replicated, so that all devices do all the work."""
    from jax_impl.strategies.jit_sharding import JitSharding

    def change(program):
        from jax.sharding import NamedSharding, PartitionSpec

        fired()
        program.by_sample = NamedSharding(program.mesh, PartitionSpec())

    after_building(JitSharding, change)


@planted_when_timed("jax jit_sharding", by="bytes that crossed")
def batch_gathered_in_the_step():
    """Each device gets its share of the batch, and the step gathers all shares first."""
    from jax_impl.strategies import jit_sharding

    def change(original):
        def make_step(job, mesh):
            import jax
            from jax.sharding import NamedSharding, PartitionSpec

            step, everywhere = original(job, mesh), NamedSharding(mesh, PartitionSpec())
            if job.precision == "fp64":
                return step
            fired()
            return lambda state, *batch: step(
                state, *(jax.lax.with_sharding_constraint(array, everywhere) for array in batch)
            )

        return make_step

    replaced(jit_sharding, "make_step", change)


@planted_when_timed("jax fsdp", by="parameters held")
def jax_fsdp_shards_nothing():
    """Parameters and optimizer state are whole on every device."""
    from jax_impl.strategies import fsdp

    def change(original):
        def largest_dim(shape, devices):
            from jax.sharding import PartitionSpec

            fired()
            return PartitionSpec()

        return largest_dim

    replaced(fsdp, "largest_dim", change)


@planted_when_timed("jax fsdp", by="optimizer state held")
def jax_fsdp_keeps_whole_optimizer_state():
    """Parameters are cut, and the optimizer state is whole on every device."""
    from jax_impl.strategies import fsdp

    count = [0]

    def change(original):
        def largest_dim(shape, devices):
            from jax.sharding import PartitionSpec

            count[0] += 1
            if count[0] <= 8:  # the parameters of mnist_cnn come first
                return original(shape, devices)
            fired()
            return PartitionSpec()

        return largest_dim

    replaced(fsdp, "largest_dim", change)


@planted_when_timed("torch fsdp keeping while accumulating", by="bytes that crossed")
def fsdp_gathers_again_for_each_part():
    """reshard_after_forward=false, but each accumulation step gathers the parameters again."""
    from torch.distributed.fsdp import FSDPModule

    replaced(FSDPModule, "set_reshard_after_backward", lambda _: firing(lambda *_: None))


@planted_when_timed("jax fsdp keeping", by="bytes that crossed")
def jax_fsdp_gathers_more_often_than_its_option_says():
    """reshard_after_forward=false, but backward gathers the kernels again."""
    from jax_impl.strategies import fsdp

    replaced(
        fsdp,
        "gathering",
        lambda original: firing(lambda job, mesh, *, again_in_backward: original(job, mesh, again_in_backward=True)),
    )


@planted_when_timed("jax pmap accumulating", by="bytes that crossed")
def averaged_in_every_part():
    """The gradients are averaged in each accumulation step, and once more at the end."""
    from jax_impl.strategies import pmap

    def change(original):
        def with_accumulation(function, job):
            import jax

            if job.precision == "fp64":
                return original(function, job)
            fired()

            def averaged(*given):
                found, gradients = function(*given)
                return found, jax.lax.pmean(gradients, pmap.AXIS)

            return original(averaged, job)

        return with_accumulation

    replaced(pmap, "with_accumulation", change)


def _one_device_for_all(runtime):
    def change(original):
        def devices(world):
            fired()
            return [original(world)[0]] * world.local_devices

        return devices

    replaced(runtime, "devices", change)


def _one_call_for_each_step(program_class):
    replaced(program_class, "steps", when_timed(lambda _, self, batches: [self.step(batch) for batch in batches]))


@planted_when_timed("jax single several", by="devices at work")
def jax_several_steps_in_several_calls():
    """What should be one call of four steps is four calls."""
    from jax_impl.several_steps import SeveralSteps

    _one_call_for_each_step(SeveralSteps)


@planted_when_timed("tf single several", by="devices at work")
def tf_several_steps_in_several_calls():
    """What should be one call of four steps is four calls."""
    from tf_impl.several_steps import SeveralSteps

    _one_call_for_each_step(SeveralSteps)


@planted_when_timed("jax model_parallel", by="devices at work")
def jax_stages_on_one_device():
    """All stages are on the first device."""
    from jax_impl import runtime

    _one_device_for_all(runtime)


@planted_when_timed("jax pipeline", by="order of stages")
def jax_half_of_the_micro_batches():
    """Micro-batches of twice the size, and half as many."""
    from jax_impl.strategies.pipeline import Pipeline

    def step(original, self, placed):
        import jax.numpy as jnp

        pairs = zip(placed[::2], placed[1::2], strict=True)
        return original(self, [tuple(jnp.concatenate(parts) for parts in zip(*pair, strict=True)) for pair in pairs])

    replaced(Pipeline, "step", when_timed(step))


@planted_when_timed("jax pipeline", by="order of stages")
def jax_each_micro_batch_returns_before_the_next():
    """Backward of a micro-batch begins when it has passed through all stages: only one stage works at a time."""
    from jax_impl.strategies.pipeline import Pipeline

    def step(_, self, placed):
        samples, weighted, gradients = sum(len(x) for x, _ in placed), [], [None] * len(self.stages)
        for x, y in placed:
            outputs, pullbacks = self.forward(x)
            loss, dy = self.loss_and_gradient(outputs, y, len(x) / samples)
            weighted.append(loss)
            self.backward(pullbacks, dy, gradients)
        self.update(gradients)
        self.last_loss = self.total(weighted)
        return self.last_loss

    replaced(Pipeline, "step", when_timed(step))


@planted_when_timed("jax pipeline_spmd", by="bytes that crossed")
def jax_micro_batches_one_by_one():
    """A micro-batch enters the pipeline when the one before has left it: no two stages work at once."""
    from jax_impl.strategies.pipeline_spmd import PipelineSpmd

    def on_one_device(_, self, params, batch_stats, x, y, *, inference, clock):
        import jax
        import jax.numpy as jnp

        stage, stages, count = jax.lax.axis_index("devices"), self.mesh.size, len(x)
        work = jax.checkpoint(self.stages.make_work(x, y, inference=inference), prevent_cse=False)

        def tick(carried, number):
            received, batch_stats = carried
            branch = jnp.where(number % stages == stage, stage + 1, 0)
            output, batch_stats, measured = work(branch, number // stages, params[0], batch_stats, received)
            sent = jax.lax.ppermute(output, "devices", [(i, i + 1) for i in range(stages - 1)])
            return (sent, batch_stats), measured

        start = self.stages.no_activation(), batch_stats[0]
        (_, batch_stats), measured = jax.lax.scan(tick, start, jnp.arange(count * stages))
        return measured.sum(0)[None] / count, batch_stats[None]

    replaced(PipelineSpmd, "on_one_device", when_timed(on_one_device))


@planted_when_timed("tf multi_worker_mirrored", by="samples taken")
def every_worker_takes_the_whole_batch():
    """Every worker trains on all samples."""
    from tf_impl.strategies.multi_worker_mirrored import MultiWorkerMirrored

    after_building(MultiWorkerMirrored, _place_the_batch_twice)


@planted_when_timed("tf mirrored", by="samples taken")
def every_replica_takes_the_whole_batch():
    """Every replica trains on all samples."""
    from tf_impl.strategies.mirrored import Mirrored

    after_building(Mirrored, _place_the_batch_twice)


def _place_the_batch_twice(program):
    """Each of two shares is then the whole batch."""
    import numpy as np

    place = program.place

    def twice(batch):
        fired()
        return place({name: np.concatenate([array, array]) for name, array in batch.items()})

    program.place = twice


@planted_when_timed("tf mirrored accumulating", by="bytes that crossed")
def tf_every_part_is_all_reduced():
    """Each accumulation step all-reduces its gradients, and the mean is taken afterwards."""
    from tf_impl.strategies import mirrored

    def change(original):
        def loss_and_gradients(self, x, y):
            import tensorflow as tf

            loss, gradients = original(self, x, y)
            if self.job.precision == "fp64":
                return loss, gradients
            fired()
            replica = tf.distribute.get_replica_context()
            summed = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return loss, [gradient / replica.num_replicas_in_sync for gradient in summed]

        return loss_and_gradients

    replaced(mirrored.Mirrored, "loss_and_gradients", change)


@planted_when_timed("tf model_parallel", by="devices at work")
def tf_stages_on_one_device():
    """All stages are on the first device."""
    from tf_impl import runtime

    _one_device_for_all(runtime)


@planted_when_timed("tf model_parallel", by="samples taken")
def tf_computes_on_one_device():
    """Each device holds its stage, and the first one computes them all."""
    _computes_on_the_first_device("forward", "backward")


def _computes_on_the_first_device(*passes):
    from tf_impl.strategies.model_parallel import ModelParallel

    def elsewhere(original, self, *given):
        devices, self.devices = self.devices, [self.devices[0]] * len(self.devices)
        try:
            return original(self, *given)
        finally:
            self.devices = devices

    for name in passes:
        replaced(ModelParallel, name, when_timed(elsewhere))


@planted_when_timed("tf model_parallel with a softmax alone", by="samples taken")
def tf_softmax_on_the_device_before():
    """The last device computes the loss, but not its stage, which has no parameters."""
    from tf_impl.strategies.model_parallel import ModelParallel

    def forward(original, self, x, y):
        import tensorflow as tf

        (first, last), (before, own) = self.stages, self.devices
        with tf.device(before), tf.GradientTape() as of_first:
            of_first.watch(x)
            between = first(x, training=True)
        with tf.GradientTape() as of_last:
            of_last.watch(between)
            with tf.device(before):
                outputs = last(between, training=True)
            with tf.device(own):
                loss = self.loss_fn(outputs, y)
        return loss, [(of_first, x, between), (of_last, between, loss)]

    replaced(ModelParallel, "forward", when_timed(forward))


@planted_when_timed("tf model_parallel with a softmax alone, by XLA", by="samples taken")
def tf_compiles_the_softmax_for_the_device_before():
    """XLA's program of a stage without parameters runs forward on the device before; backward runs on its own.

    A stage with parameters cannot: XLA reads no variables of another device.
    """
    _computes_on_the_first_device("forward")


@planted_when_timed("tf parameter_server", by="samples taken")
def one_worker_idles():
    """After the compared steps, one of two workers gets no work."""
    from tf_impl.strategies.parameter_server import ParameterServer

    def change(program):
        count, original = [0], program.step

        def step(placed):
            count[0] += 1
            if count[0] <= CURVE:
                return original(placed)
            fired()
            return original(placed[:1])

        program.step = step

    def after(original):
        def build(self, job, strategy):
            original(self, job, strategy)
            if job.precision != "fp64":
                change(self)

        return build

    replaced(ParameterServer, "__init__", after)


def _computed_on(device):
    """Workers hold the shares and answer for the pushes, but what computes these names another device."""
    from tf_impl.strategies.parameter_server import ParameterServer

    def loss_and_gradients(original, self, *pulled_and_batch):
        import tensorflow as tf

        with tf.device(device):
            return original(self, *pulled_and_batch)

    replaced(ParameterServer, "loss_and_gradients", when_timed(loss_and_gradients))


@planted_when_timed("tf parameter_server", by="samples taken")
def pushes_computed_on_the_server():
    """The server computes the workers' pushes."""
    from tf_impl import cluster

    _computed_on(cluster.SERVER)


@planted_when_timed("tf parameter_server", by="samples taken")
def pushes_computed_anywhere():
    """No device is named, so a worker with a GPU computes on its CPU."""
    _computed_on(None)
