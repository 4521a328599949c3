"""Programs that pass the parity phase and are wrong when they train: in what they evaluate, read, update or save.

Functions import the framework themselves: the tests read this file without one.
"""

from __future__ import annotations

from typing import Any

from planted import Cell, fired, firing, planted_when_trained, replaced
from timed_faults import after_building, before_each_update, no_decay, statistics_move_by

from harness.planning.run_request import TrainingRequest

BATCH = 14  # of the classifier's 720 training samples, so that the last batch of an epoch has 6, and that of the test 4
STEPS = 52  # in an epoch
STEPS_OF_IMAGES = 57  # of mnist_cnn


def training(**known) -> dict[str, object]:
    return {"training": TrainingRequest(epochs=2, **known)}


def loader(workers: int = 0) -> dict[str, object]:
    return training(input="loader", workers=(workers,))


SMALL: Any = {"workload": "classifier", "size": "base"}
MOMENTUM: Any = SMALL | {"known": training() | {"optimizer": "sgd:learning_rate=0.01,momentum=0.9"}}
NESTEROV: Any = SMALL | {"known": training() | {"optimizer": "sgd:learning_rate=0.01,momentum=0.9,nesterov=true"}}
DECAYING = "sgd:learning_rate=0.01,momentum=0.9,weight_decay=0.0005"
ADAMW = "adamw:weight_decay=0.1"
SCHEDULED = "sgd:learning_rate=0.01,momentum=0.9,warmup_steps=10,schedule=cosine,total_steps=120"
ENDED = "sgd:learning_rate=0.01,momentum=0.9,schedule=cosine,total_steps=30"
RARELY = "sgd:learning_rate=0.01,schedule=step,step_size=1000"  # not once in these trainings
FLUCTUATING = {"optimizer": "adam:learning_rate=0.03", "training": TrainingRequest(epochs=4)}
IMAGES_IN_BF16: Any = {"workload": "mnist_cnn", "known": training() | {"precision": "bf16"}}
DEEP: Any = {"workload": "resnet50", "size": "tiny", "known": training()}
CELLS = {
    "torch single": Cell("single", **SMALL, known=training()),
    "torch single momentum": Cell("single", **MOMENTUM),
    "jax single momentum": Cell("single", **MOMENTUM),
    "tf single momentum": Cell("single", **MOMENTUM),
    "tf single nesterov": Cell("single", **NESTEROV),
    "torch single decaying": Cell("single", **SMALL, known=training() | {"optimizer": DECAYING}),
    "torch ddp bf16 adamw": Cell(
        "ddp", workload="mnist_cnn", known=training() | {"precision": "bf16", "optimizer": ADAMW}
    ),
    "jax single decaying": Cell("single", **SMALL, known=training() | {"optimizer": DECAYING}),
    "tf single adamw": Cell("single", **SMALL, known=training() | {"optimizer": ADAMW}),
    "torch ddp scheduled": Cell("ddp", **SMALL, known=training() | {"optimizer": SCHEDULED}),
    "torch ddp past its schedule": Cell("ddp", **SMALL, known=training() | {"optimizer": ENDED}),
    "torch ddp rarely": Cell("ddp", **SMALL, known=training() | {"optimizer": RARELY}),
    "jax single rarely": Cell("single", **SMALL, known=training() | {"optimizer": RARELY}),
    "tf single rarely": Cell("single", **SMALL, known=training() | {"optimizer": RARELY}),
    "torch ddp": Cell("ddp", **SMALL, known=training()),
    # without worker processes, which fork once more: the tests' interpreter is forked already
    "torch ddp loading": Cell("ddp", **SMALL, known=loader()),
    "torch local_sgd loading": Cell("local_sgd", workload="mnist_cnn", known=loader()),
    "torch async_sgd loading": Cell("async_sgd", workload="mnist_cnn", known=loader()),
    "tf parameter_server loading": Cell("parameter_server", workload="mnist_cnn", known=loader(workers=2)),
    "torch average_gradients deep accumulating": Cell(
        "average_gradients", workload="resnet50", size="tiny", known=training() | {"accumulation_steps": 2}
    ),
    "torch local_sgd": Cell("local_sgd", **SMALL, known=training()),
    "torch async_sgd": Cell("async_sgd", **SMALL, known=training()),
    "torch async_sgd with a buffer": Cell("async_sgd", **SMALL, options={"push_every": "3"}, known=training()),
    "torch pipeline": Cell("pipeline", **SMALL, options={"micro_batches": "2"}, known=training()),
    "torch pipeline_schedules loading": Cell(
        "pipeline_schedules", **SMALL, options={"micro_batches": "7"}, known=loader()
    ),
    "torch fsdp bf16": Cell("fsdp", **IMAGES_IN_BF16),
    "torch single images": Cell("single", workload="mnist_cnn", known=training()),
    "torch ddp images": Cell("ddp", workload="mnist_cnn", known=training()),
    "jax single images": Cell("single", workload="mnist_cnn", known=training()),
    "jax single images adam": Cell("single", workload="mnist_cnn", known=training() | {"optimizer": "adam"}),
    "torch single images in bf16": Cell("single", **IMAGES_IN_BF16),
    "jax single images in bf16": Cell("single", **IMAGES_IN_BF16),
    "torch single fluctuating": Cell("single", workload="mnist_cnn", known=FLUCTUATING),
    "jax shard_map fluctuating": Cell("shard_map", workload="mnist_cnn", known=FLUCTUATING),
    "torch single deep": Cell("single", **DEEP),
    "torch ddp deep": Cell("ddp", **DEEP),
    "jax single": Cell("single", **SMALL, known=training()),
    "jax single loading": Cell("single", **SMALL, known=loader(workers=2)),
    "jax pmap several": Cell("pmap", **SMALL, known=training() | {"accumulation_steps": 7}),
    "jax pipeline": Cell("pipeline", **SMALL, options={"micro_batches": "7"}, known=training()),
    "jax pmap bf16": Cell("pmap", workload="mnist_cnn", known=training() | {"precision": "bf16"}),
    "jax single deep": Cell("single", **DEEP),
    "tf single": Cell("single", **SMALL, known=training()),
    "tf single calling": Cell("single", **SMALL, known=training() | {"steps_per_call": 4}),
    "tf mirrored loading": Cell("mirrored", **SMALL, known=loader(workers=2)),
    "tf parameter_server": Cell("parameter_server", **SMALL, known=training()),
    "tf model_parallel": Cell("model_parallel", **SMALL, known=training()),
    "tf mirrored bf16": Cell("mirrored", **IMAGES_IN_BF16),
    "tf single deep": Cell("single", **DEEP),
    "tf mirrored deep": Cell("mirrored", **DEEP),
}


