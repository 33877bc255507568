"""A loss of a few test rows may be chance; one of many is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedstill.results.chance import with_chances
from fedstill.results.members import Member, Score


def say(run: Path, party: str, rows: np.ndarray, labels: np.ndarray, predicted: np.ndarray) -> None:
    folder = run / "predictions"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"rows": rows, "labels": labels, "predicted": predicted}, folder / f"{party}.safetensors")


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """North has 2 of its 20 rows wrong that it had right alone, south 40 of its 200."""
    labels = np.arange(220) % 2
    wrong = {"north": np.arange(2), "south": np.arange(20, 60)}
    for name, rows in wrong.items():
        order = np.random.default_rng(len(rows)).permutation(220)
        say(tmp_path / "alone", name, np.arange(220), labels, labels)
        said = labels.copy()
        said[rows] = 1 - said[rows]
        say(tmp_path, name, order, labels[order], said[order])
    return tmp_path


TESTS = {"north": np.arange(20), "south": np.arange(20, 220)}


def member(name: str, after: float, giver: str = "") -> Member:
    return Member(name, "bow", Score(1.0, after), None, giver or name)


def test_p_is_about_the_clients_own_rows_and_small_where_many_are_lost(lost: Path) -> None:
    north, south = with_chances([member("north", 0.9), member("south", 0.8)], lost, TESTS, 2, "accuracy")
    # Of 20 rows drawn again, none of the two that were lost is among them with probability (18/20)^20 = 0.12.
    assert north.p == pytest.approx(2 * 0.9**20, abs=0.03)
    assert south.p == pytest.approx(1e-4)


def test_who_is_not_worse_off_has_no_p_nor_who_has_no_predictions(lost: Path) -> None:
    (better,) = with_chances([member("north", 1.0)], lost, TESTS, 2, "accuracy")
    assert better.p is None
    (unknown,) = with_chances([member("north", 0.9, giver="server")], lost, TESTS, 2, "accuracy")
    assert unknown.p is None
    (of_a_federation,) = with_chances([member("elsewhere", 0.9)], lost / "nothing", {}, 2, "accuracy")
    assert of_a_federation.p is None
    (written,) = with_chances([member("north", 0.9)], lost, TESTS, 2, "generated_accuracy")
    assert written.p is None
