"""Trainings of one seed are held against each other by their epochs, and what a rank took by its content."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import make_result, make_spec
from test_training import epoch, trained

from harness import datasets
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


IMAGES = np.random.default_rng(0).standard_normal((6, 4, 5, 3)).astype(np.float32)
LABELS = np.array([3, 1, 3, 0, 9, 2])
FORM = delivered.Form((4, 5, 3))
CUBES = {(4, 4, 4): IMAGES[:, :, :4, :1] * np.arange(1, 5, dtype=np.float32), (4, 5, 3): IMAGES}
"""The shape of the second images says where their channels are; that of the first does not."""


def took(x, y, *, pairs=1):
    """What a rank took that has these samples in a batch, in so many accumulation steps."""
    parts = list(zip(np.split(x, pairs), np.split(y, pairs), strict=True))
    return delivered.read_back(parts[0] if pairs == 1 else parts, form=FORM)


def padded(x, y, *, rows):
    batch = datasets.padded({"x": x, "y": y}, rows)
    return batch["x"], batch["y"]


def test_samples_are_known_by_their_content_in_any_layout():
    expected = delivered.fingerprints(IMAGES, LABELS, form=FORM)
    assert len(set(expected)) == 6
    assert took(IMAGES, LABELS) == expected
    assert took(IMAGES.transpose(0, 3, 1, 2), LABELS.astype(np.int32), pairs=3) == expected
    assert took(IMAGES.reshape(2, 3, 4, 5, 3), LABELS.reshape(2, 3)) == expected  # stacked micro-batches
    assert took(IMAGES.reshape(6, -1), LABELS) == expected
    assert took(*padded(IMAGES, LABELS, rows=7)) == (*expected, FORM.padding)
    assert took(IMAGES[:0], LABELS[:0]) == delivered.read_back(None, form=FORM) == ()
    assert list(delivered.parts(None, "y")) == []
    assert delivered.read_back({"x": IMAGES, "y": LABELS}, form=FORM) == expected


@pytest.mark.frameworks
def test_samples_that_pytorch_holds_in_bfloat16_are_others():
    import torch

    batch = torch.from_numpy(IMAGES).bfloat16(), torch.from_numpy(LABELS)
    found, rounded = delivered.read_back(batch, form=FORM), batch[0].float().numpy()
    assert found == delivered.fingerprints(rounded, LABELS, form=FORM)
    assert not set(found) & set(delivered.fingerprints(IMAGES, LABELS, form=FORM))


@pytest.mark.parametrize("shape", CUBES)
def test_axes_and_labels_in_another_order_make_other_samples(shape):
    images, form = CUBES[shape], delivered.Form(shape)
    expected = set(delivered.fingerprints(images, LABELS, form=form))
    for layout in ((0, 1, 2, 3), (0, 3, 1, 2)):
        assert set(delivered.fingerprints(images.transpose(layout), LABELS, form=form)) == expected
    for wrong in (images.transpose(0, 2, 1, 3), images.transpose(0, 3, 2, 1), images[:, ::-1], images[:, :, ::-1]):
        assert not expected & set(delivered.fingerprints(wrong, LABELS, form=form))
    for labels in (np.roll(LABELS, 1), np.full(6, 7), LABELS[:4]):
        assert len(expected & set(delivered.fingerprints(images, labels, form=form))) <= 1  # 3 is there twice


def test_inputs_that_are_no_images_and_targets_of_several_numbers_are_paired_as_well():
    x, y = np.eye(3, dtype=np.float64), np.arange(6.0).reshape(3, 2)
    form = delivered.Form((3,), 2)
    expected = delivered.fingerprints(x, y, form=form)
    assert delivered.fingerprints(*padded(x, y, rows=5), form=form) == (*expected, form.padding, form.padding)
    assert not set(expected) & set(delivered.fingerprints(x, y[::-1] + 1, form=form))
    assert not set(expected) & set(delivered.fingerprints(np.zeros_like(x), y, form=form)) | {form.padding} & {
        *expected
    }


@pytest.mark.parametrize(
    ("ranks", "right"),
    [
        ([(IMAGES[:3], LABELS[:3]), (IMAGES[3:], LABELS[3:])], True),
        ([(IMAGES, LABELS), (IMAGES, LABELS)], True),  # a pipeline: every rank takes all
        ([(IMAGES[:3], LABELS[:3]), padded(IMAGES[3:], LABELS[3:], rows=4)], True),
        ([(IMAGES[:3], LABELS[:3]), (IMAGES[:3], LABELS[:3])], False),
        ([(IMAGES[:3], LABELS[:3])], False),
        ([(IMAGES[:3], LABELS[:3]), (IMAGES[2:], LABELS[2:])], False),
        ([(IMAGES[:3], LABELS[:3]), (IMAGES[3:] + 1, LABELS[3:])], False),
        ([(IMAGES[:3], LABELS[:3]), (IMAGES[3:], np.roll(LABELS[3:], 1))], False),
        ([(IMAGES, LABELS), (np.zeros((1, 4, 5, 3)), np.zeros(1))], False),  # a row of zeros that has a label
    ],
)
def test_all_samples_of_a_step_must_be_taken_equally_often(ranks, right):
    expected = delivered.fingerprints(IMAGES, LABELS, form=FORM)
    assert (delivered.wrong(expected, [took(*rank) for rank in ranks], padding=FORM.padding) == "") is right


def test_the_labels_of_a_step_are_known_in_any_order_and_format():
    labels = np.array([3, 1, 3, 0, 9])
    right = delivered.label_sum([labels])
    assert delivered.label_sum([labels[:2], labels[:1:-1]]) == right  # of two ranks
    assert delivered.label_sum([labels.reshape(5, 1)]) == right
    filled_up = np.array([[3, 1.2], [1, 1.2], [3, 1.2], [0, 1.2], [9, 1.2], [0, 0]], np.float32)
    assert delivered.label_sum([filled_up]) == right
    assert delivered.label_sum([np.array([2, 2, 3, 0, 9])]) != right  # whose sum is the same
    assert delivered.is_multiple(2 * right, of=right, at_most=2)
    assert not delivered.is_multiple(2 * right, of=right, at_most=1)
    assert not delivered.is_multiple(0, of=right, at_most=2)
