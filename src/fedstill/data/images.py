"""The image store: pixels as bytes, memory-mapped; normalised when a batch is made, shifted at random in training."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import cache_folder
from fedstill.data.corpus import Images, Ints

SHIFT = 1 / 14
"""The largest random shift, as a share of the image's size: two pixels of 28."""


@dataclass(frozen=True)
class ImageStore:
    """Images for a model: every channel with mean 0 and standard deviation 1, in training cropped at random."""

    images: Images

    @classmethod
    def read(cls, folder: Path) -> ImageStore:
        """A store that `store_images` made."""
        try:
            pixels = open_memmap(folder / "pixels.npy", mode="r")
            scale = json.loads((folder / "scale.json").read_text())
        except (OSError, ValueError) as error:
            raise FedstillError(
                f"the image store {folder} is missing or damaged: start the run again to make a new one."
            ) from error
        return cls(Images(pixels, tuple(scale["mean"]), tuple(scale["deviation"])))

    @cached_property
    def lengths(self) -> Ints:
        """The same for all rows."""
        return np.ones(len(self.images.pixels), np.int64)

    def batch(self, rows: Ints, training: bool = False) -> dict[str, Tensor]:
        """These images, normalised; in training each is a random crop of the image with an empty border."""
        pixels = self.images.pixels[rows]
        if training:
            pixels = _cropped(pixels)
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (self.images.mean, self.images.deviation))
        return {"pixels": (torch.from_numpy(pixels).float() / 255 - mean) / deviation}


def _cropped(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Every image moved by up to `SHIFT` in each direction; drawn by torch's generator, so that runs are repeatable."""
    many, _, height, width = pixels.shape
    border = max(1, round(SHIFT * height))
    padded = np.pad(pixels, ((0, 0), (0, 0), (border, border), (border, border)))
    top, left = torch.randint(0, 2 * border + 1, (2, many)).numpy()
    down = (top[:, None] + np.arange(height))[:, None, :, None]
    across = (left[:, None] + np.arange(width))[:, None, None, :]
    channels = np.arange(pixels.shape[1])[None, :, None, None]
    cropped: npt.NDArray[np.uint8] = padded[np.arange(many)[:, None, None, None], channels, down, across]
    return cropped


def store_images(images: Images, key: str) -> Path:
    """The folder of these images, made now unless it exists; `key` is their fingerprint."""
    folder = cache_folder() / "images" / key[:32]
    if (folder / "scale.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        np.save(scratch / "pixels.npy", images.pixels)
        (scratch / "scale.json").write_text(json.dumps({"mean": images.mean, "deviation": images.deviation}))
        try:
            os.replace(scratch, folder)
        except OSError:  # another process was faster and made the same store
            if not (folder / "scale.json").exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
