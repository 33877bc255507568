import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import fetch
from fedstill.data.examples import Examples
from fedstill.data.tokens import AT_ONCE, TokenStore, store_tokens
from fedstill.models.tokenizers import PretrainedTokenizer

TEXTS = ["Great phone, lasts two days.", "", "meh", "It stopped working after an hour; I want my money back!" * 3]
PAIRS = ["Does it last?", "Is there anything here?", "", "Was the customer content with unbelievably long words?"]


@pytest.fixture(scope="module")
def folder():
    return fetch("bert-tiny")  # before any test points the cache elsewhere


@pytest.fixture
def ours(folder):
    return PretrainedTokenizer(folder)


@pytest.fixture
def theirs(folder):
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture
def cache(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class WordLengths:
    """A tokenizer that numbers words by their length and counts how often it is asked."""

    pad_id = 0
    vocabulary = 100
    fingerprint = "word-lengths"

    def __init__(self):
        self.asked = 0

    def encode(self, texts, pairs, max_length):
        self.asked += 1
        rows = [[len(word) for word in text.split()][:max_length] for text in texts]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        types = None if pairs is None else np.zeros(offsets[-1], np.uint8)
        return np.array([number for row in rows for number in row], np.int32), offsets, types

    def save(self, folder):
        raise NotImplementedError


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["single", "pairs"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 1], [1], [3, 0, 3]])
def test_batches_equal_what_the_tokenizer_itself_pads(ours, theirs, pairs, side, rows):
    store = TokenStore(*ours.encode(TEXTS, pairs, 24))
    store.pad_as(ours.pad_id, pads_left=side == "left")
    theirs.padding_side = side
    expected = theirs(
        [TEXTS[row] for row in rows],
        None if pairs is None else [PAIRS[row] for row in rows],
        padding=True,
        truncation=True,
        max_length=24,
        return_tensors="np",
    )
    found = store.batch(np.array(rows))
    names = {"input_ids", "attention_mask"} | ({"token_type_ids"} if pairs is not None else set())
    assert set(found) == names
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])
    if pairs is None:
        assert not expected["token_type_ids"].any()  # what models assume when they are given none


def test_padding_is_the_models_pad_id():
    store = TokenStore(np.array([5, 6, 7], np.int32), np.array([0, 1, 3]), None)
    store.pad_as(9, pads_left=False)
    assert store.batch(np.array([0, 1]))["input_ids"].tolist() == [[5, 9], [6, 7]]
    store.pad_as(9, pads_left=True)
    assert store.batch(np.array([0, 1]))["input_ids"].tolist() == [[9, 5], [6, 7]]
    assert store.batch(np.array([0, 1]))["attention_mask"].tolist() == [[0, 1], [1, 1]]


def test_a_text_without_any_token_is_all_padding():
    store = TokenStore(*WordLengths().encode(["", "ab abc", ""], None, 8))
    store.pad_as(7, pads_left=False)
    assert store.batch(np.array([0, 1, 2]))["input_ids"].tolist() == [[7, 7], [2, 3], [7, 7]]
    assert store.batch(np.array([2]))["attention_mask"].tolist() == [[0]]


@pytest.mark.parametrize("max_length", [3, 8, 24])
def test_texts_are_cut_to_the_length_with_their_special_tokens(ours, max_length):
    ids, offsets, _ = ours.encode(TEXTS, None, max_length)
    lengths = np.diff(offsets)
    assert lengths[3] == lengths.max() == max_length
    assert lengths[1] == 2
    cls, sep = ours.inner.cls_token_id, ours.inner.sep_token_id
    assert all(ids[start] == cls and ids[end - 1] == sep for start, end in pairwise(offsets))


def test_examples_number_their_own_rows(ours):
    store = TokenStore(*ours.encode(TEXTS, None, 24))
    some = Examples(store, np.array([3, 1, 2]))
    assert len(some) == 3
    np.testing.assert_array_equal(some.lengths, store.lengths[[3, 1, 2]])
    batch = some.batch(torch.tensor([2, 0]), torch.device("cpu"))
    np.testing.assert_array_equal(batch["input_ids"], store.batch(np.array([2, 3]))["input_ids"])
    assert batch["input_ids"].dtype == torch.int64