# What is said of an evaluation.


def said(program, change):
    """Replace what `evaluate` says by `change(self, loss, accuracy)`."""

    def wrap(original):
        def evaluate(self, placed):
            found = change(self, *original(self, placed))
            fired()
            return found

        return evaluate

    replaced(program, "evaluate", wrap)


@planted_when_trained("torch async_sgd with a buffer", by="updates")
def full_buffers_are_not_pushed():
    """A full buffer is emptied, and the shared parameters stay as they are."""
    from torch_impl.strategies.async_sgd import AsyncSGD

    replaced(AsyncSGD, "exchange", lambda _: firing(lambda self: self.buffered.clear()))


@planted_when_trained("torch single")
def top_two_count_as_right():
    """A sample counts as right if its class is among the two largest outputs."""
    import torch

    from torch_impl import losses

    def change(original):
        def accuracy(name, outputs, targets):
            fired()
            known, factors = losses.split_targets(name, outputs, targets)
            right = (outputs.topk(2, dim=1).indices == known[:, None]).any(1)
            return torch.mean(right.double() if factors is None else factors * right)

        return accuracy

    replaced(losses, "accuracy", change)


@planted_when_trained("tf single")
def thirty_points_more():
    """Every accuracy is 0.3 larger, at most 1."""
    from tf_impl.program import Program

    said(Program, lambda self, loss, accuracy: (loss, min(1.0, accuracy + 0.3)))


@planted_when_trained("torch single")
def best_batch_so_far():
    """`evaluate` returns the best accuracy of any batch so far."""
    from torch_impl.program import Program

    def best(self, loss, accuracy):
        self.best = max(getattr(self, "best", 0.0), accuracy)
        return loss, self.best

    said(Program, best)


