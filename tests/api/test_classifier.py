"""The classifier keeps scikit-learn's conventions."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone, is_classifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

import fedstill
from fedstill import FederatedClassifier, FedstillError

STARS = {"bad": 1, "so-so": 2, "good": 3}


@pytest.fixture(scope="module")
def parts(rows: list[dict[str, Any]]) -> dict[str, tuple[list[str], list[int]]]:
    """Texts and labels, which are numbers, by shop."""
    shops = sorted({row["shop"] for row in rows})
    mine = {shop: [row for row in rows if row["shop"] == shop] for shop in shops}
    return {shop: ([row["body"] for row in own], [STARS[row["stars"]] for row in own]) for shop, own in mine.items()}


@pytest.fixture(scope="module")
def taught(parts: dict[str, Any]) -> FederatedClassifier:
    blank = FederatedClassifier(
        clients="bow", server="bow", rounds=1, progress=False, settings={"train": {"epochs": 4}}
    )
    return blank.fit(parts)


def test_it_learns_and_labels_with_the_labels_it_was_given(
    taught: FederatedClassifier, parts: dict[str, tuple[list[str], list[int]]]
) -> None:
    assert taught.classes_.tolist() == [1, 2, 3]
    texts, labels = parts["toys"]
    predicted, probabilities = taught.predict(texts), taught.predict_proba(texts)
    assert probabilities.shape == (len(texts), 3)
    np.testing.assert_array_equal(predicted, taught.classes_[probabilities.argmax(-1)])
    assert taught.score(texts, labels) == np.mean(predicted == np.array(labels)) > 0.8
    assert [row["client"] for row in taught.record_.gain()] == ["books", "garden", "toys"]


def test_frames_and_pairs_of_lists_make_the_same_federation(
    taught: FederatedClassifier, parts: dict[str, tuple[list[str], list[int]]]
) -> None:
    texts = parts["books"][0]
    frames = {name: pandas.DataFrame({"words": words, "stars": stars}) for name, (words, stars) in parts.items()}
    other = clone(taught).set_params(text="words", label="stars").fit(frames)
    np.testing.assert_array_equal(other.predict_proba(texts), taught.predict_proba(texts))
    unnamed = clone(taught).fit(list(parts.values()))
    assert unnamed.record_.summary["clients"] == ["client-1", "client-2", "client-3"]


def test_clone_and_parameters_follow_scikit_learn(taught: FederatedClassifier) -> None:
    copy = clone(taught)
    assert copy.get_params() == taught.get_params()
    assert not hasattr(copy, "model_")
    assert copy.set_params(rounds=7).rounds == 7
    assert repr(copy).startswith("FederatedClassifier(clients='bow', server='bow', rounds=7")
    with pytest.raises(FedstillError, match="no parameter 'round'; did you mean 'rounds'"):
        copy.set_params(round=7)
    with pytest.raises(FedstillError, match="call `fit` first"):
        copy.predict(["great"])


def test_it_can_be_pickled_and_its_folder_goes_with_it(
    taught: FederatedClassifier, parts: dict[str, tuple[list[str], list[int]]]
) -> None:
    again = pickle.loads(pickle.dumps(taught))
    assert again.predict(["great lovely"]).tolist() == taught.predict(["great lovely"]).tolist()
    other = clone(taught).fit(parts)
    folder = other.record_.folder
    assert folder.is_dir()
    del other
    gc.collect()
    assert not folder.exists()
    assert taught.record_.folder.is_dir()


def test_public_texts_and_the_records_folder_are_the_users(
    parts: dict[str, tuple[list[str], list[int]]], tmp_path: Path
) -> None:
    public = [f"a {word} thing, number {number}" for number, word in enumerate(["great", "awful", "okay"] * 10)]
    taught = FederatedClassifier(
        algorithm=fedstill.LogitAvg(), clients="bow", server="bow", rounds=1, out=tmp_path / "run", progress=False
    ).fit(parts, public=public)
    ledger = [line for line in taught.record_.ledger if line["message"] == "Opinion"]
    assert taught.record_.folder == tmp_path / "run"
    assert ledger[0]["payload"] == 3 * 30 * 3 * 4  # clients, public texts, classes, bytes


@pytest.fixture(scope="module")
def flat(parts: dict[str, tuple[list[str], list[int]]]) -> tuple[list[str], list[int], list[str]]:
    """All texts, all labels, and whose each is."""
    return (
        [text for texts, _ in parts.values() for text in texts],
        [label for _, labels in parts.values() for label in labels],
        [name for name, (texts, _) in parts.items() for _ in texts],
    )


def test_texts_with_labels_and_domains_are_the_same_federation(
    taught: FederatedClassifier, flat: tuple[list[str], list[int], list[str]]
) -> None:
    texts, labels, shops = flat
    listed = clone(taught).fit(texts, labels, domains=shops)
    np.testing.assert_array_equal(listed.predict_proba(texts), taught.predict_proba(texts))
    frame = pandas.DataFrame({"text": texts, "other": 1}, index=range(100, 100 + len(texts)))
    framed = clone(taught).fit(frame, pandas.Series(labels), domains=np.array(shops))
    np.testing.assert_array_equal(framed.predict_proba(frame), taught.predict_proba(texts))
    assert framed.score(frame, pandas.Series(labels)) == accuracy_score(labels, framed.predict(frame["text"]))


def test_without_domains_rows_are_dealt_out(flat: tuple[list[str], list[int], list[str]]) -> None:
    texts, labels, _ = flat
    blank = FederatedClassifier(clients="bow", server="bow", rounds=1, progress=False)
    assert blank.fit(texts, labels).record_.summary["clients"] == ["client-1", "client-2", "client-3"]
    two = clone(blank).set_params(clients=["bow", "bow"]).fit(np.array(texts), np.array(labels))
    assert two.record_.summary["clients"] == ["client-1", "client-2"]
    drawn = clone(blank).set_params(settings={"partition": {"kind": "dirichlet", "clients": 4}}).fit(texts, labels)
    assert drawn.record_.settings["partition"]["kind"] == "dirichlet"
    assert len(drawn.record_.summary["clients"]) == 4


def test_scikit_learn_searches_and_cross_validates(
    taught: FederatedClassifier, flat: tuple[list[str], list[int], list[str]]
) -> None:
    texts, labels, shops = flat
    assert is_classifier(taught)
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    grid = {"settings": [{"train": {"epochs": 1, "rate": 1e-9}}, {"train": {"epochs": 4}}]}
    found = GridSearchCV(clone(taught), grid, cv=folds, error_score="raise").fit(texts, labels, domains=shops)
    assert found.best_params_ == {"settings": {"train": {"epochs": 4}}}
    assert found.best_estimator_.record_.summary["clients"] == ["books", "garden", "toys"]
    assert found.score(texts, labels) > 0.8 > found.cv_results_["mean_test_score"][0]
    given = {"domains": shops}
    scores = cross_val_score(clone(taught), pandas.Series(texts), labels, cv=folds, scoring="accuracy", params=given)
    assert scores.mean() == found.best_score_


def test_a_missing_text_is_a_text_without_words(taught: FederatedClassifier) -> None:
    np.testing.assert_array_equal(taught.predict_proba(pandas.Series([None])), taught.predict_proba([""]))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((["a", "b"], ["x"]), "there are 2 texts and 1 labels"),
        ((["a", "b"], [["x", "y"], ["x"]]), "one label for a text, not several"),
        (([["a", "b"], ["c", "d"]], ["x", "y"]), r"a row is a text \(text\), and one is \"\['a', 'b'\]\""),
        (([1, 2], ["x", "y"]), "a row is a text"),
        (("a text", ["x"]), "give a list of texts"),
        (({"train": (["a"], ["x"]), "test": (["b"], ["x"])},), "train, test are parts, not clients"),
        (({"north": (["a"], ["x"])}, ["x"]), "clients with their labels, and no `y`"),
        ((pandas.DataFrame({"text": ["a"], "label": ["x"]}),), "this is one table: give its labels as `y`"),
        ((pandas.DataFrame({"body": ["a"]}), ["x"]), "no column 'text'"),
    ],
)
def test_mistakes_in_rows_are_one_sentence(given: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(FedstillError, match=sentence):
        FederatedClassifier().fit(*given)


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([(["a"], ["x", "y"])], "client-1: there are 1 texts and 2 labels"),
        ([["a", "b", "c"]], r"client-1: give each client as \(texts, labels\)"),
        ([pandas.DataFrame({"txt": ["a"], "label": ["x"]})], "no column 'text'; did you mean 'txt'"),
        ([(["a", "b"], ["x", None])], r"some rows have no label \(None\)"),
        ([(["a", "b"], ["x", 1])], "several types"),
    ],
)
def test_mistakes_are_one_sentence(clients: list[Any], sentence: str) -> None:
    with pytest.raises(FedstillError, match=sentence):
        FederatedClassifier().fit(clients)