def test_texts_are_tokenised_once_and_kept_in_the_cache(cache):
    tokenizer = WordLengths()
    folder = store_tokens(tokenizer, ["a bb", "ccc"], None, 8, "texts")
    assert folder.is_relative_to(cache)
    assert store_tokens(tokenizer, ["a bb", "ccc"], None, 8, "texts") == folder
    assert tokenizer.asked == 1
    store = TokenStore.read(folder)
    assert store.batch(np.array([0, 1]))["input_ids"].tolist() == [[1, 2], [3, 0]]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_other_texts_lengths_or_tokenizers_have_stores_of_their_own(cache):
    tokenizer, other = WordLengths(), WordLengths()
    other.fingerprint = "other"
    texts = ["a bb", "ccc"]
    folders = {
        store_tokens(tokenizer, texts, None, 8, "texts"),
        store_tokens(tokenizer, texts, None, 9, "texts"),
        store_tokens(tokenizer, texts, None, 8, "texts2"),
        store_tokens(other, texts, None, 8, "texts"),
    }
    assert len(folders) == 4


@pytest.mark.parametrize("file", ["ids.npy", "offsets.npy", "types.npy"])
@pytest.mark.parametrize("keep", [0, 5, 0.5, -1])
def test_a_truncated_store_is_made_anew(cache, file, keep):
    texts, pairs, tokenizer = ["a bb", "ccc", "d e f g"], ["", "", ""], WordLengths()
    folder = store_tokens(tokenizer, texts, pairs, 8, "texts")
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(FedstillError, match="missing or damaged: start the run again"):
        TokenStore.read(folder)
    assert store_tokens(tokenizer, texts, pairs, 8, "texts") == folder
    assert tokenizer.asked == 2
    assert (folder / file).read_bytes() == whole
    assert TokenStore.read(folder).batch(np.array([2]))["input_ids"].tolist() == [[1, 1, 1, 1]]
    assert len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize("content", [b"PK\x03\x04 not a zip", b"garbage", b"\x80\x04N."], ids=["zip", "text", "pickle"])
def test_a_store_of_garbage_is_made_anew(cache, content):
    tokenizer = WordLengths()
    folder = store_tokens(tokenizer, ["a bb"], None, 8, "texts")
    (folder / "ids.npy").write_bytes(content)
    store_tokens(tokenizer, ["a bb"], None, 8, "texts")
    assert TokenStore.read(folder).ids.tolist() == [1, 2]


def test_a_store_whose_file_is_missing_is_made_anew(cache):
    tokenizer = WordLengths()
    folder = store_tokens(tokenizer, ["a bb"], None, 8, "texts")
    (folder / "offsets.npy").unlink()
    store_tokens(tokenizer, ["a bb"], None, 8, "texts")
    assert TokenStore.read(folder).offsets.tolist() == [0, 2]


def test_the_tokenizers_fingerprint_is_the_same_in_another_process(ours, folder):
    program = "import sys; from pathlib import Path; from fedstill.models.tokenizers import PretrainedTokenizer; "
    program += "print(PretrainedTokenizer(Path(sys.argv[1])).fingerprint)"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == ours.fingerprint
    assert Path(folder, "tokenizer.json").exists()


def test_many_texts_are_encoded_some_at_a_time_and_stored_as_one(cache):
    tokenizer, many = WordLengths(), 2 * AT_ONCE + 1
    texts = [" ".join(["x" * (1 + row % 7)] * (row % 3)) for row in range(many)]
    store = TokenStore.read(store_tokens(tokenizer, texts, texts, 2, "many"))
    assert tokenizer.asked == 3
    for found, expected in zip((store.ids, store.offsets, store.types), tokenizer.encode(texts, texts, 2), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
