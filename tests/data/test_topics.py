"""AG News and DBpedia: the publishers' forms, the common copies, the Hub, and what is said when something is wrong."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from fedstill.common.errors import FedstillError
from fedstill.data.corpora import CorpusSpec, load, load_public, topics
from fedstill.data.corpus import Corpus
from fedstill.learning.metrics import METRICS


def write(path: Path, contents: str) -> Path:
    path.write_text(contents, encoding="utf-8", newline="")
    return path


def read(name: str, folder: Path | None, **more: object) -> Corpus:
    return load(CorpusSpec.model_validate({"name": name, "path": folder and str(folder), **more}))


def labels_of(corpus: Corpus) -> list[str]:
    return [corpus.label_names[label] for label in corpus.labels]


PUBLISHED = '"3","Wall St. Bears","Short-sellers, ""seeing"" green."\n"1","A vote"," In Spain. "\n'


def test_the_publishers_ag_news_counts_from_one_and_joins_title_and_description(tmp_path):
    write(tmp_path / "train.csv", PUBLISHED)
    write(tmp_path / "test.csv", '"4","A probe","It landed."\n"2","","A draw."\n')
    corpus = read("agnews", tmp_path)
    texts = ['Wall St. Bears Short-sellers, "seeing" green.', "A vote In Spain.", "A probe It landed.", "A draw."]
    assert corpus.texts == texts
    assert labels_of(corpus) == ["Business", "World", "Sci/Tech", "Sports"]
    assert corpus.label_names == ("World", "Sports", "Business", "Sci/Tech")
    assert corpus.held_out.tolist() == [False, False, True, True]
    assert corpus.metrics == ("accuracy", "f1")
    assert set(corpus.metrics) <= set(METRICS)
    assert corpus.pairs is None


def test_a_copy_with_one_text_counts_from_zero(tmp_path):
    write(tmp_path / "train.csv", '0,"A vote, in Spain"\n3,a probe\n')
    write(tmp_path / "test.csv", "2,bears\n")
    corpus = read("agnews", tmp_path)
    assert corpus.texts == ["A vote, in Spain", "a probe", "bears"]
    assert labels_of(corpus) == ["World", "Sci/Tech", "Business"]


def test_the_first_row_may_span_lines(tmp_path):
    write(tmp_path / "train.csv", '"1","A\nvote","in Spain"\n"2","b","c"\n')
    write(tmp_path / "test.csv", "2,bears\n")
    assert read("agnews", tmp_path).texts[0] == "A\nvote in Spain"


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        (
            "4,too many\n",
            r"train\.csv, row 1: the label is '4'; AG News has 0 to 3 \(the file must have no header row\)",
        ),
        ("0,fine\n-1,x\n", r"train\.csv, row 2: the label is '-1'; AG News has 0 to 3\."),
        ('"0","a","b"\n', r"row 1: the label is '0'; AG News has 1 to 4"),
        ("Class Index,Title,Description\n1,a,b\n", r"the label is 'Class Index'; .* no header row"),
        ('0,"never closed\n', r"train\.csv, row 1: this is not well-formed"),
        ("", r"train\.csv is empty"),
        ("0\n", r"row 1: expected 2 fields and found 1"),
    ],
)
def test_a_bad_file_is_located(tmp_path, contents, complaint):
    write(tmp_path / "train.csv", contents)
    write(tmp_path / "test.csv", "2,bears\n")
    with pytest.raises(FedstillError, match=complaint):
        read("agnews", tmp_path)


def test_ag_news_needs_both_files_and_dbpedia_the_first(tmp_path):
    with pytest.raises(FedstillError, match=r"train\.csv is missing; set `path:` to the folder with AG News's train"):
        read("agnews", tmp_path)
    write(tmp_path / "train.csv", "0,a\n1,b\n")
    with pytest.raises(FedstillError, match=r"test\.csv is missing; .* train\.csv and test\.csv, or leave it out"):
        read("agnews", tmp_path)
    assert read("dbpedia", tmp_path).held_out is None


def test_the_publishers_dbpedia_has_fourteen_classes_in_its_order(tmp_path):
    write(tmp_path / "train.csv", '1,"E. D. Abbott Ltd"," Abbott of Farnham."\n14,"The Tower"," A novel."\n')
    write(tmp_path / "test.csv", '6,"A tram"," It ran."\n')
    corpus = read("dbpedia", tmp_path)
    assert corpus.texts == ["E. D. Abbott Ltd Abbott of Farnham.", "The Tower A novel.", "A tram It ran."]
    assert labels_of(corpus) == ["Company", "WrittenWork", "MeanOfTransportation"]
    assert len(corpus.label_names) == 14
    assert corpus.held_out.tolist() == [False, False, True]


def test_dbpedia_of_nine_classes_is_labelled_by_its_first_level(tmp_path):
    write(tmp_path / "DBPEDIA_train.csv", 'text,l1,l2,l3\n"A moth, brown.",Species,Animal,Insect\n')
    write(tmp_path / "DBPEDIA_val.csv", "text,l1,l2,l3\nA song.,Work,MusicalWork,Single\n")
    write(tmp_path / "DBPEDIA_test.csv", "text,l1,l2,l3\nA mayor.,Agent,Politician,Mayor\n")
    corpus = read("dbpedia", tmp_path, classes=9)
    assert corpus.texts == ["A moth, brown.", "A song.", "A mayor."]
    assert labels_of(corpus) == ["Species", "Work", "Agent"]
    assert len(corpus.label_names) == 9
    assert corpus.held_out.tolist() == [False, False, True]


def test_a_strange_class_of_nine_is_located(tmp_path):
    write(tmp_path / "DBPEDIA_train.csv", "text,l1,l2,l3\nA moth.,Moth,Animal,Insect\n")
    with pytest.raises(FedstillError, match=r"row 2: the label is 'Moth'; DBpedia of 9 classes has Agent, Device"):
        read("dbpedia", tmp_path, classes=9)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "dbpedia", "classes": 12}, "9 or 14"),
        ({"name": "agnews", "classes": 9}, "agnews takes no `classes:`"),
        ({"name": "agnews", "label": "x"}, "agnews takes no `label:`"),
        ({"name": "dbpedia", "test": "x"}, "dbpedia takes no `test:`"),
        ({"path": "a.csv", "classes": 9}, "a.csv takes no `classes:`"),
    ],
)
def test_a_wrong_or_idle_setting_is_refused(settings, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CorpusSpec.model_validate(settings)


def test_public_texts_are_the_training_texts_without_labels(tmp_path):
    write(tmp_path / "train.csv", PUBLISHED.replace('"3"', '"?"'))
    corpus = load_public(CorpusSpec(name="agnews", path=str(tmp_path)))
    assert corpus.texts == ['Wall St. Bears Short-sellers, "seeing" green.', "A vote In Spain."]
    assert corpus.labels.tolist() == [-1, -1]
    assert corpus.held_out is None


def test_the_hub_gives_the_same_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub = tmp_path / "hub"
    hub.mkdir()
    names = dict(enumerate(topics.DBPEDIA[14].labels))
    features = [{"name": name, "dtype": "string"} for name in ("title", "content")]
    features.append({"name": "label", "dtype": {"class_label": {"names": names}}})
    files = [{"split": name, "path": f"{name}.jsonl"} for name in ("train", "test")]
    card = {"configs": [{"config_name": "default", "data_files": files}], "dataset_info": {"features": features}}
    write(hub / "README.md", f"---\n{yaml.safe_dump(card)}---\n")
    write(hub / "train.jsonl", '{"title": "Ford", "content": " A firm.", "label": 0}\n')
    write(hub / "test.jsonl", '{"title": "It", "content": " A film.", "label": 12}\n')
    monkeypatch.setitem(topics.DBPEDIA, 14, topics.replace(topics.DBPEDIA[14], hub=str(hub)))
    corpus = read("dbpedia", None)
    assert corpus.texts == ["Ford A firm.", "It A film."]
    assert labels_of(corpus) == ["Company", "Film"]
    assert corpus.held_out.tolist() == [False, True]


def test_the_real_ag_news_has_a_thousand_rows_a_class_in_both_files(shared_data):
    corpus = read("agnews", shared_data / "agnews")
    for part in (corpus.held_out, ~corpus.held_out):
        assert np.bincount(corpus.labels[part]).tolist() == [1000] * 4
    assert corpus.texts[0].startswith("CAIRO , EGYPT -- A man identified as Osama bin Laden")
    assert labels_of(corpus)[:3] == ["World", "World", "Sports"]


def test_the_real_dbpedia_has_a_thousand_rows_a_class_and_no_test(shared_data):
    corpus = read("dbpedia", shared_data / "dbpedia")
    assert np.bincount(corpus.labels).tolist() == [1000] * 14
    assert corpus.held_out is None
    assert labels_of(corpus)[:3] == ["Artist", "Album", "Athlete"]
    assert corpus.texts[2] == "Luka Gusi ( born 27 September 1989 in Split ) is a Croatian football defender ."
