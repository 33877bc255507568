"""Image corpora: scikit-learn's digits, and FashionMNIST, EMNIST and CIFAR from their original files or the Hub."""

from __future__ import annotations

import difflib
import gzip
import math
import pickle
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import offline
from fedstill.data.corpora.embedded import Embedded
from fedstill.data.corpora.files import hub_dataset
from fedstill.data.corpus import Corpus, Images, Ints

Pixels = npt.NDArray[np.uint8]
"""[N, channels, height, width]"""

SMALLEST = 8


class Part(NamedTuple):
    """The images of a training or a test split, as published, and their labels."""

    pixels: Pixels
    labels: Ints


@dataclass(frozen=True)
class ImageCorpus:
    """What a corpus is, how it is normalised, and where it is found."""

    what: str
    licence: str
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    shape: tuple[int, int, int]
    """Channels, height and width, as published."""
    hub: str = ""
    """Its id on the Hugging Face Hub."""
    hub_columns: tuple[str, str] = ("image", "label")
    """Empty strings where the Hub has the original files."""
    folders: tuple[str, ...] = ()
    """Folders below the user's folder where the files may be too."""
    files: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The files of the training and of the test split: images and labels (idx), or batches (CIFAR)."""
    is_transposed: bool = False
    """Whether rows and columns of the published images are exchanged."""


_NO_LICENCE = "no licence stated: read, never redistribute"
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_MERGED = "cijklmopsuvwxyz"
"""Small letters that have the same class as their capitals in EMNIST's balanced split."""

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm"""


def _idx(train: str, test: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, second = ((f"{name}-images-idx3-ubyte", f"{name}-labels-idx1-ubyte") for name in (train, test))
    return first, second


def _emnist(split: str, what: str, labels: str) -> ImageCorpus:
    return ImageCorpus(
        what,
        _NO_LICENCE,
        tuple(labels),
        (0.1736,),
        (0.3317,),
        (1, 28, 28),
        hub="Heliosoph/EMNIST",
        hub_columns=("", ""),
        folders=("gzip", "EMNIST/raw"),
        files=_idx(f"emnist-{split}-train", f"emnist-{split}-test"),
        is_transposed=True,
    )


IMAGES: dict[str, ImageCorpus] = {
    "digits": ImageCorpus(
        "1,797 handwritten digits, 8x8 and grey, that come with scikit-learn",
        "CC BY 4.0 (UCI, optical recognition of handwritten digits)",
        tuple(string.digits),
        (0.3053,),
        (0.3246,),
        (1, 8, 8),
    ),
    "fashion-mnist": ImageCorpus(
        "70,000 articles of clothing, 28x28 and grey",
        "MIT",
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        (0.2860,),
        (0.3530,),
        (1, 28, 28),
        hub="zalando-datasets/fashion_mnist",
        folders=("fashion", "data/fashion", "FashionMNIST/raw"),
        files=_idx("train", "t10k"),
    ),
    "cifar10": ImageCorpus(
        "60,000 photographs of animals and vehicles, 32x32 in colour",
        _NO_LICENCE,
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        (3, 32, 32),
        hub="uoft-cs/cifar10",
        hub_columns=("img", "label"),
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        files=(tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)),
    ),
    "cifar100": ImageCorpus(
        "60,000 photographs of 100 kinds of things, 32x32 in colour",
        _NO_LICENCE,
        tuple(_CIFAR100.split()),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        (3, 32, 32),
        hub="uoft-cs/cifar100",
        hub_columns=("img", "fine_label"),
        folders=("cifar-100-binary", "cifar-100-python"),
        files=(("train",), ("test",)),
    ),
    "emnist": _emnist(
        "balanced",
        "131,600 handwritten characters in 47 classes of one size (EMNIST balanced), 28x28 and grey",
        "".join(letter for letter in _CHARACTERS if letter not in _MERGED),
    ),
    "emnist-byclass": _emnist(
        "byclass",
        "814,255 handwritten characters in 62 classes (EMNIST by class), 28x28 and grey",
        _CHARACTERS,
    ),
}

CORPORA = {
    name: Embedded(kind.what, kind.licence, kind.labels, frozenset({"size", "path"} if kind.hub else {"size"}))
    for name, kind in IMAGES.items()
}


def load(name: str, folder: Path | None, size: int = 28) -> Corpus:
    """A corpus of images, scaled to size x size; those of a test file are held out."""
    if name not in IMAGES:
        near = difflib.get_close_matches(name, IMAGES, n=1, cutoff=0.0)[0]
        raise FedstillError(f"There are no images called {name!r}. Did you mean {near}? There are {', '.join(IMAGES)}.")
    if size < SMALLEST:
        raise FedstillError(f"Images of {size}x{size} pixels are too small; set `size:` to {SMALLEST} or more.")
    kind = IMAGES[name]
    parts = [_checked(part, name) for part in _read(name, kind, folder)]
    pixels = np.concatenate([_scaled(part.pixels, size) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    held_out = np.arange(len(labels)) >= len(parts[0].labels)
    return Corpus(
        name=name,
        texts=[""] * len(labels),
        labels=labels,
        label_names=kind.labels,
        images=Images(pixels, kind.mean, kind.deviation),
        held_out=held_out if len(parts) > 1 else None,
        metrics=("accuracy", "f1"),
        counts={"rows read": len(labels)},
    )


def _read(name: str, kind: ImageCorpus, folder: Path | None) -> list[Part]:
    """The training split and, where there is one, the test split."""
    if name == "digits":
        if folder is not None:
            raise FedstillError("digits comes with scikit-learn; leave its `path:` out.")
        return [_digits()]
    if folder is None and all(kind.hub_columns):
        return [_hub_split(kind, split) for split in ("train", "test")]
    if folder is None:
        folder = _hub_files(name, kind)
    if not folder.is_dir():
        raise FedstillError(
            f"{folder} is not a folder; set `path:` to the one that holds {name}'s files, or leave it out to take them "
            "from the Hugging Face Hub."
        )
    read = _read_cifar if name.startswith("cifar") else _read_idx
    return [read(name, kind, folder, names) for names in kind.files]


def _checked(part: Part, name: str) -> Part:
    classes = len(IMAGES[name].labels)
    if not len(part.labels):
        raise FedstillError(f"A split of {name} holds no images; download it again.")
    if not 0 <= part.labels.min() <= part.labels.max() < classes:
        raise FedstillError(
            f"{name} has labels from 0 to {classes - 1}, and these go from {part.labels.min()} to "
            f"{part.labels.max()}; check that `path:` leads to {name} and not to another corpus."
        )
    return part


def _scaled(pixels: Pixels, size: int) -> Pixels:
    if pixels.shape[2:] == (size, size):
        return pixels
    scaled = np.empty((*pixels.shape[:2], size, size), np.uint8)
    step = 4096  # not all images at once, because floats take four times the memory of bytes
    for start in range(0, len(pixels), step):
        some = torch.tensor(pixels[start : start + step]).float()
        some = interpolate(some, (size, size), mode="bilinear", antialias=True)
        scaled[start : start + step] = some.round().clamp(0, 255).to(torch.uint8).numpy()
    return scaled


def _digits() -> Part:
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None]
    return Part(pixels, found.target.astype(np.int64))


def _find(name: str, kind: ImageCorpus, folder: Path, file: str, endings: Sequence[str]) -> Path:
    """A file of this name with one of these endings, in the folder or in one of the publisher's folders below it."""
    for below in ("", *kind.folders):
        for ending in endings:
            if (path := folder / below / f"{file}{ending}").is_file():
                return path
    needed = ", ".join(needed for split in kind.files for needed in split)
    raise FedstillError(
        f"{folder} has no {file}{endings[0]}{''.join(f' (or {file}{ending})' for ending in endings[1:])}; {name} needs "
        f"{needed} as published, in that folder or in {' or '.join(kind.folders)} below it."
    )


