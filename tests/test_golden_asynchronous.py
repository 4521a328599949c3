"""The golden reference of asynchronous SGD: by hand, against synchronous training, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from test_golden import MOMENTUM, SGD, assert_same_training, classifier_batches

from harness import workloads
from harness.layers import Linear
from harness.reference import loops
from harness.reference.asynchronous import Buffer, History, ImpossibleHistory, in_turn, replay
from harness.spec import OptimizerSpec


def test_pushes_of_one_worker_are_synchronous_training():
    workload, batches = workloads.get("classifier", "base"), classifier_batches(4)
    params = workload.init_params(0)
    replayed = replay(workload, params, batches, optimizer=MOMENTUM, history=in_turn(1, 4))
    assert_same_training(replayed, loops.train(workload, params, batches, optimizer=MOMENTUM))


def test_a_stale_push_uses_the_version_that_it_saw():
    workload, (batch,) = workloads.get("classifier", "base"), classifier_batches(1)
    params = workload.init_params(0)
    history = History((Buffer(1, (0,), (0,)), Buffer(0, (0,), (0,))))  # both saw the initial weights
    replayed = replay(workload, params, [batch], optimizer=SGD, history=history)
    # two updates by the halves' gradients are one by twice their mean
    whole = loops.train(workload, params, [batch], optimizer=OptimizerSpec(name="sgd", learning_rate=0.2))
    assert_same_training(replayed, whole)
    fresh = replay(workload, params, [batch], optimizer=SGD, history=in_turn(2, 1))
    assert any(np.abs(fresh.params[n] - replayed.params[n]).max() > 1e-5 for n in params)


def line(*points):
    """y = w x + b in two parameters, its values at the start, and a batch for each list of points (x, y)."""
    workload = replace(
        workloads.get("toy", "base"), input_shape=(1,), layers=(Linear("l", 1, 1),), blocks=("l",), default_cut=""
    )
    batches = [{"x": np.array([[x] for x, _ in batch]), "y": np.array([[y] for _, y in batch])} for batch in points]
    return workload, {"l.weight": np.zeros((1, 1)), "l.bias": np.zeros(1)}, batches


def test_buffers_of_two_workers_by_hand():
    """The gradient of (w x + b - y)^2 is 2 (w x + b - y) (x, 1); the rate is 1/4.

    Worker 0 has the points (1, 2), (1, 4), (2, 0), worker 1 (0, 2), (2, 2), (1, 1). Both push two gradients.
    - Worker 1 pushes first: -4 (0, 1) - 4 (2, 1) = (-8, -8) at (0, 0). The parameters become (2, 2).
    - Worker 0 saw (0, 0) twice: -4 (1, 1) - 8 (1, 1) = (-12, -12). The parameters become (5, 5).
    - The third gradients stay in the buffers. Worker 0 saw (5, 5): its loss is 15^2. Worker 1 saw (2, 2): 3^2.
    """
    optimizer = OptimizerSpec(name="sgd", learning_rate=0.25)
    workload, params, batches = line(
        [(1.0, 2.0), (0.0, 2.0)], [(1.0, 4.0), (2.0, 2.0)], [(2.0, 0.0), (1.0, 1.0)]
    )  # fmt: skip
    pushed = (Buffer(1, (0, 1), (0, 0)), Buffer(0, (0, 1), (0, 0)))
    history = History(pushed, (Buffer(0, (2,), (2,)), Buffer(1, (2,), (1,))))
    found = replay(workload, params, batches, optimizer=optimizer, history=history, push_every=2)
    np.testing.assert_allclose(found.losses, [(4 + 4) / 2, (16 + 4) / 2, (225 + 9) / 2], rtol=1e-14)
    np.testing.assert_allclose([found.params["l.weight"].item(), found.params["l.bias"].item()], [5, 5], rtol=1e-14)
    assert_same_arrays(found.after_first[0], found.params)  # each worker has pushed once


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-14)


def test_one_worker_that_sums_gradients_trains_on_several_batches_at_once():
    """The mean over a batch of twice the size is half of the sum, and the rate makes up for it."""
    workload, batches = workloads.get("classifier", "base"), classifier_batches(5)
    params = workload.init_params(0)
    found = replay(workload, params, batches, optimizer=SGD, history=in_turn(1, 5, push_every=2), push_every=2)
    whole = [{name: np.concatenate([a[name], b[name]]) for name in a} for a, b in (batches[:2], batches[2:4])]
    expected = loops.train(workload, params, whole, optimizer=replace(SGD, learning_rate=2 * SGD.learning_rate))
    for name, array in expected.params.items():
        np.testing.assert_allclose(found.params[name], array, atol=1e-14)
    np.testing.assert_allclose(found.losses[:4].reshape(2, 2).mean(1), expected.losses, rtol=1e-13)
    assert found.losses[4] > 0  # the last gradient is in no update, but its loss is a loss


def test_a_buffer_that_is_never_full_moves_nothing():
    workload, params, batches = line([(1.0, 2.0), (0.0, 2.0)])
    found = replay(workload, params, batches, optimizer=SGD, history=in_turn(2, 1, push_every=2), push_every=2)
    assert_same_arrays(found.params, params)
    assert_same_arrays(found.after_first[0], params)


@pytest.mark.parametrize("push_every", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_in_turn_see_all_pushes_before_their_own(workers, push_every):
    history = in_turn(workers, 4, push_every=push_every)
    taken = [(buffer.rank, step) for buffer in (*history.pushed, *history.left) for step in buffer.steps]
    assert sorted(taken) == [(rank, step) for rank in range(workers) for step in range(4)]
    assert [buffer.versions[-1] for buffer in history.pushed] == list(range(len(history.pushed)))
    assert {version for buffer in history.left for version in buffer.versions} <= {len(history.pushed)}


@pytest.mark.parametrize(
    ("pushed", "left", "push_every", "facts"),
    [
        (((0, 0),), (), 1, ["1 pushes", "in 2 steps"]),  # its second step is missing
        (((0, 0), (0, 0)), (), 1, ["[(0,), (0,)]"]),
        (((0, 0), (1, 2)), (), 1, ["push 1", "version 2"]),
        (((0, 0), (1, 0)), (), 1, ["push 1", "version 0", "1 to 1"]),  # it did not pull after its push
        (((0, 0),), ((1, 1),), 1, ["1 pushes", "2 pushes"]),  # the last gradient was kept
        (((0, 0), (1, 1)), (), 2, ["2 pushes", "of 2 steps"]),  # pushed too early
    ],
)
def test_a_history_that_cannot_be_is_refused(pushed, left, push_every, facts):
    workload = workloads.get("classifier", "base")
    history = History(*(tuple(Buffer(0, (step,), (version,)) for step, version in part) for part in (pushed, left)))
    known = {"optimizer": SGD, "history": history, "push_every": push_every}
    with refused(*facts, kind=ImpossibleHistory):
        replay(workload, workload.init_params(0), classifier_batches(2), **known)


def test_running_statistics_are_those_of_the_workers_or_of_a_server():
    """Two workers, whose weights stand still. Each moves its own statistics in each step, as the devices of a
    synchronous training do; or each push moves those on the server: worker 1 comes first."""
    workload, still = workloads.get("resnet50", "tiny"), replace(SGD, learning_rate=0.0)
    params, rng = workload.init_params(0), np.random.default_rng(0)
    batches = [
        {"x": rng.standard_normal((4, 64, 64, 3)), "y": np.eye(10)[rng.integers(0, 10, 4)]} for _ in range(2)
    ]  # fmt: skip
    pushed = (Buffer(1, (0,), (0,)), Buffer(0, (0,), (1,)), Buffer(1, (1,), (2,)), Buffer(0, (1,), (2,)))
    found = replay(workload, params, batches, optimizer=still, history=History(pushed)).running
    devices = loops.train(workload, params, batches, optimizer=still, groups=lambda count: (count // 2,) * 2).running
    for name, array in devices.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, err_msg=name)
    mean, var = np.zeros(4), np.ones(4)
    for batch in batches:
        y, _ = workload.layers[0].forward(params, batch["x"])
        for half in (y[2:].reshape(-1, 4), y[:2].reshape(-1, 4)):
            mean, var = 0.9 * mean + 0.1 * half.mean(0), 0.9 * var + 0.1 * half.var(0)
    np.testing.assert_allclose(found["server/bn1.mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["server/bn1.biased_var"], var, rtol=1e-12)


def test_what_is_left_in_a_buffer_has_moved_its_workers_statistics_but_not_the_servers():
    workload, still = workloads.get("resnet50", "tiny"), replace(SGD, learning_rate=0.0)
    params, rng = workload.init_params(0), np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((2, 64, 64, 3)), "y": np.eye(10)[:2]} for _ in range(3)]
    known = {"optimizer": still, "push_every": 2}
    found, whole = (
        replay(workload, params, batches[:count], history=in_turn(1, count, push_every=2), **known) for count in (3, 2)
    )
    one = loops.train(workload, params, batches, optimizer=still).running
    np.testing.assert_allclose(found.running["all/bn1.mean"], one["all/bn1.mean"], rtol=1e-12)
    np.testing.assert_allclose(found.running["server/bn1.mean"], whole.running["server/bn1.mean"], rtol=1e-12)
