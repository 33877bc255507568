"""Tokenizers: Hugging Face's, and hashed n-grams for `bow`."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import fetch
from fedstill.data.tokens import Encoded, Tokenizer

HASHED = "hashed_ngrams.json"


class PretrainedTokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self.inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise FedstillError(f"{folder} holds no tokenizer that transformers can load ({error}).") from error
        if self.inner.pad_token_id is None:  # language models often have none; any token will do, since it is masked
            self.inner.pad_token = self.inner.eos_token or self.inner.unk_token or self.inner.convert_ids_to_tokens(0)
        self.pad_id: int = self.inner.pad_token_id
        self.pads_left: bool = self.inner.padding_side == "left"
        self.vocabulary: int = len(self.inner)
        self.longest: int | None = self.inner.model_max_length if self.inner.model_max_length < 10**6 else None

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that the tokenizer saves."""
        with tempfile.TemporaryDirectory() as scratch:
            self.save(Path(scratch))
            digest = hashlib.sha256()
            for file in sorted(Path(scratch).rglob("*")):
                if file.is_file():
                    digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Encoded:
        """The ids with special tokens; the longer text of a pair is truncated first."""
        output = self.inner(
            list(texts),
            list(pairs) if pairs is not None else None,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=pairs is not None,
        )
        has_types = pairs is not None and "token_type_ids" in self.inner.model_input_names
        ids = output["input_ids"]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids], dtype=np.int64)])
        flat = np.fromiter((token for row in ids for token in row), np.int32, int(offsets[-1]))
        if not has_types:
            return flat, offsets, None
        kinds = output["token_type_ids"]
        return flat, offsets, np.fromiter((kind for row in kinds for kind in row), np.uint8, int(offsets[-1]))

    def save(self, folder: Path) -> None:
        """Write it for `AutoTokenizer`."""
        if (backend := getattr(self.inner, "backend_tokenizer", None)) is not None:
            backend.no_truncation()  # the arguments of its last call must not be saved
            backend.no_padding()
        self.inner.save_pretrained(folder)


@dataclass(frozen=True)
class HashedNgrams:
    """Words and pairs of words, hashed into buckets; every text has id 0 too. Texts are never truncated."""

    buckets: int = 2**17

    pad_id = 0

    @property
    def vocabulary(self) -> int:
        """Twice the buckets, since the second text of a pair has its own; and id 0."""
        return 2 * self.buckets + 1

    @property
    def fingerprint(self) -> str:
        """Depends only on the number of buckets."""
        return f"hashed-ngrams-1-{self.buckets}"

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Encoded:
        """One id for each n-gram that occurs."""
        from scipy.sparse import hstack
        from sklearn.feature_extraction.text import HashingVectorizer

        hashing = HashingVectorizer(
            n_features=self.buckets, ngram_range=(1, 2), binary=True, alternate_sign=False, norm=None,
            token_pattern=r"(?u)\b\w+\b|[!?]",
        )  # fmt: skip
        found = hashing.transform(texts)
        if pairs is not None:
            found = hstack([found, hashing.transform(pairs)]).tocsr()
        found.sort_indices()
        ids = np.insert(found.indices.astype(np.int32) + 1, found.indptr[:-1], 0)
        return ids, found.indptr.astype(np.int64) + np.arange(len(found.indptr)), None

    def save(self, folder: Path) -> None:
        """Write the number of buckets."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HASHED).write_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class HashedTokens:
    """The tokens of another tokenizer and pairs of them, hashed into buckets: for `bow` with a tokenizer."""

    inner: Tokenizer
    buckets: int = 2**17

    pad_id = 0

    @property
    def vocabulary(self) -> int:
        """The buckets, and id 0 for the missing pair of a text's last token."""
        return self.buckets + 1

    @property
    def fingerprint(self) -> str:
        """Depends on the tokenizer and the number of buckets."""
        return f"hashed-tokens-1-{self.buckets}-{self.inner.fingerprint}"

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Encoded:
        """Two ids for each token: its own, and that of the pair with the next token."""
        ids, offsets, _ = self.inner.encode(texts, pairs, max_length)
        if not len(ids):
            return ids, offsets, None
        wide = ids.astype(np.uint64)
        multiplier = np.uint64(0x9E3779B97F4A7C15)
        single = (wide + np.uint64(1)) * multiplier
        double = (single + np.roll(wide, -1)) * multiplier  # overflow is intended: this is a hash
        both = ((np.stack([single, double], 1) >> np.uint64(32)) % np.uint64(self.buckets)).astype(np.int32) + 1
        both[offsets[1:][np.diff(offsets) > 0] - 1, 1] = 0  # a text's last token has no neighbour
        return both.reshape(-1), offsets * 2, None

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the number of buckets."""
        self.inner.save(folder)
        (folder / HASHED).write_text(json.dumps({"buckets": self.buckets, "tokens": True}))


@lru_cache(maxsize=16)
def load_tokenizer(name: str) -> PretrainedTokenizer:
    """The Hugging Face tokenizer of a model by short name, Hub id or folder."""
    return PretrainedTokenizer(fetch(name))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that one of the `save` methods wrote."""
    if not (folder / HASHED).exists():
        return PretrainedTokenizer(folder)
    settings = json.loads((folder / HASHED).read_text())
    if settings.get("tokens"):
        return HashedTokens(PretrainedTokenizer(folder), settings["buckets"])
    return HashedNgrams(settings["buckets"])
