"""Trainings of one seed are held against each other by their epochs, and what a rank took by its content."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import make_result, make_spec
from test_training import epoch, trained

from harness.reporting import summary
from harness.results import epoch_agreement
from harness.session import command
from harness.spec import TrainingSpec
from harness.worker import delivered


def training(strategy, *losses, **known):
    """A training of which the epochs have these mean losses."""
    epochs = [epoch(0, 0, 0.1)]
    epochs += [replace(epoch(number, 1.0, 0.8), train_loss=loss) for number, loss in enumerate(losses, 1)]
    return trained(*epochs, strategy=strategy, **known)


def test_of_three_the_one_that_is_off_fails(tmp_path):
    results = [training("single", 2.0, 1.0), training("ddp", 2.0, 1.0001), training("fsdp", 2.0, 1.2)]
    found = epoch_agreement.disagreements([[result] for result in results])
    assert set(found) == {2}
    assert (found[2].step, found[2].of, found[2].peers) == (1, "epoch", 3)
    assert found[2].distance == pytest.approx(0.1, rel=0.01)
    assert [cell.status for cell in summary.summarize(results)] == ["ok", "ok", "disagrees"]
    assert command.Finished(results=results, folder=tmp_path).exit_code == 1


def test_of_two_both_fail():
    results = [training("single", 2.0, 1.0), training("ddp", 2.0, 1.2)]
    assert set(epoch_agreement.disagreements([[result] for result in results])) == {0, 1}


@pytest.mark.parametrize(
    "known", [{"training": {"last_batch": "drop"}}, {"training": {"validation_share": 0.2}}, {"launch": 0}]
)
def test_only_trainings_on_the_same_samples_are_compared(known):
    results = [training("single", 2.0, 1.0), training("ddp", 2.0, 1.5, **known)]
    together = bool(epoch_agreement.disagreements([[result] for result in results]))
    assert together is ("training" not in known)


def test_timed_runs_and_asynchronous_trainings_have_no_epochs_to_compare():
    spec = make_spec(algorithm="asynchronous", training=TrainingSpec(epochs=1, target_accuracy=0.9))
    assert not epoch_agreement.comparable(make_result())
    assert not epoch_agreement.comparable(replace(training("single", 2.0, 1.0), spec=spec))


IMAGES = np.random.default_rng(0).standard_normal((6, 4, 4, 3)).astype(np.float32)
SHAPE = (4, 4, 3)
NOTHING, *_ = delivered.fingerprints(np.zeros((1, *SHAPE)), input_shape=SHAPE)


def took(x, *, pairs=1):
    """What a rank took that has these inputs in a batch, in so many accumulation steps."""
    parts = [(part, np.zeros(len(part))) for part in np.split(x, pairs)]
    return delivered.read_back(parts[0] if pairs == 1 else parts, input_shape=SHAPE)


def test_samples_are_known_by_their_content_in_any_layout():
    expected = delivered.fingerprints(IMAGES, input_shape=SHAPE)
    assert len(set(expected)) == 6
    assert took(IMAGES) == expected
    assert took(IMAGES.transpose(0, 3, 1, 2), pairs=3) == expected
    assert delivered.read_back(None, input_shape=SHAPE) == ()
    assert list(delivered.parts(None, "y")) == []
    assert delivered.read_back({"x": IMAGES, "y": None}, input_shape=SHAPE) == expected


@pytest.mark.parametrize(
    ("ranks", "right"),
    [
        ([IMAGES[:3], IMAGES[3:]], True),
        ([IMAGES, IMAGES], True),  # a pipeline: every rank takes all
        ([IMAGES[:3], np.concatenate([IMAGES[3:], np.zeros((1, *SHAPE), np.float32)])], True),  # padding
        ([IMAGES[:3], IMAGES[:3]], False),
        ([IMAGES[:3]], False),
        ([IMAGES[:3], IMAGES[2:]], False),
        ([IMAGES[:3], IMAGES[3:] + 1], False),
    ],
)
def test_all_samples_of_a_step_must_be_taken_equally_often(ranks, right):
    expected = delivered.fingerprints(IMAGES, input_shape=SHAPE)
    assert (delivered.wrong(expected, [took(x) for x in ranks], padding=NOTHING) == "") is right


def test_the_labels_of_a_step_are_known_in_any_order_and_format():
    labels = np.array([3, 1, 3, 0, 9])
    right = delivered.label_sum([labels])
    assert delivered.label_sum([labels[:2], labels[:1:-1]]) == right  # of two ranks
    assert delivered.label_sum([labels.reshape(5, 1)]) == right
    padded = np.array([[3, 1.2], [1, 1.2], [3, 1.2], [0, 1.2], [9, 1.2], [0, 0]], np.float32)
    assert delivered.label_sum([padded]) == right
    assert delivered.label_sum([np.array([2, 2, 3, 0, 9])]) != right  # whose sum is the same
    assert delivered.is_multiple(2 * right, of=right, at_most=2)
    assert not delivered.is_multiple(2 * right, of=right, at_most=1)
    assert not delivered.is_multiple(0, of=right, at_most=2)
