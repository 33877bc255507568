import numpy as np
import pytest

from fedstill.data.likeness import unlikeness, word_shares
from fedstill.data.tokens import TokenStore


def store(rows):
    offsets = np.cumsum([0, *map(len, rows)])
    return TokenStore(np.concatenate(rows).astype(np.int32), offsets, None)


def drawn(random, words, rows=200):
    return [random.choice(words, 8) for _ in range(rows)]


def test_texts_with_the_same_words_cannot_be_told_apart_and_texts_without_a_word_in_common_always():
    random = np.random.default_rng(0)
    same = store(drawn(random, np.arange(50), 400))
    assert unlikeness(same, np.arange(200), np.arange(200, 400)) == pytest.approx(0.5, abs=0.1)
    other = store([*drawn(random, np.arange(50)), *drawn(random, np.arange(50, 100))])
    assert unlikeness(other, np.arange(200), np.arange(200, 400)) == 1.0


def test_with_a_handful_of_rows_nothing_is_said():
    assert (
        unlikeness(store(drawn(np.random.default_rng(0), np.arange(9), 40)), np.arange(19), np.arange(19, 40)) is None
    )


def test_word_shares_by_hand():
    shares = word_shares(store([np.array([1, 1, 5]), np.array([2])]), np.array([0, 1]), width=4)
    np.testing.assert_allclose(shares, [[0, 1, 0, 0], [0, 0, 1, 0]])  # word 5 is folded onto 1
