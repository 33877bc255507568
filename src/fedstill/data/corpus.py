"""A corpus: labelled text or images with domains, as arrays that the rest of the package indexes by row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """Pixels, and each channel's mean and standard deviation (of values from 0 to 1), used to normalise them."""

    pixels: npt.NDArray[np.uint8]
    """[N, channels, size, size]"""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Corpus:
    """Labelled text or images. Every array has one value per row; everything else refers to a row by its number."""

    name: str
    texts: list[str]
    labels: Ints
    label_names: tuple[str, ...]
    pairs: list[str] | None = None
    images: Images | None = None
    """For a corpus of images; its texts are empty strings."""
    domains: Ints | None = None
    domain_names: tuple[str, ...] = ()
    groups: Ints | None = None
    """Rows with the same number have the same content: a partition never separates them."""
    held_out: npt.NDArray[np.bool_] | None = None
    """Rows that came from a separate test file: they are test rows in every partition."""
    validating: npt.NDArray[np.bool_] | None = None
    """Rows that came from a separate validation file: they are validation rows in every partition."""
    label_tasks: Ints | None = None
    """Where every domain is a task with its own labels: the domain of each label."""
    metrics: tuple[str, ...] = ("f1",)
    """The metrics for this corpus; the first is the headline metric."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows were read, dropped or noticed, by reason; shown to the user."""
    notices: tuple[str, ...] = ()
    """What the user should know about the labels."""

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> str:
        """sha256 over texts or images, pairs, labels and their names, in order."""
        digest = hashlib.sha256(repr((self.label_names, self.domain_names)).encode())
        for text in (*self.texts, *(self.pairs or ())):
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        for array in (self.labels, self.domains, self.groups, self.held_out):
            digest.update(b"-" if array is None else array.tobytes())
        if self.validating is not None:
            digest.update(self.validating.tobytes())
        if self.images is not None:
            digest.update(repr((self.images.pixels.shape, self.images.mean, self.images.deviation)).encode())
            digest.update(self.images.pixels.tobytes())
        return digest.hexdigest()

    def content(self, row: int) -> list[bytes]:
        """A row's content, for fingerprints."""
        if self.images is not None:
            return [self.images.pixels[row].tobytes()]
        return [text.encode() for text in (self.texts[row], *((self.pairs[row],) if self.pairs else ()))]
