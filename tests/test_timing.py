"""Throughput arithmetic, exact under a fake clock."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_result, make_spec

from harness.datasets import Batches, Step
from harness.results import rates
from harness.results.host_bound import host_bound
from harness.spec import TrainingSpec
from harness.worker import measure, step_series, timing
from harness.worker.calls import in_calls, make_steps
from harness.worker.chunks import Chunks
from harness.worker.context import StepCount
from harness.worker.draft import Draft
from harness.worker.position import Position
from harness.worker.rank_agreement import Agreement
from harness.worker.training_loop import Trainer
from harness.worker.watched_block import WatchedBlock


class FakeProgram:
    """Steps are asynchronous: they take no time until sync, which waits for all that was enqueued."""

    def __init__(self, seconds_per_step):
        self.now, self.pending, self.seconds_per_step = 100.0, 0, seconds_per_step
        self.used, self.log = [], []

    def clock(self):
        self.log.append("clock")
        return self.now

    def step(self, placed):
        self.used.append(placed)
        self.log.append("step")
        self.pending += 1

    def sync(self):
        self.log.append("sync")
        self.now += self.pending * self.seconds_per_step
        self.pending = 0

    def place(self, batch):
        return batch

    def loss(self, of=None):
        return 0.0

    def evaluate(self, placed):
        return 0.0, 0.0

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def export(self):
        return []

    def barrier(self):
        self.log.append("barrier")
        self.now += 1000.0  # waiting for others is not on the clock


def test_a_bare_block_stands_beside_each_of_the_first_now_after_it_now_before(tmp_path, monkeypatch):
    order = []

    def bare(program, resident):
        return lambda steps: order.append(("bare", steps))

    class Noting(Draft):
        def progress(self, activity, done=0, total=0, *, detail=""):
            if activity == "block":
                order.append((activity, done))

    class Watched(FakeProgram):
        def sync(self):
            if self.pending:
                order.append(("own", self.pending))
            super().sync()

    program = Watched(0.01)
    known = {"blocks": 8, "steps_per_block": 3, "curve_steps": 1, "warmup_seconds": 0, "block_seconds": 0}
    arrays = {"x": np.zeros((40, 10)), "y": np.zeros((40, 5))}
    batches = Batches(arrays, seed=0, transform=np.asarray)
    spec = make_spec(**known)
    draft = Noting(tmp_path, 0)
    monkeypatch.setattr(measure, "inspect", lambda *_: None)
    monkeypatch.setattr(measure, "watch", lambda *_: WatchedBlock())
    context: Any = SimpleNamespace(
        golden=None, made=StepCount(), runtime=SimpleNamespace(peak_bytes=lambda world: None),
        job=SimpleNamespace(world=None), spec=spec,
        dtype=np.float32,
        program=program,
        batches=batches,
        draft=draft,
        agree=Agreement(tmp_path, 0, program.barrier),
    )  # fmt: skip
    monkeypatch.setattr(measure, "time_series", lambda *_: None)
    measure.measure_resident(context, bare)
    order = order[order.index(("block", 1)) :]
    own, by_hand = ("own", 3), ("bare", 3)
    pairs = [[own, by_hand], [by_hand, own]] * 3 + [[own]] * 2
    assert order == [x for number, pair in enumerate(pairs, 1) for x in (("block", number), *pair)]
    found = draft.answer.timing
    assert found is not None
    assert (len(found.block_seconds), len(found.bare_block_seconds)) == (8, measure.BARE_BLOCKS) == (8, 6)
    assert len(found.block_starts) == 8


def time_blocks(program, **known):
    options = {"blocks": 3, "steps_per_block": 4, "clock": program.clock, "barrier": program.barrier}
    return [block.seconds for block in timing.time_blocks(program, ["a", "b", "c"], **(options | known))]


def test_blocks_are_exact_and_barriers_are_free():
    program = FakeProgram(0.25)
    assert time_blocks(program) == [1.0, 1.0, 1.0]


def test_the_start_of_a_block_is_on_the_clock_of_the_host():
    before, program = time.monotonic(), FakeProgram(0.25)
    blocks = timing.time_blocks(
        program, ["a"], blocks=3, steps_per_block=4, clock=program.clock, barrier=program.barrier
    )
    in_order = [before, *(block.start for block in blocks), time.monotonic()]
    assert in_order == sorted(in_order)


def test_work_enqueued_before_a_block_is_not_in_it():
    program = FakeProgram(0.25)
    program.pending = 100
    assert time_blocks(program)[0] == 1.0


def test_a_block_synchronizes_on_both_edges():
    program = FakeProgram(0.25)
    time_blocks(program, blocks=1, steps_per_block=2)
    assert program.log == ["sync", "barrier", "clock", "step", "step", "sync", "clock"]


def test_resident_batches_take_turns():
    program = FakeProgram(0.25)
    time_blocks(program, blocks=1, steps_per_block=4)
    assert program.used == ["a", "b", "c", "a"]


def several(program):
    """A program that can make several steps in one call."""

    def steps(batches):
        program.log.append(len(batches))
        program.used += batches
        program.pending += len(batches)
        return list(batches)

    program.steps = steps
    return program


def test_blocks_hold_calls_of_several_steps():
    program = several(FakeProgram(0.25))
    assert time_blocks(program, blocks=1, steps_per_block=6, steps_per_call=3) == [1.5]
    assert program.log == ["sync", "barrier", "clock", 3, 3, "sync", "clock"]
    assert program.used == ["a", "b", "c", "a", "b", "c"]
    time_blocks(program, blocks=1, steps_per_block=4, steps_per_call=2)
    assert program.used[6:] == ["a", "b", "c", "a"]


@pytest.mark.runs
def test_all_that_is_timed_is_whole_calls(tmp_path, monkeypatch):
    """Loss curve, pilot, warm-up and blocks; and no bare loop beside them, which makes a step in each call."""
    program = several(FakeProgram(0.01))
    spec = make_spec(
        steps_per_call=4, curve_steps=8, blocks=2, steps_per_block=6, warmup_seconds=0.1, block_seconds=0.1,
        platform="gpu",
    )  # fmt: skip
    arrays = {"x": np.zeros((40, 10)), "y": np.zeros((40, 5))}
    monkeypatch.setattr(measure, "inspect", lambda *_: None)
    monkeypatch.setattr(measure, "watch", lambda *_: WatchedBlock())
    context: Any = SimpleNamespace(
        golden=None, made=StepCount(), runtime=SimpleNamespace(peak_bytes=lambda world: None),
        job=SimpleNamespace(world=None), spec=spec, dtype=np.float32, program=program, draft=Draft(tmp_path, 0),
        batches=Batches(arrays, seed=0, transform=np.asarray), agree=Agreement(tmp_path, 0, program.barrier),
    )  # fmt: skip
    measure.measure_resident(context)
    assert "step" not in program.log
    assert {entry for entry in program.log if isinstance(entry, int)} == {4}
    found = context.draft.answer.timing
    assert context.made.steps == len(program.used)
    assert len(found.step_seconds) == len(found.call_seconds) >= step_series.CALLS[0]
    assert len(found.losses) == 8
    assert found.steps_per_block % 4 == 0
    job: Any = SimpleNamespace(optimizer=spec.optimizer)
    assert measure.bare_loop("jax_impl", spec, job) is None
    assert measure.bare_loop("jax_impl", replace(spec, steps_per_call=1), job) is not None


def test_single_calls_are_timed_until_they_return_and_until_the_devices_are_idle():
    class Launching(FakeProgram):
        def clock(self):
            self.now += 0.0625 * len(self.used)  # the host's own work
            return super().clock()

    program = several(Launching(0.25))
    program.pending = 100
    options = {"clock": program.clock, "barrier": program.barrier}
    found = timing.time_calls(program, ["a", "b", "c"], numbers=range(1, 3), steps_per_call=2, **options)
    assert found == [(0.125 + 0.5 + 0.125, 0.125), (0.25 + 0.5 + 0.25, 0.25)]
    assert program.used == ["c", "a", "b", "c"]
    once = ["clock", 2, "clock", "sync", "clock"]
    assert program.log == ["sync", "barrier", *once, *once]


@pytest.mark.parametrize(
    ("call_seconds", "known", "calls"),
    [
        (0.05, {"warmup_seconds": 5.0}, 40),
        (1e-4, {"warmup_seconds": 5.0}, 200),
        (9.0, {"warmup_seconds": 5.0}, 20),
        (9.0, {}, 5),
        (1e-4, {}, 10),
        (9.0, {"options": {"sync_every": 8}, "strategy": "local_sgd", "devices": 2}, 8),
        (9.0, {"options": {"sync_every": 8}, "strategy": "local_sgd", "devices": 2, "steps_per_call": 4}, 6),
    ],
)
def test_a_series_lasts_two_seconds_within_bounds_and_in_whole_rounds(call_seconds, known, calls):
    assert step_series.calls_of_series(make_spec(**known), call_seconds) == calls


@pytest.mark.parametrize(
    ("platform", "calls", "expected"),
    [("gpu", (0.09, 0.091, 9.0), True), ("gpu", (0.08, 0.089, 9.0), False), ("gpu", (), None), ("cpu", (9.0,), None)],
)
def test_a_launch_whose_calls_take_as_long_as_its_steps_is_host_bound(platform, calls, expected):
    result = make_result(spec=make_spec(platform=platform, devices=2), block_seconds=((0.5, 0.1), (1.0, 1.0)))
    idle, slow = (replace(rank.timing, steps_per_block=10) for rank in result.ranks if rank.timing)
    slow = replace(slow, call_seconds=calls, step_seconds=calls)
    ranks = tuple(replace(rank, timing=each) for rank, each in zip(result.ranks, (idle, slow), strict=True))
    assert host_bound(replace(result, ranks=ranks)) is expected


def steps_of(*sizes):
    """Steps with so many true samples and rows."""
    return [Step(np.arange(samples), rows) for samples, rows in sizes]


def test_a_call_has_batches_of_one_shape():
    whole, short, padded = (4, 4), (3, 3), (3, 4)  # padding adds a column to the targets
    steps = steps_of(*[whole] * 7, short, padded)
    calls = in_calls(steps, of=3)
    assert [len(call) for call in calls] == [3, 3, 1, 1, 1]
    assert [step for call in calls for step in call] == steps
    assert in_calls(steps, of=1) == [[step] for step in steps]


def test_a_program_without_several_steps_is_refused():
    with pytest.raises(RuntimeError, match="has no steps"):
        make_steps(FakeProgram(0.1), ["a", "b"])


def test_first_step_waits_for_the_devices():
    program = FakeProgram(2.0)
    program.pending = 7
    call = partial(program.step, "a")
    assert timing.time_call(program, call, clock=program.clock, barrier=program.barrier).seconds == 2.0


def test_the_slowest_rank_counts_block_by_block():
    assert rates.slowest_rank([[1.0, 4.0], [2.0, 3.0]]) == [2.0, 4.0]
    with pytest.raises(ValueError):
        rates.slowest_rank([[1.0], [1.0, 2.0]])


def test_blocks_last_as_long_as_asked():
    assert timing.steps_for(0.2, step_seconds=0.03, at_least=1) == 7
    assert timing.steps_for(0.2, step_seconds=0.03, at_least=10) == 10
    assert timing.steps_for(0.0, step_seconds=0.03, at_least=10) == 10


def test_throughput():
    assert rates.throughput(global_batch=64, steps=10, seconds=2.0) == 320.0


def test_the_second_chunk_of_a_training_is_short_but_has_several_calls(tmp_path):
    """It is replayed, and a step of 0.2 ms would else make the first chunk of several calls one of a second."""
    for per_call in (1, 4, 9, 10, 16, 32):
        chunks = Chunks(Agreement(tmp_path, 0, lambda: None), per_call=per_call, step_bytes=1)
        lengths = []
        for _ in range(3):
            lengths.append(chunks.end(0, []))
            chunks.add(2e-4 * lengths[-1], lengths[-1], counts=True)
        first, second, third = lengths
        assert first == per_call < second <= max(18, 2 * per_call) < 1000 < third
        assert second % per_call == 0


@pytest.mark.parametrize(("steps", "of", "expected"), [(10, 1, 10), (10, 4, 12), (12, 4, 12), (10, 100, 100)])
def test_blocks_hold_whole_rounds(steps, of, expected):
    assert timing.whole_rounds(steps, of=of) == expected


def trainer(program, folder, **known):
    """A training of 11 samples in batches of 2: five whole batches and a short one."""
    training = TrainingSpec(epochs=1, target_accuracy=1.0)
    spec = make_spec(global_batch=2, training=training, **known)
    arrays = {"x": np.zeros((11, 10)), "y": np.zeros((11, 5))}
    batches = Batches(arrays, seed=0, transform=np.asarray)
    context: Any = SimpleNamespace(
        spec=spec, dtype=np.float32, program=program, draft=Draft(folder, 0), batches=batches,
        job=SimpleNamespace(workload=SimpleNamespace(unit="sample")), agree=Agreement(folder, 0, program.barrier),
    )  # fmt: skip
    checks: Any = Unchecked()
    return Trainer(context, validation=batches, test=batches, position=Position(), checks=checks)


class Unchecked:
    """In place of a training's checks, of which a program that computes nothing would pass none."""

    step_updates = SimpleNamespace(starts_at=lambda checked, steps: checked)
    samples = SimpleNamespace(took=lambda kept: None)
    chunks = SimpleNamespace(
        before=lambda chunk, *, is_usual: None,
        passing=lambda placed: placed,
        after=lambda losses, *, seconds: None,
        replay=lambda chunk: False,
    )

    def choose(self, number, steps, *, made):
        return -1, set()

    def __getattr__(self, name):
        return lambda *given, **known: None


def test_a_training_makes_whole_calls_and_what_is_left_one_by_one(tmp_path):
    program = several(FakeProgram(0.25))
    trained = trainer(program, tmp_path, steps_per_call=2)
    trained.run(loader=None, folder=None)
    assert [entry for entry in program.log if entry == "step" or isinstance(entry, int)] == [2, 2, "step", "step"]
    assert [len(batch["x"]) for batch in program.used] == [2, 2, 2, 2, 2, 1]
    assert trained.position.epochs[-1].steps == 6


def test_an_input_that_ends_within_a_call_is_noticed(tmp_path):
    trained = trainer(several(FakeProgram(0.25)), tmp_path, steps_per_call=2)
    loader: Any = SimpleNamespace(epoch=lambda number: iter([{"x": [], "y": []}] * 3))
    with pytest.raises(RuntimeError, match=r"\b2 of 6\b"):
        trained.run(loader=loader, folder=None)
