"""Image corpora: every published form read back, scaled and held out; what is said of broken files; the store."""

import gzip
import os
import pickle
import struct
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.images import IMAGES, _scaled, load
from fedstill.data.corpus import Corpus, Images
from fedstill.data.images import SHIFT, ImageStore

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def pictures(many: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (many, *shape), np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The bytes of an idx file, as LeCun's page describes it."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, train: str, test: str, zipped: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """14 training and 6 test images; all pixels [20, 28, 28] and labels, as written."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = pictures(20, GREY)[:, 0], np.arange(20, dtype=np.uint8) % 10
    for name, rows in ((train, slice(14)), (test, slice(14, 20))):
        for file, array in (("images-idx3", pixels[rows]), ("labels-idx1", labels[rows])):
            raw = idx(array)
            path = folder / f"{name}-{file}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(raw) if zipped else raw)
    return pixels, labels


def write_fashion(folder: Path, zipped: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return write_idx(folder, "train", "t10k", zipped)


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Five batches of three and a test batch of five, in the binary version."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = pictures(20, COLOUR), np.arange(20, dtype=np.uint8) % 10
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, rows in zip(names, np.split(np.arange(20), [3, 6, 9, 12, 15]), strict=True):
        records = [bytes([labels[row]]) + pixels[row].tobytes() for row in rows]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    return pixels, labels


def python2_pickle(pixels: np.ndarray, key: str, labels: list[int]) -> bytes:
    """A batch as Python 2's cPickle wrote it: protocol 2, strings of bytes, numpy's old module names."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + kind + b"\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key.encode()) + numbers + b"u."


def held_out(corpus: Corpus) -> list[bool]:
    assert corpus.held_out is not None
    return corpus.held_out.tolist()


# What there is


def test_labels_means_and_deviations_fit_each_other():
    many = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100, "emnist": 47, "emnist-byclass": 62}
    assert {name: len(set(kind.labels)) for name, kind in IMAGES.items()} == many
    assert all(len(kind.mean) == len(kind.deviation) == kind.shape[0] for kind in IMAGES.values())
    assert IMAGES["cifar100"].labels == tuple(sorted(IMAGES["cifar100"].labels))
    assert "".join(IMAGES["emnist"].labels[36:]) == "abdefghnqrt"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(FedstillError, match=r"no images called 'cifar'. Did you mean cifar10\? There are digits, "):
        load("cifar", None)


def test_tiny_images_are_refused():
    with pytest.raises(FedstillError, match="7x7 pixels are too small; set `size:` to 8 or more"):
        load("digits", None, size=7)


# Digits


def test_digits_need_no_files_and_hold_nothing_out():
    corpus = load("digits", None, size=8)
    assert corpus.images.pixels.shape == (1797, 1, 8, 8)
    assert corpus.images.pixels.max() == 255
    assert corpus.held_out is None
    assert corpus.groups is None
    assert corpus.texts == [""] * 1797
    assert np.bincount(corpus.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert corpus.metrics == ("accuracy", "f1")
    assert corpus.counts == {"rows read": 1797}


def test_digits_have_the_mean_and_deviation_that_are_written_down():
    pixels = load("digits", None).images.pixels / 255
    assert pixels.shape == (1797, 1, 28, 28)
    assert IMAGES["digits"].mean == (round(pixels.mean(), 4),)
    assert IMAGES["digits"].deviation == (round(pixels.std(), 4),)


def test_digits_take_no_folder(tmp_path):
    with pytest.raises(FedstillError, match="leave its `path:` out"):
        load("digits", tmp_path)


# Idx files


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["", "fashion", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_plain_or_zipped_here_or_below(tmp_path, below, zipped):
    pixels, labels = write_fashion(tmp_path / below, zipped)
    corpus = load("fashion-mnist", tmp_path)
    assert np.array_equal(corpus.images.pixels, pixels[:, None])
    assert corpus.labels.tolist() == labels.tolist()
    assert corpus.labels.dtype == np.int64
    assert held_out(corpus) == [False] * 14 + [True] * 6
    assert corpus.label_names[9] == "ankle boot"
    assert corpus.counts == {"rows read": 20}


@pytest.mark.parametrize(("name", "split"), [("emnist", "balanced"), ("emnist-byclass", "byclass")])
def test_emnist_is_turned_upright(tmp_path, name, split):
    pixels, _ = write_idx(tmp_path / "gzip", f"emnist-{split}-train", f"emnist-{split}-test", zipped=True)
    corpus = load(name, tmp_path)
    assert np.array_equal(corpus.images.pixels[:, 0], pixels.swapaxes(1, 2))
    assert corpus.images.pixels[3, 0, 5, 11] == pixels[3, 11, 5]


def test_images_are_scaled_by_averaging_neighbours(tmp_path):
    pixels, labels = np.full((20, 28, 28), 60, np.uint8), np.zeros(20, np.uint8)
    pixels[0, :, 14:] = 200
    for name, rows in (("train", slice(14)), ("t10k", slice(14, 20))):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(pixels[rows]))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels[rows]))
    small = load("fashion-mnist", tmp_path, size=14).images.pixels
    assert small.shape == (20, 1, 14, 14)
    assert small.dtype == np.uint8
    assert np.all(small[1:] == 60)
    # At half the size a pixel weighs the 4 pixels around it 1, 3, 3, 1; beside the edge one of the eighths is across.
    assert small[0, 0, 7].tolist() == [60] * 6 + [78, 182] + [200] * 6


def test_scaling_in_pieces_is_scaling_at_once():
    pixels = pictures(5000, (1, 8, 8))
    assert np.array_equal(_scaled(pixels, 12)[4990:], _scaled(pixels[4990:], 12))


@pytest.mark.parametrize(
    ("file", "raw", "complaint"),
    [
        (
            "train-images-idx3-ubyte",
            idx(pictures(14, GREY)[:, 0])[:-1],
            "10,975 bytes where its header says 14 x 28 x 28",
        ),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03\0\0", "6 bytes, less than a header: it was cut short"),
        ("train-images-idx3-ubyte", idx(np.zeros((14, 784), np.uint8)), "not an idx file of 3 dimensions"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((14, 27, 28), np.uint8)),
            "images of 1 x 27 x 28, and 1 x 28 x 28 are",
        ),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(7, np.uint8)), "6 images and .*t10k-labels-idx1-ubyte 7 labels"),
        ("t10k-labels-idx1-ubyte", idx(np.full(6, 10, np.uint8)), "labels from 0 to 9, and these go from 10 to 10"),
        ("t10k-labels-idx1-ubyte", b"", "0 bytes, less than a header"),
    ],
)
def test_a_broken_idx_file_is_one_sentence(tmp_path, file, raw, complaint):
    write_fashion(tmp_path)
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(FedstillError, match=complaint):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:40], lambda raw: b"no gzip", lambda raw: raw[:20] + b"\xff" * 9])
def test_a_broken_zip_is_one_sentence(tmp_path, damage):
    write_fashion(tmp_path, zipped=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FedstillError, match=r"idx3-ubyte\.gz holds a broken gzip stream: it was cut short or damaged"):
        load("fashion-mnist", tmp_path)


def test_a_split_without_images_is_refused(tmp_path):
    write_fashion(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 28, 28), np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with pytest.raises(FedstillError, match="A split of fashion-mnist holds no images"):
        load("fashion-mnist", tmp_path)


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(FedstillError, match="absent is not a folder; set `path:` to the one that holds emnist's files"):
        load("emnist", tmp_path / "absent")
    write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FedstillError, match=r"has no t10k-labels-idx1-ubyte \(or t10k-labels-idx1-ubyte.gz\); fashion"):
        load("fashion-mnist", tmp_path)


# CIFAR


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_cifar10_is_read_from_its_binary_batches_in_order(tmp_path, below):
    pixels, labels = write_cifar10(tmp_path / below)
    corpus = load("cifar10", tmp_path, size=32)
    assert np.array_equal(corpus.images.pixels, pixels)
    assert corpus.labels.tolist() == labels.tolist()
    assert held_out(corpus) == [False] * 15 + [True] * 5
    assert load("cifar10", tmp_path).images.pixels.shape == (20, 3, 28, 28)


def test_cifar100_has_its_fine_labels(tmp_path):
    pixels = pictures(4, COLOUR)
    for name, rows in (("train", (0, 1, 2)), ("test", (3,))):
        raw = b"".join(bytes([row, 90 + row]) + pixels[row].tobytes() for row in rows)
        (tmp_path / f"{name}.bin").write_bytes(raw)
    corpus = load("cifar100", tmp_path, size=32)
    assert np.array_equal(corpus.images.pixels, pixels)
    assert [corpus.label_names[label] for label in corpus.labels] == ["train", "trout", "tulip", "turtle"]
    assert held_out(corpus) == [False, False, False, True]


def test_a_truncated_batch_is_one_sentence(tmp_path):
    write_cifar10(tmp_path)
    file = tmp_path / "data_batch_4.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FedstillError, match=r"data_batch_4\.bin holds 9,218 bytes, which is no number of whole images"):
        load("cifar10", tmp_path)
    file.unlink()
    with pytest.raises(
        FedstillError, match=r"has no data_batch_4\.bin \(or data_batch_4\); cifar10 needs data_batch_1"
    ):
        load("cifar10", tmp_path)


def write_pickles(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = pictures(6, COLOUR), np.arange(6)
    for name, rows in (("train", slice(4)), ("test", slice(4, 6))):
        (folder / name).write_bytes(
            python2_pickle(pixels[rows].reshape(-1, 3072), "fine_labels", labels[rows].tolist())
        )
    return pixels, labels


def test_the_python_version_is_read_too(tmp_path):
    pixels, labels = write_pickles(tmp_path / "cifar-100-python")
    corpus = load("cifar100", tmp_path, size=32)
    assert np.array_equal(corpus.images.pixels, pixels)
    assert corpus.labels.tolist() == labels.tolist()


class Malice:
    def __reduce__(self):
        return (os.mkdir, ("harm",))


def test_a_pickle_that_would_run_code_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pickles(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": Malice()}, protocol=2))
    with pytest.raises(FedstillError, match=r"train asks for (posix|nt)\.mkdir, .* it was not opened"):
        load("cifar100", tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "no whole pickled batch"),
        (python2_pickle(pictures(2, COLOUR).reshape(2, -1), "fine_labels", [0, 1])[:-3000], "no whole pickled batch"),
        (python2_pickle(pictures(2, COLOUR).reshape(2, -1), "labels", [0, 1]), r"no whole pickled batch \(KeyError\)"),
        (python2_pickle(np.zeros((2, 784), np.uint8), "fine_labels", [0, 1]), "images of 784, and 3 x 32 x 32 are"),
        (python2_pickle(pictures(2, COLOUR).reshape(2, -1), "fine_labels", [0]), "2 images and 1 labels"),
    ],
)
def test_a_broken_pickle_is_one_sentence(tmp_path, raw, complaint):
    write_pickles(tmp_path)
    (tmp_path / "train").write_bytes(raw)
    with pytest.raises(FedstillError, match=complaint):
        load("cifar100", tmp_path)


# The Hub


def hub(tmp_path: Path, monkeypatch, name: str, pixels: np.ndarray, labels: list[int]) -> None:
    """A data set as the Hub keeps it, a file a split, in place of the real one; the last image is the test split."""
    datasets = pytest.importorskip("datasets")
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    image, label = IMAGES[name].hub_columns
    features = datasets.Features({image: datasets.Image(), label: datasets.Value("int64")})
    (tmp_path / "hub").mkdir()
    for split, rows in (("train", slice(-1)), ("test", slice(-1, None))):
        shown = [pillow.fromarray(picture.transpose(1, 2, 0).squeeze()) for picture in pixels[rows]]
        data = datasets.Dataset.from_dict({image: shown, label: labels[rows]}, features)
        data.to_parquet(str(tmp_path / "hub" / f"{split}.parquet"))
    monkeypatch.setitem(IMAGES, name, replace(IMAGES[name], hub=str(tmp_path / "hub")))


@pytest.mark.parametrize(("name", "shape"), [("fashion-mnist", GREY), ("cifar10", COLOUR), ("cifar100", COLOUR)])
def test_the_hub_gives_the_same_images_labels_and_splits(tmp_path, monkeypatch, name, shape):
    pixels = pictures(3, shape)
    hub(tmp_path, monkeypatch, name, pixels, [9, 0, 4])
    corpus = load(name, None, size=shape[1])
    assert np.array_equal(corpus.images.pixels, pixels)
    assert corpus.labels.tolist() == [9, 0, 4]
    assert held_out(corpus) == [False, False, True]


def test_images_of_another_shape_on_the_hub_are_refused(tmp_path, monkeypatch):
    hub(tmp_path, monkeypatch, "cifar10", pictures(3, (3, 32, 30)), [9, 0, 4])
    with pytest.raises(
        FedstillError, match=r"\(split train\) holds images of 3 x 32 x 30, and 3 x 32 x 32 are published"
    ):
        load("cifar10", None)


def test_emnist_is_taken_from_the_hub_as_the_original_files(tmp_path, monkeypatch):
    pixels, _ = write_idx(tmp_path, "emnist-balanced-train", "emnist-balanced-test", zipped=True)
    asked = {}

    def snapshot(name: str, **settings: object) -> str:
        asked.update(settings, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert np.array_equal(load("emnist", None).images.pixels[:, 0], pixels.swapaxes(1, 2))
    assert asked["name"] == "Heliosoph/EMNIST"
    assert asked["repo_type"] == "dataset"
    assert sorted(asked["allow_patterns"]) == sorted(file.name for file in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist"])
def test_without_the_hub_a_folder_is_asked_for(monkeypatch, tmp_path, name):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    complaint = rf"{IMAGES[name].hub} .* could not be loaded: .*; FEDSTILL_OFFLINE is set\. .* with `path:`"
    with pytest.raises(FedstillError, match=complaint):
        load(name, None)


def test_a_missing_extra_is_answered_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedstillError, match=r'run `pip install "fedstill\[datasets\]"`, or give a file or folder'):
        load("cifar10", None)


# The store


@pytest.fixture
def store() -> ImageStore:
    """Six images of three channels, 28x28, without a black pixel."""
    return ImageStore(Images(pictures(6, (3, 28, 28)) | 1, (0.5, 0.25, 0.4), (0.5, 0.1, 0.2)))


def test_a_batch_is_normalised_channel_by_channel():
    pixels = np.array([[[[0, 255]], [[51, 102]]]], np.uint8)
    batch = ImageStore(Images(pixels, (0.5, 0.2), (0.25, 0.1))).batch(np.array([0]))
    assert list(batch) == ["pixels"]
    # (0 - 0.5) / 0.25, (1 - 0.5) / 0.25; 51 is 0.2 of 255 and 102 is 0.4
    assert torch.allclose(batch["pixels"], torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]]), atol=1e-6)


def test_only_training_crops_and_the_seed_decides_how(store):
    rows = np.array([4, 1, 1])
    still = store.batch(rows)["pixels"]
    assert torch.equal(still, store.batch(rows)["pixels"])
    assert torch.equal(still[1], still[2])
    torch.manual_seed(5)
    moved = store.batch(rows, training=True)["pixels"]
    assert not torch.equal(moved, still)
    assert not torch.equal(moved, store.batch(rows, training=True)["pixels"])
    torch.manual_seed(5)
    assert torch.equal(moved, store.batch(rows, training=True)["pixels"])


def test_a_crop_is_the_image_moved_by_at_most_the_shift_over_an_empty_border(store):
    border = round(SHIFT * 28)
    assert border == 2
    torch.manual_seed(0)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (store.images.mean, store.images.deviation))
    seen = set()
    for _ in range(40):
        normalised = store.batch(np.array([3]), training=True)["pixels"][0]
        crop = ((normalised * deviation + mean) * 255).round().to(torch.uint8).numpy()
        wide = np.zeros((3, 28 + 2 * border, 28 + 2 * border), np.uint8)
        wide[:, border:-border, border:-border] = store.images.pixels[3]
        shifts = [(y, x) for y in range(5) for x in range(5) if np.array_equal(crop, wide[:, y : y + 28, x : x + 28])]
        assert len(shifts) == 1
        seen.update(shifts)
    assert {y for y, _ in seen} == {x for _, x in seen} == set(range(5))
