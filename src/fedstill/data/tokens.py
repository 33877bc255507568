"""The token store: each text is tokenised once per tokenizer, into flat arrays from which batches are made.

A store is a folder of three arrays (ids, offsets, and token types for pairs), named by its content and memory-mapped,
so that worker processes share one copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import cache_folder
from fedstill.data.corpus import Ints

Encoded = tuple[npt.NDArray[np.int32], Ints, npt.NDArray[np.uint8] | None]
"""The ids of all texts in one array, where each text starts (and the last one ends), token types or None."""

AT_ONCE = 2000
"""Texts in one call of a tokenizer."""


class Tokenizer(Protocol):
    """Turns text into ids; each party has its own."""

    pad_id: int

    @property
    def vocabulary(self) -> int:
        """The number of different ids."""

    @property
    def fingerprint(self) -> str:
        """Different for tokenizers that give different ids."""

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Encoded:
        """The ids of every text (or pair), at most `max_length` each with special tokens."""

    def save(self, folder: Path) -> None:
        """Write the files that are needed to load it again."""


@dataclass
class TokenStore:
    """Tokenised texts as flat arrays; `batch` reads any rows of them without a Python loop over tokens."""

    ids: npt.NDArray[np.int32]
    offsets: Ints
    types: npt.NDArray[np.uint8] | None
    pad_id: int = 0
    pads_left: bool = False

    @classmethod
    def read(cls, folder: Path) -> TokenStore:
        """A store that `store_tokens` made, memory-mapped."""
        arrays = _read(folder)
        if arrays is None:
            raise FedstillError(
                f"the token store {folder} is missing or damaged: start the run again to make a new one."
            )
        return cls(*arrays)

    def pad_as(self, pad_id: int, pads_left: bool) -> None:
        """Set how the model needs its batches padded."""
        self.pad_id, self.pads_left = pad_id, pads_left

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Ints:
        """The number of tokens of every text."""
        return np.diff(self.offsets)

    def batch(self, rows: Ints, training: bool = False) -> dict[str, npt.NDArray[np.int64]]:
        """The ids, mask and types of these texts, padded to the longest of them; the same in training."""
        starts, lengths = self.offsets[rows], self.lengths[rows]
        width = max(1, int(lengths.max()))
        columns = np.arange(width)[None, :]
        if self.pads_left:
            columns = columns - (width - lengths)[:, None]
        mask = (columns >= 0) & (columns < lengths[:, None])
        where = np.where(mask, starts[:, None] + columns, 0)
        ids = (
            self.ids if len(self.ids) else np.zeros(1, np.int32)
        )  # only empty texts, for a tokenizer that adds nothing
        batch = {
            "input_ids": np.where(mask, ids[where], self.pad_id).astype(np.int64),
            "attention_mask": mask.astype(np.int64),
        }
        if self.types is not None:
            batch["token_type_ids"] = np.where(mask, self.types[where], 0).astype(np.int64)
        return batch


def store_tokens(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    max_length: int,
    key: str,
    where: Path | None = None,
) -> Path:
    """The folder of these texts' tokens, made now unless it exists, below `where` or in the user's cache.

    `key` is a fingerprint of the texts.
    """
    name = hashlib.sha256(f"1/{tokenizer.fingerprint}/{max_length}/{key}".encode()).hexdigest()[:32]
    folder = (where or cache_folder() / "tokens") / name
    arrays = _read(folder)
    if arrays is None:
        _write(folder, _encode(tokenizer, texts, pairs, max_length))
    return folder


def _encode(tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Encoded:
    """All texts, some at a time: a signal is heard only between two calls of a tokenizer."""
    parts = [slice(start, start + AT_ONCE) for start in range(0, len(texts), AT_ONCE)] or [slice(0)]
    found = [tokenizer.encode(texts[part], None if pairs is None else pairs[part], max_length) for part in parts]
    lengths = np.concatenate([[0], *(np.diff(offsets) for _, offsets, _ in found)])
    types = [types for _, _, types in found if types is not None]
    return (
        np.concatenate([ids for ids, _, _ in found]),
        np.cumsum(lengths, dtype=np.int64),
        np.concatenate(types) if types else None,
    )


def _read(folder: Path) -> Encoded | None:
    """The arrays of a store, or None where it is missing or incomplete."""
    try:
        ids, offsets = (open_memmap(folder / f"{name}.npy", mode="r") for name in ("ids", "offsets"))
        types = open_memmap(folder / "types.npy", mode="r") if (folder / "types.npy").exists() else None
    except (OSError, ValueError):
        return None
    if not len(offsets) or offsets[-1] != len(ids):
        return None
    return ids, np.asarray(offsets), types


def _write(folder: Path, encoded: Encoded) -> None:
    """Write a store completely or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        for name, array in zip(("ids", "offsets", "types"), encoded, strict=True):
            if array is not None:
                np.save(scratch / f"{name}.npy", array)
        try:
            os.replace(scratch, folder)
        except OSError:  # the folder exists: another process's store, which is the same, or a damaged one
            if _read(folder) is None:
                shutil.rmtree(folder)
                os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
