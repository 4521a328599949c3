"""Programs that one call from the initial weights shows, with the optimizer as the blocks left it; and what the watched
block shows besides: steps that are put off, or made only where the state is read."""

from __future__ import annotations

import time
from dataclasses import replace

from after_block_faults import CURVE
from planted import Cell, fired, firing, planted_when_timed, replaced
from timed_faults import after_building, before_each_update, no_decay, statistics_move_by

FAST = "sgd:learning_rate=0.05,momentum=0.5"  # after some 30 steps, gradients are larger than at the start

TIMED_CELLS = {
    "torch async_sgd deep": Cell("async_sgd", workload="resnet50"),
    "tf parameter_server deep": Cell("parameter_server", workload="resnet50"),
    "torch single adamw": Cell("single", known={"optimizer": "adamw:weight_decay=0.01"}),
    "torch ddp nesterov": Cell("ddp", known={"optimizer": "sgd:momentum=0.9,nesterov=true"}),
    "torch single for a while": Cell("single", block=60),
    "torch single for a moment": Cell("single", block=20),
    "torch single deep with decay": Cell(
        "single", workload="resnet50", known={"optimizer": "sgd:momentum=0.9,weight_decay=0.0001"}
    ),
    "torch single deep in bf16": Cell("single", workload="resnet50", known={"precision": "bf16"}),
    "torch pipeline deep": Cell("pipeline", workload="resnet50", options={"micro_batches": "2"}),
    "torch average_gradients fast": Cell("average_gradients", known={"optimizer": FAST}, block=40),
    "jax shard_map fast": Cell("shard_map", known={"optimizer": FAST}, block=40),
    "jax jit_sharding adamw": Cell("jit_sharding", known={"optimizer": "adamw:weight_decay=0.01"}),
    "jax pmap adam": Cell("pmap", known={"optimizer": "adam"}),
    "jax shard_map deep": Cell("shard_map", workload="resnet50"),
    "jax fsdp adagrad": Cell("fsdp", known={"optimizer": "adagrad"}),
    "tf mirrored adamw": Cell("mirrored", known={"optimizer": "adamw:weight_decay=0.01"}),
    "tf single adam several": Cell("single", known={"optimizer": "adam", "steps_per_call": 4}, block=4),
    "tf single deep": Cell("single", workload="resnet50"),
}


def _single():
    from torch_impl.strategies import single

    return single.SingleDevice


def _parameters(program):
    return [held for group in program.optimizer.param_groups for held in group["params"]]


@planted_when_timed("torch single adamw", by="further")
def adamw_does_not_decay():
    """The weight decay is dropped. In 20 steps it moves the weights by a few percent of the update."""
    after_building(_single(), no_decay)


@planted_when_timed("torch single deep with decay", by="further weight decay")
def a_small_decay_is_dropped():
    """The same with a decay of 1e-4, which is lost in the noise of a deep network's gradients."""
    adamw_does_not_decay()


@planted_when_timed("torch single deep with decay", by="further weight decay")
def a_small_decay_is_dropped_where_numpy_is_too_slow():
    """The same in a network whose gradients NumPy cannot afford."""
    from harness.worker import further_call

    further_call.AFFORDABLE = 0.0
    adamw_does_not_decay()


@planted_when_timed("torch single deep in bf16", by="further direction")
def gradients_are_in_another_order_in_bf16():
    """At the ends of blocks, as where a memory format is taken for another one. Float64 may have other formats."""

    def plant(program):
        def permuted(gradient):
            fired()
            return gradient.permute(0, 2, 3, 1).reshape(gradient.shape)

        def watch(module, given, output):
            if output.requires_grad and str(output.dtype) == "torch.bfloat16":
                output.register_hook(permuted)

        for name, module in program.model.named_modules():
            if name.startswith("layer") and name.count(".") == 1:
                module.register_forward_hook(watch)

    after_building(_single(), plant)


