"""Messy labels: what is refused, what is told, what is dropped and counted."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.data.corpora import CorpusSpec, load
from fedstill.data.corpus import Corpus
from fedstill.papers.evidence import fingerprint


def rows_of(labels: list[str]) -> str:
    return "text,label\n" + "".join(f"text {number},{label}\n" for number, label in enumerate(labels))


def read(folder: Path, labels: list[str], named: list[str] | None = None, **settings: object) -> Corpus:
    (folder / "a.csv").write_text(rows_of(labels))
    return load(CorpusSpec.model_validate({"path": str(folder / "a.csv"), **settings}), named)


def refusal(folder: Path, labels: list[str], named: list[str] | None = None, **settings: object) -> str:
    with pytest.raises(FedstillError) as raised:
        read(folder, labels, named, **settings)
    return str(raised.value)


def names(corpus: Corpus) -> list[str]:
    return [corpus.label_names[label] for label in corpus.labels]


@pytest.fixture
def other_file(tmp_path: Path) -> str:
    (tmp_path / "b.csv").write_text("text,label\none,x\ntwo,z\nthree,w\nfour,z\n")
    return str(tmp_path / "b.csv")


def test_missing_labels_are_counted_and_dropped_on_request(tmp_path):
    labels = ["x", "NaN", "y", "", "nan", "x"]
    said = refusal(tmp_path, labels)
    assert "a.csv, row 3: the label is missing, as in 3 of 6 rows (also 5, 6)" in said
    assert "`corpus: {missing: drop}`" in said
    corpus = read(tmp_path, labels, missing="drop")
    assert names(corpus) == ["x", "y", "x"]
    assert corpus.counts == {"rows read": 6, "no label": 3, "rows kept": 3}
    assert corpus.notices == (f"left out 3 of 6 rows, which have no label: {tmp_path / 'a.csv'}, rows 3, 5, 6.",)
    assert "no row is left (no label)" in refusal(tmp_path, ["", "nan"], missing="drop")


def test_a_label_that_the_experiment_names_is_not_missing(tmp_path):
    assert names(read(tmp_path, ["x", "nan"], ["nan", "x"])) == ["x", "nan"]


def test_other_words_for_no_label_count_where_all_labels_are_known(tmp_path):
    labels = ["x", "n/a", "y", "?", "x"]
    assert read(tmp_path, labels).label_names == ("?", "n/a", "x", "y")
    assert "row 3: the label is missing, as in 2 of 5 rows" in refusal(tmp_path, labels, ["x", "y"])
    assert names(read(tmp_path, labels, ["x", "y"], missing="drop")) == ["x", "y", "x"]
    assert len(read(tmp_path, labels, ["x", "y", "n/a", "?"])) == 5


def test_domains_that_differ_in_case_are_told(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,shop\none,x,North\ntwo,y,north \nthree,x,South\nfour,y,North\n")
    corpus = load(CorpusSpec(path=str(tmp_path / "a.csv"), domain="shop"))
    assert corpus.domain_names == ("North", "South", "north")
    assert corpus.notices == ("'North' (2), 'north' (1) are 2 domains; are they one? Then write them in one way.",)


def test_a_test_label_that_no_training_row_has_is_no_class_by_accident(tmp_path, other_file):
    said = refusal(tmp_path, ["x", "y"], test=other_file)
    assert "b.csv, row 3: no training row has the label 'z' (3 such test rows: 'z' 2, 'w' 1)" in said
    corpus = read(tmp_path, ["x", "y"], test=other_file, unseen="drop")
    assert corpus.label_names == ("x", "y")
    assert corpus.counts == {"rows read": 6, "label unseen in training": 3, "rows kept": 3}
    assert corpus.notices == ("left out 3 test rows with labels that no training row has: 'z' 2, 'w' 1.",)
    named = read(tmp_path, ["x", "y"], ["x", "y", "z", "w"], test=other_file)
    assert len(named) == 6
    assert "no training row has: 'z' 2, 'w' 1" in named.notices[0]


def test_hundreds_of_different_numbers_are_regression(tmp_path):
    assert "21 different numbers, such as 0.1" in refusal(tmp_path, [f"0.{number:02}1" for number in range(21)])
    halves = [f"{number / 2}" for number in range(20)]
    assert len(read(tmp_path, halves).label_names) == 20
    assert len(read(tmp_path, [str(number) for number in range(40)] * 4).label_names) == 40


@pytest.mark.parametrize("labels", [["GOOD", "Good", "good", "good", "bad"]])
def test_spellings_of_one_label_are_told_and_folded_on_request(tmp_path, labels):
    corpus = read(tmp_path, labels)
    assert corpus.notices == (
        "'GOOD' (1), 'Good' (1), 'good' (2) are 3 labels; `corpus: {fold_labels: true}` makes them one.",
    )
    folded = read(tmp_path, labels, fold_labels=True)
    assert names(folded) == ["good"] * 4 + ["bad"]
    assert folded.notices == (
        "labels that differ in case or spacing are one: 'GOOD' (1) is read as 'good', 'Good' (1) is read as 'good'.",
    )
    assert names(read(tmp_path, labels, ["Bad", "GOOD"], fold_labels=True)) == ["GOOD"] * 4 + ["Bad"]


@pytest.mark.parametrize(
    ("in_csv", "values", "expected"),
    [
        (["1.0", "0.0", "1.0"], [1.0, 0.0, 1.0], ["1", "0", "1"]),
        (["1.0", "0.5", "1.0"], [1.0, 0.5, 1.0], ["1", "0.5", "1"]),
        (["True", "False", "TRUE"], [True, False, True], ["true", "false", "true"]),
    ],
)
def test_labels_are_written_in_one_way_in_every_kind_of_file(tmp_path, in_csv, values, expected):
    texts = ["a", "b", "c"]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": values}), tmp_path / "a.parquet")
    lines = (json.dumps({"text": text, "label": value}) for text, value in zip(texts, values, strict=True))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert names(read(tmp_path, in_csv)) == expected
    for name in ("a.parquet", "a.jsonl"):
        assert names(load(CorpusSpec(path=str(tmp_path / name)))) == expected
        assert names(load(CorpusSpec(path=str(tmp_path / name)), sorted(set(in_csv)))) == [
            next(label for label in sorted(set(in_csv)) if label.casefold().removesuffix(".0") == one)
            for one in expected
        ]
    assert names(read(tmp_path, in_csv, sorted(set(in_csv)))) == in_csv


def test_a_number_among_words_stays_a_word(tmp_path):
    assert names(read(tmp_path, ["1.0", "v2", "True"])) == ["1.0", "v2", "True"]


@pytest.mark.parametrize("value", [["x", "y"], [1, 0, 1], {"x": 1}])
def test_several_labels_and_labels_of_tokens_are_refused_in_a_sentence(tmp_path, value):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "label": value}))
    with pytest.raises(FedstillError, match=r"row 1: column 'label' holds .*; fedstill learns one label for a text"):
        load(CorpusSpec(path=str(tmp_path / "a.jsonl")))
    said = refusal(tmp_path, ["\"['x', 'y']\"", "['x']"])
    assert said.startswith("the column 'label' holds lists, such as ['x', 'y']: fedstill learns one label")


def test_everything_is_said_at_once(tmp_path, other_file):
    said = refusal(tmp_path, ["x", "X", "y", "", "x"], test=other_file).splitlines()
    assert said[0] == "a cannot be used as it is (9 rows read):"
    assert "the label is missing" in said[1]
    assert "no training row has the label 'z'" in said[2]
    assert said[3].startswith("  - note: 'X' (1), 'x' (3) are 2 labels")
    assert len(said) == 4


def test_labels_outside_the_list_are_all_counted(tmp_path):
    said = refusal(tmp_path, ["x", "q", "y", "r", "q"], ["x", "y"])
    assert "a.csv, row 3: the label 'q' is none of x, y (3 rows with other labels: 'q' 2, 'r' 1)" in said


def test_what_may_be_a_mistake_is_told(tmp_path):
    notices = read(tmp_path, ["x"] * 60 + ["y"] * 60 + ["yy", "None", "None"]).notices
    assert notices[0].startswith("'None' (2 rows) is a label like any other; if it means that there is none, name ")
    assert notices[1:] == ("'yy': a single row; is the label right?",)
    many = read(tmp_path, [f"label {number}" for number in range(30)] * 2).notices
    assert many == ("the column 'label' holds 30 different labels in 60 rows: check `corpus: {label: ...}`.",)


def test_options_at_their_defaults_are_no_part_of_an_experiments_hash(tmp_path):
    plain = Experiment(corpus={"path": "a.csv"})
    spelt = Experiment(corpus={"path": "a.csv", "missing": "error", "unseen": "error", "fold_labels": False})
    assert fingerprint(plain) == fingerprint(spelt)
    assert fingerprint(plain) != fingerprint(Experiment(corpus={"path": "a.csv", "missing": "drop"}))


@pytest.mark.parametrize("delimiter", ["", ";;", "\n"])
def test_a_delimiter_is_one_character(delimiter):
    with pytest.raises(ValueError, match="must be one character"):
        CorpusSpec(path="a.csv", delimiter=delimiter)


def test_a_named_delimiter_makes_quotes_of_a_tsv_count(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"one ""two"""\tx\nthree\ty\n')
    assert load(CorpusSpec(path=str(tmp_path / "a.tsv"))).texts[0] == '"one ""two"""'
    assert load(CorpusSpec(path=str(tmp_path / "a.tsv"), delimiter="\t")).texts[0] == 'one "two"'
