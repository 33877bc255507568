"""A corpus: labelled text or images with domains, as arrays that everything downstream indexes by row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """Pixels, and the mean and deviation of each channel (of values from 0 to 1) that they are normalised by."""

    pixels: npt.NDArray[np.uint8]
    """[N, channels, size, size]"""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Corpus:
    """Labelled text, or images. Every array has a value a row; a row's number is its name everywhere else."""

    name: str
    texts: list[str]
    labels: Ints
    label_names: tuple[str, ...]
    pairs: list[str] | None = None
    images: Images | None = None
    """What stands in place of texts, which are empty strings then."""
    domains: Ints | None = None
    domain_names: tuple[str, ...] = ()
    groups: Ints | None = None
    """Rows with the same number are one thing said twice: they never cross a split."""
    held_out: npt.NDArray[np.bool_] | None = None
    """Rows that came from a test file of their own: they are test rows in every partition."""
    label_tasks: Ints | None = None
    """The domain that each label belongs to, where every domain is a task with labels of its own."""
    metrics: tuple[str, ...] = ("f1",)
    """What models are measured by on this corpus; the first is the headline."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was read, dropped or noticed, by reason; shown to the user, so that nothing is silent."""

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
        if self.images is not None:
            digest.update(repr((self.images.pixels.shape, self.images.mean, self.images.deviation)).encode())
            digest.update(self.images.pixels.tobytes())
        return digest.hexdigest()

    def content(self, row: int) -> list[bytes]:
        """What a row says, for fingerprints."""
        if self.images is not None:
            return [self.images.pixels[row].tobytes()]
        return [text.encode() for text in (self.texts[row], *((self.pairs[row],) if self.pairs else ()))]