@planted_when_timed("torch average_gradients fast", by="update on")
def large_gradients_are_clipped():
    """Clipping that somebody left in. Gradients at the initial weights are not large enough to be clipped."""
    from torch_impl.strategies import average_gradients

    def change(program):
        import torch

        if torch.nn.utils.clip_grad_norm_(_parameters(program), 1.0) > 1.0:
            fired()

    before_each_update(average_gradients.AverageGradients, change)


@planted_when_timed("torch single adam", by="further update")
def half_of_the_layers_learn_for_twenty_five_updates():
    """Gradients of the first parameters are zero once Adam has counted to 25."""

    def change(program):
        held = _parameters(program)
        if program.optimizer.state[held[0]].get("step", 0) > CURVE + 5:
            fired()
            for parameter in held[: len(held) // 2]:
                parameter.grad.zero_()

    before_each_update(_single(), change)


@planted_when_timed("torch single for a while", by="further update")
def a_batch_is_known_by_its_contents():
    """A batch that was seen three times gets the gradients of the third time."""
    known = {}

    def wrong(original, self, placed):
        key = float(placed[0][0].sum())
        seen, gradients = known.get(key, (0, []))
        known[key] = seen + 1, gradients
        self.known_gradients = gradients if seen >= 3 else None
        loss = original(self, placed)
        if seen == 2:
            known[key] = 3, [parameter.grad.clone() for parameter in _parameters(self)]
        return loss

    def change(program):
        if getattr(program, "known_gradients", None):
            fired()
            for parameter, gradient in zip(_parameters(program), program.known_gradients, strict=True):
                parameter.grad.copy_(gradient)

    replaced(_single(), "step", _unmarked(wrong))
    before_each_update(_single(), change)


def _unmarked(wrong):
    """As `when_timed`, but `wrong` says by itself when it fires."""

    def change(original):
        def method(self, *arguments):
            right = self.job.precision == "fp64"
            return original(self, *arguments) if right else wrong(original, self, *arguments)

        return method

    return change


@planted_when_timed("torch ddp nesterov", by="further update")
def gradients_lose_their_last_bits():
    """Each rank rounds its averaged gradients to bfloat16, beside the program: no operator of it has that format."""
    from torch_impl.strategies import ddp

    def change(program):
        fired()
        for parameter in _parameters(program):
            kept = parameter.grad.detach().numpy().view("uint32")
            kept += 0x8000
            kept &= 0xFFFF0000

    before_each_update(ddp.DDP, change)


@planted_when_timed("torch single deep", by="further statistics")
def running_statistics_stand_still():
    """BatchNorm's running statistics keep all of themselves in each step."""

    after_building(_single(), statistics_move_by(0.0))


@planted_when_timed("torch pipeline deep", by="kept statistics")
def each_micro_batch_moves_the_statistics_as_a_step_does():
    """Two micro-batches keep 0.9 of the running statistics each, instead of 0.9 together."""
    from torch_impl.strategies import pipeline

    after_building(pipeline.Pipeline, statistics_move_by(0.1))


@planted_when_timed("torch async_sgd deep", by="kept statistics")
def running_statistics_of_asynchronous_workers_stand_still():
    """Each worker's keep all of themselves in each step."""
    from torch_impl.strategies import async_sgd

    after_building(async_sgd.AsyncSGD, statistics_move_by(0.0))


@planted_when_timed("tf parameter_server deep", by="kept statistics")
def pushes_move_the_statistics_too_far():
    """By a fifth more than the momentum says."""
    from tf_impl.strategies.parameter_server import ParameterServer

    def change(original):
        def push(self, gradients, changes):
            fired()
            original(self, gradients, [1.2 * each for each in changes] if self.job.precision != "fp64" else changes)

        return push

    replaced(ParameterServer, "push", change)


@planted_when_timed("jax shard_map deep", by="further statistics")
def jax_throws_new_running_statistics_away():
    """The step returns the running statistics that it was given."""
    from jax_impl.strategies import shard_map

    def change(original):
        def make_step(job):
            step = original(job)
            if job.precision == "fp64":
                return step

            def wrong(state, x, y):
                fired()
                new, loss = step(state, x, y)
                return new._replace(batch_stats=state.batch_stats), loss

            return wrong

        return make_step

    replaced(shard_map, "make_step", change)


@planted_when_timed("jax jit_sharding adamw", by="further")
def jax_adamw_does_not_decay():
    """The same in Optax."""
    from jax_impl import optim

    replaced(optim, "build", lambda original: firing(lambda spec: original(replace(spec, weight_decay=0.0))))


@planted_when_timed("jax shard_map fast", by="update on")
def jax_clips_large_gradients():
    """The same in Optax. In float64, too."""
    import optax

    from jax_impl import optim

    def change(original):
        return firing(lambda spec: optax.chain(optax.clip_by_global_norm(1.0), original(spec)))

    replaced(optim, "build", change)


@planted_when_timed("jax pmap adam", by="further update")
def jax_adam_guards_epsilon():
    """An epsilon of at least that of the number format, which is another one in float32 alone."""
    from jax_impl import optim

    replaced(optim, "build", lambda original: firing(lambda spec: original(replace(spec, epsilon=1.2e-7))))


@planted_when_timed("jax pmap adam", by="further update")
def jax_adam_forgets_more():
    """The second moment forgets ten times as much, which changes the first updates by little."""
    from jax_impl import optim

    replaced(optim, "build", lambda original: firing(lambda spec: original(replace(spec, beta2=0.99))))


@planted_when_timed("tf mirrored adamw", by="further")
def tf_adamw_does_not_decay():
    """The same in the suite's optimizer for TensorFlow."""
    from tf_impl import optim

    def change(original):
        def init(self, spec, *arguments, **known):
            fired()
            return original(self, replace(spec, weight_decay=0.0), *arguments, **known)

        return init

    replaced(optim.Optimizer, "__init__", change)


@planted_when_timed("torch single for a moment", by="work after sync")
def steps_are_put_off():
    """Nine of ten steps wait until a loss is asked for by its step, or the weights are. `sync` leaves them."""
    owner = _single()

    def make_all(self):
        for placed, handle in self.__dict__.pop("put_off", []):
            fired()
            time.sleep(1e-2)  # so that a test need not wait for a long block
            handle.copy_(step(self, placed))

    step = owner.step

    def lazy(original, self, placed):
        import torch

        self.asked = getattr(self, "asked", 0) + 1
        if self.asked <= CURVE or self.asked % 10 == 1:
            return original(self, placed)
        handle = torch.zeros(())
        self.__dict__.setdefault("put_off", []).append((placed, handle))
        return handle

    def first_make_all(original):
        def method(self, *arguments):
            if arguments[:1] != (None,):
                make_all(self)
            return original(self, *arguments)

        return method

    def loss(original):
        def method(self, of=None):
            if of is not None:
                make_all(self)
            return original(self, of)

        return method

    replaced(owner, "step", _unmarked(lazy))
    for name in ("state", "load_state", "export"):
        replaced(owner, name, first_make_all)
    replaced(owner, "loss", loss)


@planted_when_timed("torch single for a moment", by="watched")
def all_steps_are_made_only_where_the_state_is_read():
    """After the curve, three of four steps are left out, except between reading a state and reading a loss. There they
    take longer."""
    owner = _single()

    def wrong(original, self, placed):
        self.asked = getattr(self, "asked", 0) + 1
        is_watched = getattr(self, "watched", False)
        if self.asked > CURVE and self.asked % 4 and not is_watched:
            fired()
            return self.last_loss
        start = time.perf_counter()
        loss = original(self, placed)
        if self.asked > CURVE and is_watched:
            # far longer than a step of a busy host, and not so long that the launch runs out of time
            time.sleep(min(0.4, max(0.1, 4 * (time.perf_counter() - start))))
        return loss

    def watched(original):
        def method(self, *arguments):
            self.watched = True
            return original(self, *arguments)

        return method

    def loss(original):
        def method(self, of=None):
            self.watched = self.__dict__.get("watched", False) and of is not None
            return original(self, of)

        return method

    replaced(owner, "step", _unmarked(wrong))
    for name in ("state", "load_state"):
        replaced(owner, name, watched)
    replaced(owner, "loss", loss)
