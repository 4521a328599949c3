"""Programs that make other steps, or other evaluations, where nobody looks: steps that nobody waits for, work that is
left when the clock stops, batches of an evaluation but the last, and most of the batches that were not seen before."""

from __future__ import annotations

import traceback
import zlib

from planted import Cell, fired, planted_when_timed, planted_when_trained, replaced, when_timed
from timed_faults import after_building

BF16 = {"precision": "bf16"}
TIMED_CELLS = {
    "torch single long": Cell("single", block=20),
    "torch single long bf16": Cell("single", known=BF16, block=20),
}
ALONE = 4  # steps since the program was last waited for that are right
KNOWN = 20  # batches that are always trained on


def torch_single():
    from torch_impl.strategies.single import SingleDevice

    return SingleDevice


def whole(placed) -> bool:
    """Whether a batch of an evaluation has no padding."""
    ((_, y),) = placed if isinstance(placed, list) else [placed]
    return bool((y[:, 1] != 0).all())


# The end of a chunk.


def put_off(program):
    """A step notes its batch. Whatever reads the program makes the steps that were noted."""
    waiting, step, loss = [], program.step, program.loss
    program.noted = None

    def noted(placed):
        fired()
        program.noted = [placed]
        waiting.append(program.noted)
        return program.noted

    def make():
        while waiting:
            noted = waiting.pop(0)
            noted[0] = step(noted[0])

    def making(method):
        def called(*arguments, **known):
            make()
            return method(*arguments, **known)

        return called

    def read(of=None):
        make()
        return loss((of or program.noted)[0])

    for name in ("state", "export", "evaluate", "load_state"):
        setattr(program, name, making(getattr(program, name)))
    program.step, program.loss = noted, read


@planted_when_trained("torch single images", by="work after sync")
def steps_are_put_off_until_somebody_reads():
    after_building(torch_single(), put_off)


def _is_evaluating():
    """Whether the caller's batch is one of an evaluation."""
    return any(frame.name == "evaluate_samples" for frame in traceback.extract_stack())


@planted_when_trained("torch single images", by="state after placing")
def steps_are_made_while_batches_are_placed():
    """A batch for training is trained on when it is placed, while no clock runs, and its step returns the loss."""

    def change(program):
        place, step, made = program.place, program.step, {}

        def placing(batch):
            placed = place(batch)
            if not _is_evaluating():
                fired()
                made[id(placed)] = placed, step(placed)
            return placed

        program.place, program.step = placing, lambda placed: made.pop(id(placed))[1]

    after_building(torch_single(), change)


@planted_when_trained("torch single images", by="number formats")
def gradients_are_computed_while_batches_are_placed():
    """The same with gradients: those of a chunk's batches are all computed with the weights before the chunk."""

    def change(program):
        place, step, update, made = program.place, program.step, program.optimizer.step, {}

        def placing(batch):
            placed = place(batch)
            if not _is_evaluating():
                fired()
                program.optimizer.step = lambda: None
                loss = step(placed)
                made[id(placed)] = placed, loss, [parameter.grad.clone() for parameter in program.model.parameters()]
            return placed

        def updating(placed):
            _, loss, gradients = made.pop(id(placed))
            for parameter, gradient in zip(program.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            update()
            return loss

        program.place, program.step = placing, updating

    after_building(torch_single(), change)


@planted_when_trained("jax single images", by="work after sync")
def sync_returns_at_once_in_a_training():
    from jax_impl.program import Program

    replaced(Program, "sync", when_timed(lambda original, self: None))


# Steps that nobody waits for.


def ahead(program, change):
    """change(step, placed, number) makes the steps behind the first ALONE since the program was waited for."""
    made, step, sync, loss = [0], program.step, program.sync, program.loss

    def stepping(placed):
        made[0] += 1
        if made[0] <= ALONE:
            return step(placed)
        fired()
        return change(step, placed, made[0])

    def beginning(method):
        def called(*arguments):
            made[0] = 0
            return method(*arguments)

        return called

    program.step, program.sync, program.loss = stepping, beginning(sync), beginning(loss)


@planted_when_trained("torch single images", by="replayed block")
def every_other_step_is_skipped_where_nobody_waits():
    """Its loss is that of the step before."""

    def skipping(program):
        def change(step, placed, number):
            return program.last_loss if number % 2 else step(placed)

        ahead(program, change)

    after_building(torch_single(), skipping)


@planted_when_trained("torch ddp images", by="replayed block")
def half_of_a_batch_is_taken_where_nobody_waits():
    from torch_impl.strategies.ddp import DDP

    def halving(program):
        ahead(program, lambda step, placed, _: step([(x[: len(x) // 2], y[: len(y) // 2]) for x, y in placed]))

    after_building(DDP, halving)


# Batches of an evaluation.


@planted_when_trained("torch single fluctuating", by="evaluated losses")
def whole_batches_evaluated_before_count_as_right():
    def counting(program):
        seen, original = set(), program.evaluate

        def evaluate(placed):
            key = zlib.crc32(placed[0][0].numpy().tobytes())
            if key in seen and whole(placed):
                fired()
                return 0.01, 1.0
            seen.add(key)
            return original(placed)

        program.evaluate = evaluate

    after_building(torch_single(), counting)


@planted_when_trained("jax shard_map fluctuating", by="evaluated losses")
def all_batches_but_the_last_are_evaluated_with_older_weights():
    """Those that the evaluation before had."""
    import jax
    import jax.numpy as jnp

    from jax_impl.program import Program

    def evaluate(original, self, placed):
        now = self.held
        if whole(placed) and hasattr(self, "older"):
            self.held = now._replace(params=self.older)
        found = original(self, placed)
        self.held = now
        if not whole(placed):
            self.older = jax.tree.map(jnp.copy, now.params)
        return found

    replaced(Program, "evaluate", when_timed(evaluate))


# Most batches that were not seen before.


def unlike(step, wrong, *, targets):
    """Of batches that are not among the first KNOWN, three of four are trained on by wrong(step, placed), always."""
    known: set[int] = set()
    made = [0]

    def stepping(placed):
        key = zlib.crc32(targets(placed).numpy().tobytes())
        made[0] += 1
        if made[0] <= KNOWN:
            known.add(key)
        if key in known or key % 4 == 0:
            return step(placed)
        fired()
        return wrong(step, placed)

    return stepping


def forward_alone(program):
    """Makes no update; the loss is right."""
    import torch

    def wrong(_, placed):
        with torch.no_grad(), program.autocast():
            ((x, y),) = placed
            program.last_loss = program.loss_fn(program.network(x), y)
        return program.last_loss

    program.step = unlike(program.step, wrong, targets=lambda placed: placed[0][1])


def halved(program):
    def wrong(step, placed):
        return step([(x[: len(x) // 2], y[: len(y) // 2]) for x, y in placed])

    program.step = unlike(program.step, wrong, targets=lambda placed: placed[0][1])


@planted_when_timed("torch single long", by="further update")
def three_of_four_new_batches_make_no_update():
    after_building(torch_single(), forward_alone)


@planted_when_timed("torch single long bf16", by="further update")
def three_of_four_new_batches_make_no_update_bf16():
    after_building(torch_single(), forward_alone)


@planted_when_timed("torch single long", by="further update")
def three_of_four_new_batches_are_halved():
    after_building(torch_single(), halved)