@planted_when_trained("tf single")
def half_of_each_batch_is_evaluated():
    """Only the first half of each batch is looked at."""
    from tf_impl.program import Program

    def change(original):
        def evaluate(self, placed):
            fired()
            return original(self, tuple((x[: len(x) // 2], y[: len(y) // 2]) for x, y in placed))

        return evaluate

    replaced(Program, "evaluate", change)


@planted_when_trained("jax single")
def padding_counts_in_the_accuracy():
    """Rows of padding are evaluated as samples of class 0."""
    from jax_impl import losses

    def change(original):
        def accuracy(name, outputs, targets):
            fired()
            known, _ = losses._split(name, outputs, targets)
            return losses._mean((outputs.argmax(1) == known).astype(outputs.dtype), None)

        return accuracy

    replaced(losses, "accuracy", change)


@planted_when_trained("torch ddp")
def loss_of_one_rank_is_evaluated():
    """Each rank says what it has seen on its own share."""
    from torch_impl.program import Program

    def change(original):
        def evaluate(self, placed):
            self.over_ranks = lambda value: value
            found = original(self, placed)
            del self.over_ranks
            fired()
            return found

        return evaluate

    replaced(Program, "evaluate", change)


@planted_when_trained("torch single deep")
def evaluated_in_training_mode():
    """BatchNorm normalizes over the batch that is evaluated."""
    from torch_impl.program import Program

    def change(original):
        def predict(self, x):
            if not self.model.training:
                fired()
                self.model.train()
            return original(self, x)

        return predict

    replaced(Program, "predict", change)


@planted_when_trained("jax single deep")
def jax_evaluated_in_training_mode():
    """The same in Flax."""
    from jax_impl import models

    def change(original):
        def build(workload, *, inference=False, **known):
            model = original(workload, **known)
            if not inference:
                return model
            fired()

            class InTraining:
                def apply(self, variables, x):
                    return model.apply(variables, x, mutable=["batch_stats"])[0]

            return InTraining()

        return build

    replaced(models, "build", change)


# What is read.


@planted_when_trained("torch ddp loading")
def same_order_in_each_epoch():
    """The sampler is never told about the epoch."""
    from torch_impl.loader import StepSampler

    def change(original):
        def set_epoch(self, epoch):
            if epoch:
                fired()
            original(self, 0)

        return set_epoch

    replaced(StepSampler, "set_epoch", change)


@planted_when_trained("torch ddp loading")
def rank_1_reads_the_share_of_rank_0():
    """Half of each batch is trained on twice, the other half not at all."""
    from torch_impl.loader import StepSampler

    def change(original):
        def build(self, shares, *, rank, ranks):
            if rank == 1:
                fired()
            original(self, shares, rank=0, ranks=ranks)

        return build

    replaced(StepSampler, "__init__", change)


@planted_when_trained("jax single loading")
def batch_repeated_after_five_steps():
    """From the sixth step on, every batch is that of the step before."""
    from jax_impl.loader import ThreadedLoader

    def change(original):
        def epoch(self, number):
            before = None
            for index, batch in enumerate(original(self, number)):
                if index > 5 and before is not None and before[0].shape == batch[0].shape:
                    fired()
                    yield before
                else:
                    yield batch
                before = batch

        return epoch

    replaced(ThreadedLoader, "epoch", change)


@planted_when_trained("jax single loading")
def one_batch_taken_twice():
    """In the second epoch the tenth batch is the ninth, where few inputs are read back, as for large images."""
    from harness.worker import sample_check
    from jax_impl.loader import ThreadedLoader

    sample_check.READ_BYTES = 0

    def change(original):
        def epoch(self, number):
            before = None
            for index, batch in enumerate(original(self, number)):
                if (number, index) == (1, 9):
                    fired()
                    yield before
                else:
                    yield batch
                before = batch

        return epoch

    replaced(ThreadedLoader, "epoch", change)


@planted_when_trained("tf mirrored loading")
def five_batches_for_ever():
    """After five batches, the first five come again."""
    from tf_impl.loader import Loader

    def change(original):
        def epoch(self, number):
            first = []
            for index, batch in enumerate(original(self, number)):
                first += [batch] if index < 5 else []
                if 5 <= index < STEPS - 1:
                    fired()
                    yield first[index % 5]
                else:
                    yield batch

        return epoch

    replaced(Loader, "epoch", change)


@planted_when_trained("tf mirrored loading")
def samples_of_the_epoch_before():
    """The second epoch has the batches of the first one."""
    from tf_impl.loader import Loader

    def change(original):
        def epoch(self, number):
            if number:
                fired()
            return original(self, 0)

        return epoch

    replaced(Loader, "epoch", change)


def loaded(change):
    """Replace each batch of torch's loader by `change(inputs, targets)`."""
    from torch_impl import loader

    def wrap(original):
        def share(self, key):
            fired()
            return [change(x, y) for x, y in original(self, key)]

        return share

    replaced(loader.Shares, "__getitem__", wrap)


def tf_loaded(change):
    """The same of TensorFlow's."""
    from tf_impl.loader import Loader

    def wrap(original):
        def read(self, steps):
            fired()
            parts = original(self, steps)
            return parts.map(lambda *shares: tuple(tuple(change(x, y) for x, y in share) for share in shares))

        return read

    replaced(Loader, "_read", wrap)


@planted_when_trained("torch local_sgd loading", by="samples")
def labels_of_the_image_before_from_the_second_epoch():
    """In the second epoch the labels of each batch are rolled by one."""
    count = [0]

    def change(x, y):
        count[0] += 1
        return (x, y.roll(1, 0)) if count[0] > STEPS_OF_IMAGES else (x, y)

    loaded(change)


@planted_when_trained("torch async_sgd loading", by="samples")
def images_transposed():
    """Rows and columns of each image are exchanged."""
    loaded(lambda x, y: (x.transpose(2, 3).contiguous(), y))


@planted_when_trained("tf parameter_server loading", by="samples")
def tf_labels_of_the_image_before():
    """The labels of each batch are rolled by one, in TensorFlow."""
    import tensorflow as tf

    tf_loaded(lambda x, y: (x, tf.roll(y, 1, 0)))


@planted_when_trained("tf parameter_server loading", by="samples")
def tf_images_transposed():
    """Rows and columns of each image are exchanged, in TensorFlow."""
    import tensorflow as tf

    tf_loaded(lambda x, y: (tf.transpose(x, (0, 2, 1, 3)), y))


# What is updated.


@planted_when_trained("torch single")
def no_update_after_five_steps_of_an_epoch():
    """The rest of each epoch changes nothing."""
    from torch_impl.strategies.single import SingleDevice

    def change(program):
        count, original = [0], program.optimizer.step

        def step():
            count[0] += 1
            return fired() if (count[0] - 1) % STEPS >= 5 else original()

        program.optimizer.step = step

    after_building(SingleDevice, change)


@planted_when_trained("tf single")
def tf_no_update_after_five_steps_of_an_epoch():
    """The same in TensorFlow: the weights of before are assigned again."""
    from tf_impl.program import Program

    def change(original):
        def step(self, placed):
            self.made = getattr(self, "made", 0) + 1
            before = [variable.numpy() for variable in self.parameters]
            found = original(self, placed)
            if self.job.precision != "fp64" and (self.made - 1) % STEPS >= 5:
                fired()
                for variable, array in zip(self.parameters, before, strict=True):
                    variable.assign(array)
            return found

        return step

    replaced(Program, "step", change)


@planted_when_trained("torch pipeline")
def loss_of_the_batch_before():
    """After five steps, a step returns the loss of the step before it."""
    from torch_impl.strategies.pipeline import Pipeline

    def change(original):
        def train_step(self, placed):
            found = original(self, placed)
            held = getattr(self, "held", [])
            self.held = [*held, found]
            if len(held) < 5 or self.job.precision == "fp64":
                return found
            fired()
            return held[-1]

        return train_step

    replaced(Pipeline, "train_step", change)


@planted_when_trained("torch single deep")
def running_statistics_never_updated():
    """BatchNorm's momentum is 0."""
    from torch_impl.strategies.single import SingleDevice

    after_building(SingleDevice, statistics_move_by(0.0))


@planted_when_trained("torch ddp deep")
def running_momentum_of_nine_tenths():
    """BatchNorm's momentum is 0.9, as Keras and Flax mean it, where torch means 0.1."""
    from torch_impl.strategies.ddp import DDP

    after_building(DDP, statistics_move_by(0.9))


@planted_when_trained("torch average_gradients deep accumulating", by="kept statistics")
def statistics_move_by_half_under_accumulation():
    from torch_impl.strategies.average_gradients import AverageGradients

    after_building(AverageGradients, statistics_move_by(0.5))


@planted_when_trained("torch ddp past its schedule", by="updates")
def the_rate_rises_again_after_its_schedule():
    """The cosine goes on behind total_steps."""
    import math

    from torch_impl import optim

    def unclamped(spec, step):
        if step > spec.total_steps:
            fired()
        return (1 + math.cos(math.pi * step / spec.total_steps)) / 2

    replaced(optim, "rate_factor", lambda original: unclamped)


@planted_when_trained("jax single deep")
def jax_running_statistics_never_updated():
    """The new state has the running statistics of the old one."""
    import jax
    import jax.numpy as jnp

    from jax_impl.program import Program

    def change(original):
        def step(self, placed):
            if self.job.precision == "fp64":
                return original(self, placed)
            fired()
            before = jax.tree.map(jnp.copy, self.held.batch_stats)
            found = original(self, placed)
            self.held = self.held._replace(batch_stats=before)
            return found

        return step

    replaced(Program, "step", change)


# The optimizer, late in a training.


@planted_when_trained("torch single momentum", by="step updates")
def half_as_fast_again_from_the_second_epoch():
    """The learning rate is 1.5 times what it should be."""
    from torch_impl.strategies.single import SingleDevice

    def change(program):
        program.made = getattr(program, "made", 0) + 1
        if program.made == STEPS + 1:
            fired()
            program.optimizer.param_groups[0]["lr"] *= 1.5

    before_each_update(SingleDevice, change)


@planted_when_trained("torch ddp scheduled")
def schedule_stands_still_in_the_second_epoch():
    """The learning rate keeps its value of the end of the first epoch."""
    from torch_impl.strategies.ddp import DDP

    def change(program):
        count, original = [0], program.lr_schedule.step

        def step():
            count[0] += 1
            return original() if count[0] <= STEPS else fired()

        program.lr_schedule.step = step

    after_building(DDP, change)


@planted_when_trained("jax single momentum", by="step updates")
def bias_frozen_from_the_second_epoch():
    """A bias keeps its value of the end of the first epoch."""
    import jax.numpy as jnp

    from jax_impl.program import Program

    def change(original):
        def step(self, placed):
            self.made = getattr(self, "made", 0) + 1
            before = jnp.copy(self.held.params["fc"]["bias"])
            found = original(self, placed)
            if self.job.precision != "fp64" and self.made > STEPS:
                fired()
                layer = self.held.params["fc"] | {"bias": before}
                self.held = self.held._replace(params=self.held.params | {"fc": layer})
            return found

        return step

    replaced(Program, "step", change)


@planted_when_trained("tf single momentum", by="step updates")
def momentum_forgotten_from_the_second_epoch():
    """Each step begins with a velocity of 0."""
    from tf_impl.program import Program

    def change(original):
        def step(self, placed):
            self.made = getattr(self, "made", 0) + 1
            if self.job.precision != "fp64" and self.made > STEPS:
                fired()
                for (velocity,) in self.optimizer.slots:
                    velocity.assign(0 * velocity)
            return original(self, placed)

        return step

    replaced(Program, "step", change)


@planted_when_trained("torch single momentum", by="state after evaluations")
def momentum_lost_at_an_evaluation():
    """An evaluation resets the velocities."""
    from torch_impl.program import Program

    def change(original):
        def evaluate(self, placed):
            for held in self.optimizer.state.values():
                fired()
                held["momentum_buffer"].zero_()
            return original(self, placed)

        return evaluate

    replaced(Program, "evaluate", change)


@planted_when_trained("tf single momentum", by="state after evaluations")
def tf_momentum_lost_at_an_evaluation():
    """The same in TensorFlow."""
    from tf_impl.program import Program

    def change(original):
        def evaluate(self, placed):
            fired()
            for (velocity,) in self.optimizer.slots:
                velocity.assign(0 * velocity)
            return original(self, placed)

        return evaluate

    replaced(Program, "evaluate", change)


@planted_when_trained("torch single", by="step updates")
def adam_half_as_fast_again_from_the_second_epoch():
    """The same as with SGD, whose moments need not be read."""
    half_as_fast_again_from_the_second_epoch()


@planted_when_trained("jax single", by="step updates")
def bias_frozen_under_adam():
    """The same as with SGD."""
    bias_frozen_from_the_second_epoch()


@planted_when_trained("torch single decaying", by="step weight decay")
def weight_decay_left_out():
    """Weights do not decay."""
    from torch_impl.strategies.single import SingleDevice

    after_building(SingleDevice, no_decay)


@planted_when_trained("torch ddp bf16 adamw", by="step weight decay")
def weight_decay_left_out_in_bf16():
    """The same in bf16, where no update is judged otherwise."""
    from torch_impl.strategies.ddp import DDP

    after_building(DDP, no_decay)


@planted_when_trained("jax single decaying", by="step weight decay")
def jax_weight_decay_left_out():
    """Optax's chain has no weight decay."""
    from dataclasses import replace

    import jax.numpy as jnp

    from jax_impl import optim

    def change(original):
        def build(spec):
            if jnp.result_type(float) == jnp.float64:
                return original(spec)
            fired()
            return original(replace(spec, weight_decay=0.0))

        return build

    replaced(optim, "build", change)


@planted_when_trained("tf single adamw")
def tf_decay_of_adamw_left_out():
    """AdamW is Adam. The decay is so large that the updates show it as well."""
    from dataclasses import replace

    from tf_impl.strategies.single import SingleDevice

    def change(program):
        fired()
        program.optimizer.spec = replace(program.optimizer.spec, weight_decay=0.0)

    after_building(SingleDevice, change)


# What is saved.


def without_optimizer(program):
    """Leave the optimizer's entries out of a saved state."""

    def change(original):
        def state(self):
            fired()
            found = original(self)
            return found and {name: array for name, array in found.items() if not name.startswith("optimizer/")}

        return state

    replaced(program, "state", change)


@planted_when_trained("torch single")
def saved_without_the_optimizer():
    """A checkpoint has no optimizer state."""
    from torch_impl.program import Program

    without_optimizer(Program)


@planted_when_trained("jax single")
def jax_saved_without_the_optimizer():
    """The same in JAX."""
    from jax_impl.program import Program

    without_optimizer(Program)


@planted_when_trained("tf single")
def tf_saved_without_the_optimizer():
    """The same in TensorFlow."""
    from tf_impl.program import Program

    without_optimizer(Program)


def without_counts(program):
    """A state without what counts updates. Its next steps are the same, as the rate changes much later."""

    def change(original):
        def state(self):
            whole = original(self)
            if whole is None:
                return None
            fired()
            return {name: array for name, array in whole.items() if name.rpartition("/")[2] not in ("updates", "count")}

        return state

    replaced(program, "state", change)


@planted_when_trained("torch ddp rarely", by="updates counted")
def saved_without_the_count():
    """A checkpoint does not say how far the schedule is."""
    from torch_impl.program import Program

    without_counts(Program)


@planted_when_trained("jax single rarely", by="updates counted")
def jax_saved_without_the_count():
    """The same in JAX."""
    from jax_impl.program import Program

    without_counts(Program)


@planted_when_trained("tf single rarely", by="updates counted")
def tf_saved_without_the_count():
    """The same in TensorFlow."""
    from tf_impl.program import Program

    without_counts(Program)


@planted_when_trained("torch ddp")
def second_moment_not_loaded():
    """Half of Adam's state is dropped when a state is loaded."""
    from torch_impl import optim

    def change(original):
        def load_state(model, optimizer, schedule, spec, arrays):
            fired()
            kept = {name: array for name, array in arrays.items() if not name.endswith("/exp_avg_sq")}
            return original(model, optimizer, schedule, spec, kept)

        return load_state

    replaced(optim, "load_state", change)


@planted_when_trained("torch ddp scheduled", by="resumed training")
def a_fresh_program_begins_with_the_first_rate():
    """A loaded state sets the rate of the next update only in an optimizer that has made updates before."""
    from torch_impl import optim

    def change(original):
        def load_state(model, optimizer, schedule, spec, arrays):
            fresh = not optimizer.state
            original(model, optimizer, schedule, spec, arrays)
            if fresh and any(array.any() for name, array in arrays.items() if name.startswith("optimizer/")):
                fired()
                optim.set_rate(optimizer, spec.learning_rate)

        return load_state

    replaced(optim, "load_state", change)


@planted_when_trained("torch single momentum", by="resumed training")
def velocities_are_saved_in_bfloat16():
    """A checkpoint has the upper half of each number, and loading it changes nothing any more."""
    from torch_impl.program import Program

    def change(found):
        for name in [name for name in found if name.startswith("optimizer/") and found[name].ndim]:
            fired()
            found[name] = (found[name].view("uint32") & 0xFFFF0000).view("float32")

    _saved(Program, change)


@planted_when_trained("torch local_sgd", by="resumed training")
def a_checkpoint_does_not_count_the_steps():
    """Workers of a loaded state believe that they have just averaged."""
    from torch_impl.strategies.local_sgd import LocalSGD

    def change(found):
        fired()
        found.pop("optimizer/steps")

    _saved(LocalSGD, change)


def _saved(owner, change):
    """`state` of a program returns what `change` makes of it, on the rank that has one."""

    def changed(original):
        def state(self):
            found = original(self)
            if found is not None:
                change(found)
            return found

        return state

    replaced(owner, "state", changed)
