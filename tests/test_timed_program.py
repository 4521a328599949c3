"""The rules for a program after its last timed block, on numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_spec

from harness import workloads
from harness.datasets import Batches
from harness.gate import replay, timed_curve, timed_program, trained
from harness.layers import Residual, with_rounding
from harness.layers.rounding import Rounding, rounded
from harness.reference import loops
from harness.reference.golden import Golden
from harness.spec import OptimizerSpec, Timing, optimizers
from harness.worker import after_blocks, chunk_checks
from harness.worker.rank_agreement import Agreement

SGD = OptimizerSpec(name="sgd", learning_rate=0.1)
W = {"w": np.array([3.0, 4.0])}


def golden(**known):
    given = {"initial": {"w": np.zeros(2)}, "losses": np.array([2.0, 1.0]), "after_first": (), "params": W}
    return Golden(**(given | known))


@pytest.mark.parametrize(("precision", "most"), [("fp32", 4.0), ("bf16", 1.5)])
def test_no_step_is_faster_than_a_matrix_product_allows(precision, most):
    assert timed_program.matrix_rate(precision, reached=0.99 * most, possible=1.0).passed
    assert not timed_program.matrix_rate(precision, reached=1.01 * most, possible=1.0).passed


def test_blocks_are_not_ten_times_faster_than_the_curve():
    assert timed_program.pace(of_curve=1.0, of_blocks=0.11).passed
    assert not timed_program.pace(of_curve=1.0, of_blocks=0.09).passed


@pytest.mark.parametrize(
    ("left", "passes"),
    [
        ([0.0, 0.03, 0.03], True),  # interruptions
        ([0.03, 0.03, 0.03], False),
        ([0.0, 0.0, 0.03, 0.03, 0.03, 0.03], True),
        ([0.0, 0.03, 0.03, 0.03, 0.03, 0.03], False),  # most chunks leave work
    ],
)
def test_work_is_left_after_most_chunks_of_a_wrong_training(left, passes):
    assert timed_program.work_after_chunks(left, [0.1] * len(left)).passed == passes


@pytest.mark.parametrize(("again", "further"), [((0.0, 0.0, 0.0), 10), ((0.03, 0.0, 0.0), 20), ((0.03,) * 3, 30)])
def test_a_short_training_with_interrupted_chunks_is_read_again(tmp_path, monkeypatch, again, further):
    context: Any = SimpleNamespace(
        spec=make_spec(),
        order=SimpleNamespace(checkpoint=None),
        draft=SimpleNamespace(progress=lambda _: None),
        agree=Agreement(tmp_path, 0, barrier=lambda: None),
        program=SimpleNamespace(sync=lambda: None, step=lambda _: 0.5, loss=lambda _: 0.5, place=lambda batch: batch),
        dtype=np.float32,
    )
    steps: Any = [SimpleNamespace(rows=4, chosen=range(4))] * 12
    left = iter([0.0, 0.03, 0.03, *again])  # the first chunk compiles
    monkeypatch.setattr(chunk_checks.timing, "work_left", lambda *_, **__: (None, next(left)))
    epochs: Any = SimpleNamespace(whole=lambda step, dtype: {})
    chunks = chunk_checks.ChunkChecks(context, epochs)
    for _ in range(3):
        chunks.after([0.5] * 10, seconds=0.1)
    assert chunks.read_again(steps) == further
    (check,) = chunks.checks()
    assert check.passed == (further < 30)


@pytest.mark.parametrize(("again", "passes"), [([9.0, 0.2], True), ([9.0] * (timed_program.ATTEMPTS - 1), False)])
def test_an_interrupted_curve_is_measured_again(tmp_path, again, passes):
    block = Timing(block_seconds=(1.0,), steps_per_block=10)
    context: Any = SimpleNamespace(
        draft=SimpleNamespace(rank=0, timing=block),
        agree=Agreement(tmp_path, 0, barrier=lambda: None),
    )
    measured = iter(again)
    (check,) = after_blocks.pace(context, 2.0, lambda: next(measured))
    assert check.passed == passes
    assert next(measured, None) is None


def state(*moved: float, count: int, momentum: float = 1.0):
    """The state of a program whose weights have moved by so much from 3, 4 and 5."""
    return {
        "model/w": np.array([3.0, 4.0, 5.0], np.float32) + np.array([*moved, 0, 0, 0], np.float32)[:3],
        "optimizer/w/momentum": np.full(2, momentum, np.float32),
        "optimizer/w/step": np.array(count, np.float32),
        "optimizer/count": np.array(count),
    }


BEFORE, MOVED = state(count=3), state(1.0, count=7)


def test_a_block_is_what_its_steps_are_one_by_one():
    assert replay.replayed(BEFORE, MOVED, [MOVED]).error == 0
    assert not replay.replayed(BEFORE, MOVED, [state(1.01, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(1.0, count=6)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(np.nan, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(1.0, count=7, momentum=2.0)]).passed


def test_if_two_replays_agree_in_every_bit_the_block_must_agree_with_them():
    again = state(1.005, count=7)
    assert not replay.replayed(BEFORE, MOVED, [again, dict(again)]).passed


def test_replays_that_must_agree_do_not_say_what_rounding_does():
    unlike = [state(1.0, 0.01, count=7), state(1.0, 0.01001, count=7)]
    assert not replay.replayed(BEFORE, MOVED, unlike, exact=True).passed
    assert replay.replayed(BEFORE, MOVED, [MOVED], exact=True).passed


def test_two_replays_say_how_much_rounding_does_to_a_block():
    """An activation that flips in one run and not in another is a step of 1e-2, and two replays may miss it."""
    assert replay.replayed(BEFORE, MOVED, [state(1.0, 0.01, count=7), state(1.0, 0.01001, count=7)]).passed
    assert replay.replayed(BEFORE, MOVED, [state(0.99, 0.02, count=7, momentum=1.5), state(1.0, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(1.1, count=7), state(1.1001, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(1.0, 0.2, count=7), state(1.0, 0.2001, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(1.001, count=6), state(1.002, count=6)]).passed


def test_of_a_chaotic_block_the_size_of_the_movement_is_judged():
    """Noise of 14% would ask for a tolerance of 70%."""
    assert replay.replayed(BEFORE, MOVED, [state(0.8, 0.6, count=7), state(0.8, -0.6, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(0.76, 0.57, count=7), state(0.76, -0.57, count=7)]).passed
    assert not replay.replayed(BEFORE, MOVED, [state(0.8, 0.6, count=6), state(0.8, -0.6, count=6)]).passed


def resumed(*runs, **known):
    """The check of a training that moved by 1, resumed in these runs, on two GPUs unless said otherwise."""
    before, straight, *again = ([{"w": each["model/w"]}] for each in (BEFORE, MOVED, *runs))
    spec = make_spec(**{"platform": "gpu"} | known)
    (check,) = trained.compare_again(before, straight, again, spec=spec, how="anew")
    return check


def test_two_runs_from_a_saved_state_say_how_much_rounding_does():
    def ran(*moved):
        return state(*moved, count=7)

    assert resumed(ran(1.04)).passed and not resumed(ran(1.06)).passed
    assert not resumed(ran(1.04), platform="cpu").passed
    assert resumed(ran(1.0, 0.06), ran(1.0, 0.08)).passed  # any two runs may be off by 10%
    assert not resumed(ran(1.0, 0.2), ran(1.0, 0.2)).passed  # what is lost each time
    assert resumed(ran(0.8, 0.6), ran(0.8, -0.6)).passed  # directions are noise, and the size is right
    assert not resumed(ran(0.4, 0.3), ran(0.4, -0.3)).passed
    assert not resumed(ran(np.nan), ran(np.nan)).passed
    assert not resumed(ran(np.nan), ran(1.2)).passed


def test_the_shortest_wait_after_sync_counts():
    assert timed_program.work_after_sync([0.5, 0.01, 0.4], block=1.0).passed
    assert not timed_program.work_after_sync([0.5, 0.03, 0.4], block=1.0).passed
    assert timed_program.work_after_sync([0.009], block=0.001).passed  # too short to tell


def test_replicas_may_not_differ():
    assert timed_program.replicas_apart(W, W, rank=1).passed
    assert not timed_program.replicas_apart({"w": np.array([3.0, 4.0001])}, W, rank=1).passed
    equal = {"bias": np.ones(1)}  # the first of several tensors, with which a NaN compares as no larger
    lost = {"w": np.array([3.0, np.nan])}
    assert not timed_program.replicas_apart(equal | lost, equal | W, rank=1).passed


@pytest.mark.parametrize("name", ["optimizer/updates", "optimizer/fc.weight/step", "optimizer/0/count"])
def test_every_count_of_updates_is_read(name):
    constant = make_spec().optimizer
    scheduled = optimizers.parse("sgd:schedule=step,step_size=9", constant)
    for optimizer in (constant, scheduled):
        assert timed_program.updates_counted({name: np.array([7])}, 7, optimizer).passed
        assert not timed_program.updates_counted({name: np.array(6)}, 7, optimizer).passed
    assert timed_program.updates_counted({"model/steps": np.array(6)}, 7, constant).passed
    assert not timed_program.updates_counted({"model/steps": np.array(7)}, 7, scheduled).passed  # nothing counts


def test_a_further_step_moves_and_is_not_judged_if_rounding_swallows_it():
    (still,), (moved,) = (timed_program.moves([W], [w], SGD, range(7, 8)) for w in (W, {"w": W["w"] + 1e-3}))
    assert moved.passed and not still.passed
    assert timed_program.moves([W], [W], replace(SGD, learning_rate=1e-9), range(7, 8)) == []


def test_a_step_after_the_end_of_a_schedule_moves_nothing():
    over = replace(SGD, schedule="cosine", total_steps=50)
    assert timed_program.moves([W], [W], over, range(50, 51)) == []
    for rule, updates in ((over, range(49, 51)), (replace(over, total_steps=60), range(50, 51))):
        (still,) = timed_program.moves([W], [W], rule, updates)
        assert not still.passed


def test_a_further_loss_is_relative_to_itself_or_to_the_first():
    spec = make_spec()
    assert timed_program.further_loss(spec, found=1.00001, expected=1.0, first=2.0).passed
    assert not timed_program.further_loss(spec, found=1.001, expected=1.0, first=2.0).passed
    assert timed_program.further_loss(spec, found=1.5e-6, expected=1e-6, first=2.0).passed
    assert not timed_program.further_loss(spec, found=float("nan"), expected=1.0, first=2.0).passed
    short = make_spec(precision="bf16")  # in which a network that knows its batches by heart computes little of a loss
    assert timed_program.further_loss(short, found=2e-3, expected=1e-3, first=1.0).passed
    assert not timed_program.further_loss(short, found=1.03, expected=1.0, first=1.0).passed
    assert not timed_program.further_loss(short, found=0.02, expected=0.01, first=1.0).passed


def test_a_training_that_stands_still_is_off_by_one():
    still, curve = [{"w": np.zeros(2)}], [2.0, 2.0]
    checks = timed_curve.compare(golden(), losses=curve, replicas=still, precision="fp32")
    assert {check.quantity: check.error for check in checks} == {
        "timed losses": 1.0, "timed movement": 1.0, "timed parameters": 1.0,
    }  # fmt: skip
    assert not any(check.passed for check in checks)


def test_a_rate_that_is_a_percent_off_is_found_by_the_size_of_the_movement():
    """One tensor that turned would hide it."""
    more = [{"w": 1.01 * np.array([3.0, 4.0])}]
    checks = timed_curve.compare(golden(), losses=[2.0, 1.0], replicas=more, precision="fp32")
    assert [check.quantity for check in checks if not check.passed] == ["timed movement"]


def test_noise_widens_tolerances_up_to_a_limit():
    def allowed(noise):
        return timed_curve.tolerances(golden(noise={"timed parameters": noise}), "fp32").parameters

    assert [allowed(noise) for noise in (0.0, 0.05, 10.0)] == [0.2, 0.25, 0.6]


def test_where_directions_are_noise_sizes_are_judged():
    turned = {"w": np.array([-4.0, 3.0])}
    chaotic = golden(noise={"timed parameters": 1.0})
    assert all(
        check.passed for check in timed_curve.compare(chaotic, losses=[2.0, 1.0], replicas=[turned], precision="bf16")
    )
    for wrong in ({"w": np.zeros(2)}, {"w": np.array([30.0, 40.0])}):
        checks = timed_curve.compare(chaotic, losses=[2.0, 1.0], replicas=[wrong], precision="bf16")
        assert {check.quantity for check in checks if not check.passed} >= {"timed movement"}


def test_one_tensor_that_stands_still_is_found_among_directions_that_are_noise():
    two = golden(
        initial={"a": np.zeros(2), "b": np.zeros(2)},
        params={"a": np.array([3.0, 4.0]), "b": np.array([0.03, 0.04])},
        noise={"timed parameters": 1.0},
    )
    replica = {"a": np.array([4.0, 3.0]), "b": np.zeros(2)}
    checks = timed_curve.compare(two, losses=[2.0, 1.0], replicas=[replica], precision="bf16")
    assert [check.quantity for check in checks if not check.passed] == ["timed tensor movement"]


def test_asynchronous_workers_may_go_further_but_not_less_far():
    def passed(factor):
        return all(check.passed for check in timed_curve.compare_stale(golden(), replicas=[{"w": factor * W["w"]}]))

    assert passed(3.0)
    assert passed(0.8)
    assert not passed(0.5)


@pytest.mark.parametrize(("bits", "step"), [(8, 2**-7), (11, 2**-10), (24, 2**-23)])
def test_rounding_is_to_the_nearest(bits, step):
    assert rounded(np.array([1 + step, 1 + 0.4 * step, -1 - 0.6 * step]), bits=bits).tolist() == [
        1 + step,
        1.0,
        -1 - step,
    ]


def test_rounding_to_24_bits_is_float32s():
    values = np.random.default_rng(0).standard_normal(1000)
    assert np.array_equal(rounded(values, bits=24), values.astype(np.float32).astype(np.float64))


def test_a_training_that_rounds_at_random_widens_a_tolerance_less():
    initial = {"w": np.zeros(4)}
    exact, near, far = (
        Golden(initial=initial, losses=np.array([2.0, 1.0]), after_first=(), params={"w": np.full(4, 1.0 + off)})
        for off in (0, 0.1, 0.3)
    )
    alone, both = timed_curve.with_noise(exact, near), timed_curve.with_noise(exact, near, at_random=[far, exact])
    assert alone.noise["timed parameters"] == pytest.approx(0.1)
    wide = timed_curve.tolerances(both, "bf16").parameters
    assert wide == pytest.approx(max(timed_curve.FACTOR_AT_RANDOM * 0.3, timed_curve.FACTOR * 0.1))
    assert timed_curve.tolerances(alone, "bf16").parameters == pytest.approx(timed_curve.FACTOR * 0.1)


def test_a_training_that_rounds_at_random_does_not_turn_off_the_check_of_single_tensors():
    initial = {"w": np.zeros(4)}
    exact, near, far = (
        Golden(initial=initial, losses=np.array([2.0, 1.0]), after_first=(), params={"w": np.full(4, 1.0 + off)})
        for off in (0, 0.01, 0.9)
    )
    golden = timed_curve.with_noise(exact, near, at_random=[far])
    checks = timed_curve.compare(golden, losses=[2.0, 1.0], replicas=[{"w": np.full(4, -1.0)}], precision="bf16")
    assert {check.quantity for check in checks if not check.passed} == {"timed parameters"}


def test_rounding_at_random_goes_to_either_neighbour_and_is_right_on_average():
    values = np.full(20000, 1 + 0.25 * 2**-7)
    found = rounded(values, bits=8, dice=np.random.default_rng(0))
    assert set(found) == {1.0, 1 + 2**-7}
    assert np.mean(found) == pytest.approx(values[0], abs=2**-7 * 0.01)
    exact = np.array([0.0, 1.0, -1.5, 2.0**-30])
    assert np.array_equal(rounded(exact, bits=8, dice=np.random.default_rng(0)), exact)


def off(exact, precision):
    """How far the first loss of a network that rounds is from the exact one, relative."""
    batches = Batches(exact.load("train", None), seed=0, transform=exact.transform)
    params, batch = exact.init_params(0), batches.batch(0, 4)
    rounding = replace(exact, layers=with_rounding(exact.layers, precision))
    return abs(loops.mean_loss(rounding, params, batch) / loops.mean_loss(exact, params, batch) - 1)


def test_a_network_that_rounds_leaves_the_exact_one_by_the_precision():
    deep = workloads.get("resnet50", "tiny")
    assert off(deep, "fp64") < 1e-12
    assert 1e-10 < off(deep, "fp32") < 1e-5
    assert 1e-5 < off(deep, "bf16") < 0.2


def test_residual_blocks_round_within():
    deep = workloads.get("resnet50", "tiny")
    inner = [layer for layer in with_rounding(deep.layers, "bf16") if isinstance(layer, Residual)]
    assert inner
    assert all(isinstance(part, Rounding) for block in inner for part in (*block.body, *block.shortcut))
