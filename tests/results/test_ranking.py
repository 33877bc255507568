"""Letters, Holm's correction and ranks, against small cases worked out by hand and printed tables."""

import numpy as np
import pytest
from scipy import stats

from fedstill.results.ranking import holm, letters, ranks


def pairs(*names):
    return {frozenset(name) for name in names}


@pytest.mark.parametrize(
    ("different", "expected"),
    [
        (pairs(), {"a": "a", "b": "a", "c": "a"}),
        (pairs("ab", "ac", "bc"), {"a": "a", "b": "b", "c": "c"}),
        (pairs("ac"), {"a": "a", "b": "ab", "c": "b"}),
        (pairs("ab", "ac"), {"a": "a", "b": "b", "c": "b"}),
        (pairs("ab"), {"a": "a", "b": "b", "c": "ab"}),
    ],
)
def test_names_share_a_letter_unless_they_differ(different, expected):
    assert letters("abc", different) == expected


def test_letters_hold_for_any_pairs():
    generator = np.random.default_rng(0)
    for _ in range(50):
        names = [f"m{number}" for number in range(7)]
        different = {
            frozenset((one, other)) for one in names for other in names if one < other and generator.random() < 0.5
        }
        found = letters(names, different)
        for one in names:
            for other in names:
                if one < other:
                    assert bool(set(found[one]) & set(found[other])) == (frozenset((one, other)) not in different)


def test_holm_multiplies_by_how_many_are_left():
    # sorted: 0.01 * 4, 0.02 * 3, 0.03 * 2, 0.6 * 1, never falling
    assert holm([0.02, 0.6, 0.01, 0.03]) == pytest.approx([0.06, 0.6, 0.04, 0.06])


def test_ranks_share_ties_and_the_critical_difference_is_the_printed_one():
    scores = {"first": [0.9] * 6, "second": [0.8] * 6, "third": [0.8, 0.7, 0.7, 0.7, 0.7, 0.7]}
    found = ranks(scores)
    assert found is not None
    assert found.means == pytest.approx({"first": 1.0, "second": (2.5 + 5 * 2) / 6, "third": (2.5 + 5 * 3) / 6})
    # q of Nemenyi's test for three methods at 5% is 2.343 in the printed tables
    assert found.critical == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 6)), abs=1e-3)
    assert found.p == pytest.approx(stats.friedmanchisquare(*scores.values()).pvalue)
    assert found.groups == [("first", "second"), ("second", "third")]


def test_few_methods_or_blocks_have_no_ranks_and_equal_ones_no_difference():
    assert ranks({"one": [1.0] * 6, "other": [0.5] * 6}) is None
    assert ranks({"one": [1.0] * 4, "other": [0.5] * 4, "third": [0.1] * 4}) is None
    assert ranks({name: [0.5] * 5 for name in "abc"}).p == 1.0