def _read_idx(name: str, kind: ImageCorpus, folder: Path, names: Sequence[str]) -> Part:
    images, labels = (_find(name, kind, folder, file, ("", ".gz")) for file in names)
    pixels, numbers = _idx_array(images, 3), _idx_array(labels, 1)
    if pixels.shape[1:] != kind.shape[1:]:
        raise _wrong_shape(images, kind, (1, *pixels.shape[1:]))
    if len(pixels) != len(numbers):
        raise FedstillError(
            f"{images} holds {len(pixels):,} images and {labels} {len(numbers):,} labels; take both from one download."
        )
    if kind.is_transposed:
        pixels = np.ascontiguousarray(pixels.transpose(0, 2, 1))
    return Part(pixels[:, None], numbers.astype(np.int64))


def _idx_array(path: Path, dimensions: int) -> Pixels:
    """The data of an idx file, after a header: two zeros, the type (8: bytes), how many dimensions, each in 32 bits."""
    raw = _bytes(path)
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise _cut_short(path, f"{len(raw)} bytes, less than a header")
    if raw[:4] != bytes((0, 0, 8, dimensions)):
        raise FedstillError(f"{path} is not an idx file of {dimensions} dimensions of bytes; download it again.")
    shape = np.frombuffer(raw, ">u4", dimensions, offset=4).tolist()
    if len(raw) - start != math.prod(shape):
        raise _cut_short(path, f"{len(raw) - start:,} bytes where its header says {' x '.join(map(str, shape))}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _bytes(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _cut_short(path, "a broken gzip stream") from error


def _read_cifar(name: str, kind: ImageCorpus, folder: Path, names: Sequence[str]) -> Part:
    batches = []
    for file in names:
        path = _find(name, kind, folder, file, (".bin", ""))
        batches.append(_cifar_binary(path, name, kind) if path.suffix == ".bin" else _cifar_pickle(path, name, kind))
    return Part(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def _cifar_binary(path: Path, name: str, kind: ImageCorpus) -> Part:
    """Records of a label (CIFAR-100: a coarse and a fine one) and the pixels, channel by channel."""
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    before = 2 if name == "cifar100" else 1
    record = before + math.prod(kind.shape)
    if not len(raw) or len(raw) % record:
        raise _cut_short(path, f"{len(raw):,} bytes, which is no number of whole images of {record:,} bytes")
    records = raw.reshape(-1, record)
    return Part(records[:, before:].reshape(-1, *kind.shape), records[:, before - 1].astype(np.int64))


def _cifar_pickle(path: Path, name: str, kind: ImageCorpus) -> Part:
    try:
        with path.open("rb") as file:
            # The published files were written by Python 2, whose strings are bytes.
            found = _OnlyArrays(file, encoding="latin1").load()
        pixels, labels = found["data"], found["fine_labels" if name == "cifar100" else "labels"]
        numbers = np.array(labels, np.int64).reshape(-1)
    except FedstillError as error:
        raise FedstillError(f"{path} {error}") from error
    except Exception as error:  # a broken pickle can raise nearly anything
        raise _cut_short(path, f"no whole pickled batch ({type(error).__name__})") from error
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (math.prod(kind.shape),):
        raise _wrong_shape(path, kind, np.shape(pixels)[1:])
    if len(pixels) != len(numbers):
        raise FedstillError(f"{path} holds {len(pixels):,} images and {len(numbers):,} labels; download it again.")
    return Part(pixels.reshape(-1, *kind.shape), numbers)


class _OnlyArrays(pickle.Unpickler):
    """Opens only the classes that a batch of CIFAR needs, because a pickle can name any function to be run."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 renamed its modules; the published files have the old names.
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in _IN_A_BATCH:
            return _IN_A_BATCH[name]
        raise FedstillError(
            f"asks for {module}.{name}, which no published batch does; it was not opened. "
            "Download the binary version (*.bin) from the publisher."
        )


_IN_A_BATCH = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np.empty(0).__reduce__()[0]}


def _cut_short(path: Path, what: str) -> FedstillError:
    return FedstillError(f"{path} holds {what}: it was cut short or damaged; download it again.")


def _wrong_shape(source: Path | str, kind: ImageCorpus, shape: Sequence[int]) -> FedstillError:
    found, expected = (" x ".join(map(str, sizes)) for sizes in (shape, kind.shape))
    return FedstillError(
        f"{source} holds images of {found or 'no shape'}, and {expected} are published; download it again."
    )


def _hub_split(kind: ImageCorpus, split: str) -> Part:
    """A split of a Hub data set whose rows are an image and the number of its class."""
    image, label = kind.hub_columns
    mode = "RGB" if kind.shape[0] == 3 else "L"
    data = hub_dataset(kind.hub, None, split)
    try:
        labels = np.array(data[label], np.int64)
        pictures = [np.asarray(row[image].convert(mode)) for row in data]
    except Exception as error:  # a missing column, or one of Pillow's errors, which depend on its version
        raise _not_had(kind, f" (split {split})", error) from error
    for picture in pictures:
        if picture.shape[:2] != kind.shape[1:]:
            raise _wrong_shape(f"{kind.hub} (split {split})", kind, (kind.shape[0], *picture.shape[:2]))
    pixels = np.stack(pictures).reshape(len(pictures), *kind.shape[1:], kind.shape[0]).transpose(0, 3, 1, 2)
    return Part(np.ascontiguousarray(pixels), labels)


def _hub_files(name: str, kind: ImageCorpus) -> Path:
    """The folder with the original files, downloaded from the Hub."""
    import huggingface_hub

    wanted = [f"{file}.gz" for names in kind.files for file in names]
    try:
        folder = huggingface_hub.snapshot_download(
            kind.hub, repo_type="dataset", allow_patterns=wanted, local_files_only=bool(offline())
        )
    except Exception as error:  # which errors the Hub's client raises depends on its version
        raise _not_had(kind, f" ({name})", error) from error
    return Path(folder)


def _not_had(kind: ImageCorpus, which: str, error: Exception) -> FedstillError:
    switch = offline()
    reason = str(error).strip().partition("\n")[0].rstrip(".") + (f"; {switch} is set" if switch else "")
    return FedstillError(
        f"The data set {kind.hub}{which} could not be loaded: {reason}. Check the connection, or give the folder of "
        "the original files with `path:`."
    )
