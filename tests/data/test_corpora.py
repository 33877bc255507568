"""Corpora: what is read, what is counted, and how every fault is located."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from pydantic import ValidationError

from fedstill.cli import catalogue
from fedstill.common.errors import FedstillError
from fedstill.data.corpora import EMBEDDED, CorpusSpec, files, load, load_public, remembered
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Row
from fedstill.data.corpora.tweets import ENTITIES
from fedstill.data.corpus import Corpus
from fedstill.data.partition import PartitionSpec, split

SHARED = Path(__file__).parents[3] / "shared" / "data"


def real(folder: str) -> Path:
    if not (SHARED / folder).is_dir():
        pytest.skip(f"real data are not here: {SHARED / folder}")
    return SHARED / folder


def write(path: Path, contents: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents.encode(encoding))
    return path


def read(path: Path, labels: list[str] | None = None, **settings: object) -> Corpus:
    return load(CorpusSpec.model_validate({"path": str(path), **settings}), labels)


def domain_sizes(corpus: Corpus) -> dict[str, int]:
    assert corpus.domains is not None
    return dict(zip(corpus.domain_names, np.bincount(corpus.domains).tolist(), strict=True))


# The specification


def test_a_plain_string_is_short_for_a_name():
    assert CorpusSpec.model_validate("tweets") == CorpusSpec(name="tweets")


def test_a_written_out_specification_reads_back_the_same():
    spec = CorpusSpec(path="a.csv", text=["premise", "hypothesis"])
    assert CorpusSpec.model_validate(spec.model_dump()) == spec


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "a corpus needs a `name:` or a `path:`"),
        ({"name": "tweets", "path": "a.csv"}, "not both"),
        ({"name": "tweets", "label": "stars"}, "tweets takes no `label:`"),
        ({"name": "amazon", "path": "a", "test": "b"}, "amazon takes no `test:`"),
        ({"path": "a.csv", "split": "test"}, "a.csv takes no `split:`"),
        ({"name": "some/set", "header": ["text"]}, "some/set takes no `header:`"),
        ({"path": "a.csv", "text": ["a", "b", "c"]}, "one column, or a list of two"),
        ({"path": "a.csv", "labels": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(settings, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CorpusSpec.model_validate(settings)


# Forms


def test_a_remembered_corpus_is_read_once_and_counts_of_a_run_stay_its_own(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\ngood,1\nbad,0\n")
    with remembered():
        read(path).counts["rows read"] = 7
        path.unlink()
        again = read(path)
        assert (again.texts, again.counts) == (["good", "bad"], {"rows read": 2})
        with pytest.raises(FedstillError):
            read(path, labels=["0", "1"])  # another corpus: the file is asked for
    with pytest.raises(FedstillError):
        read(path)


def test_csv_quotes_hold_commas_line_breaks_and_quotes(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')
    corpus = read(path)
    assert corpus.name == "a"
    assert corpus.texts == ['one, "two"\nthree', "four"]
    assert corpus.label_names == ("x", "y")
    assert corpus.labels.tolist() == [0, 1]
    assert corpus.pairs is corpus.domains is corpus.held_out is None
    assert corpus.counts == {"rows read": 2}


def test_tsv_quotes_are_literal(tmp_path):
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"one\tx\ntwo" three\ty\n')
    assert read(path).texts == ['"one', 'two" three']


def test_tsv_quotes_hold_line_breaks_where_the_file_fits_no_other_way(tmp_path):
    path = write(tmp_path / "a.tsv", 'label\ttext\nx\t"one\ntwo"\ny\t"a ""b"""\n')
    assert read(path).texts == ["one\ntwo", 'a "b"']
    assert read(path, label="label").counts == {"rows read": 2}


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_found_in_its_first_row(tmp_path, delimiter):
    rows = [["text", "label"], ["one, two", "x"], ["three", "y"]]
    path = write(tmp_path / "a.csv", "\n".join(delimiter.join(row) for row in rows))
    assert read(path).texts == ["one, two", "three"]
    bare = write(tmp_path / "b.csv", "\n".join(delimiter.join(row) for row in [*rows[2:], ["four", "x"]]))
    assert read(bare, header=["text", "label"]).texts == ["three", "four"]


def test_rows_with_too_few_fields_are_set_aside_where_that_is_asked_for(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tlabel\none\tx\nbroken\n\ntwo\ty\n")
    short: list[int] = []
    rows = list(files.read(path, files.Columns(), short=short))
    assert [(row.line, row.text) for row in rows] == [(2, "one"), (5, "two")]
    assert short == [3]


def test_json_lines_labels_read_as_they_are_written(tmp_path):
    records = [{"text": f"t{n}", "label": label} for n, label in enumerate([True, False, 3, 4.0, 0.5, " x "])]
    contents = "\n".join(map(json.dumps, records)) + "\n\n"
    for name in ("a.jsonl", "a.json"):
        corpus = read(write(tmp_path / name, contents))
        assert corpus.label_names == ("0.5", "3", "4", "false", "true", "x")


def test_json_texts_may_hold_unicode_line_separators(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "one\u2028two", "label": 0}\n{"text": "three", "label": 1}\n')
    assert read(path).texts == ["one\u2028two", "three"]


def test_parquet_numbers_and_booleans_become_labels(tmp_path):
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [10, 9, 10], "other": [[1], [2], [3]]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").label_names == ("9", "10")
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [True, False, True]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet").label_names == ("false", "true")


def test_numeric_labels_sort_by_value_and_others_as_text(tmp_path):
    numbers = write(tmp_path / "a.csv", "text,label\na,10\nb,9\nc,-1\n")
    assert read(numbers).label_names == ("-1", "9", "10")
    mixed = write(tmp_path / "b.csv", "text,label\na,10\nb,9\nc,x\n")
    assert read(mixed).label_names == ("10", "9", "x")


def test_given_labels_keep_their_order(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\nb,y\n")
    corpus = read(path, labels=["y", "z", "x"])
    assert corpus.label_names == ("y", "z", "x")
    assert corpus.labels.tolist() == [2, 0]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    path = write(tmp_path / "a.csv", "\ufefftext,label\na,x\nb,y\n")
    assert read(path).texts == ["a", "b"]


def test_other_encodings_are_read_when_named(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\nca\u00f1\u00f3n,x\nb,y\n", encoding="cp1252")
    assert read(path, encoding="cp1252").texts[0] == "ca\u00f1\u00f3n"
    path = write(tmp_path / "b.csv", "text,label\nca\u00f1\u00f3n,x\nb,y\n", encoding="utf-16")
    assert read(path, encoding="utf-16").texts[0] == "ca\u00f1\u00f3n"


def test_a_file_without_a_header_row_takes_its_names_from_the_specification(tmp_path):
    path = write(tmp_path / "a.csv", "0,one\n1,two\n")
    corpus = read(path, header=["label", "text"])
    assert corpus.texts == ["one", "two"]


def test_a_field_of_a_megabyte_is_read(tmp_path):
    path = write(tmp_path / "a.csv", f"text,label\n{'x' * 1_000_000},a\ny,b\n")
    assert len(read(path).texts[0]) == 1_000_000


def test_two_columns_make_pairs(tmp_path):
    path = write(tmp_path / "a.csv", "one,two,label\na,b,x\na,,y\na,c,y\n")
    corpus = read(path, text=["one", "two"])
    assert corpus.texts == ["a", "a"]
    assert corpus.pairs == ["b", "c"]
    assert corpus.counts == {"rows read": 3, "empty text": 1, "rows kept": 2}
    assert corpus.groups.tolist() == [0, 1]


def test_empty_texts_are_dropped_and_counted(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\n   ,y\n,\nb,y\n")
    corpus = read(path)
    assert corpus.texts == ["a", "b"]
    assert corpus.counts == {"rows read": 4, "empty text": 2, "rows kept": 2}


# Domains, groups and test files


def test_a_file_in_a_folder_is_a_domain(tmp_path):
    write(tmp_path / "b.csv", "text,label\none,x\ntwo,y\n")
    write(tmp_path / "a.jsonl", '{"text": "three", "label": "x"}\n')
    write(tmp_path / "README.md", "not data")
    corpus = read(tmp_path)
    assert corpus.name == tmp_path.name
    assert domain_sizes(corpus) == {"a": 1, "b": 2}


def test_a_domain_column_comes_before_file_names(tmp_path):
    write(tmp_path / "all.csv", "text,label,shop\none,x,north\ntwo,y,east\nthree,y,north\n")
    assert domain_sizes(read(tmp_path, domain="shop")) == {"east": 1, "north": 2}
    assert domain_sizes(read(tmp_path / "all.csv", domain="shop")) == {"east": 1, "north": 2}


def test_equal_texts_form_a_group_whatever_their_case_and_spacing(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\nGood  stuff,x\nbad,y\n good STUFF,x\nother,y\n")
    corpus = read(path)
    assert corpus.groups.tolist() == [0, 1, 0, 2]
    assert corpus.counts == {"rows read": 4, "duplicate texts": 1}


def test_a_group_column_and_equal_texts_are_joined_through_each_other(tmp_path):
    # Rows 0 and 1 share an order, 1 and 2 a text, 2 and 3 an order; 4 and 5 have no order and nothing in common.
    rows = ["a,x,1", "b,y,1", "B,x,2", "c,y,2", "d,x,", "e,y,", "f,x,3"]
    path = write(tmp_path / "a.csv", "text,label,order\n" + "\n".join(rows) + "\n")
    groups = read(path, group="order").groups.tolist()
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 4


def test_a_validation_file_is_for_validation_in_every_partition(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\none,x\ntwo,y\nthree,x\nfour,y\n")
    dev = write(tmp_path / "dev.csv", "text,label\nfive,y\nsix,x\n")
    corpus = read(path, validation=str(dev))
    assert corpus.validating.tolist() == [False] * 4 + [True] * 2
    parts = split(corpus, PartitionSpec(kind="iid", clients=2, public=0, test=0, validation=0.5), seed=0)
    assert sorted(np.concatenate(list(parts.validation.values()))) == [4, 5]
    assert sorted(np.concatenate(list(parts.train.values()))) == [0, 1, 2, 3]
    write(dev, "text,label\nfive,z\n")
    with pytest.raises(
        FedstillError, match=r"dev.csv, row 2: no training row has the label 'z' \(1 such validation row"
    ):
        read(path, validation=str(dev))


def test_a_test_file_is_held_out_and_texts_in_both_are_counted(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\none,x\ntwo,y\ntwo,y\n")
    test = write(tmp_path / "b.csv", "text,label\nTwo,y\nthree,x\n,x\n")
    corpus = read(path, test=str(test))
    assert corpus.held_out.tolist() == [False, False, False, True, True]
    assert corpus.counts == {
        "rows read": 6,
        "empty text": 1,
        "duplicate texts": 2,
        "texts in both train and test": 1,
        "rows kept": 5,
    }
    assert corpus.groups[1] == corpus.groups[3]


def test_a_test_file_beside_a_folder_of_domains_is_refused(tmp_path):
    write(tmp_path / "train" / "a.csv", "text,label\none,x\ntwo,y\n")
    test = write(tmp_path / "test.csv", "text,label\none,x\n")
    with pytest.raises(FedstillError, match="their domains do not match; give two files, two folders"):
        read(tmp_path / "train", test=str(test))


# Faults


@pytest.mark.parametrize(
    ("name", "contents", "settings", "complaint"),
    [
        ("a.csv", "txt,label\na,x\n", {}, "a.csv, row 1: there is no column 'text', did you mean 'txt'?"),
        ("a.csv", "text,label\na,x\n", {"domain": "shop"}, "The columns are 'text', 'label'; set `domain:` to one"),
        ("a.csv", "good,1\nbad,0\n", {}, "or give `header:` if the first row is data."),
        ("a.csv", "txt;label\na;x\n", {}, "did you mean 'txt'? The columns are 'txt', 'label'; set `text:` to one"),
        ("a.csv", "txt~label\na~x\n", {}, "or say with `delimiter:` what stands between the fields."),
        ("a.csv", "text,text,label\na,b,x\n", {}, "there are 2 columns called 'text'; rename all but one."),
        ("a.csv", 'text,label\n"a\nb",x\nc,d,y\n', {}, "a.csv, row 4: expected 2 fields and found 3; quote texts"),
        ("a.tsv", "text\tlabel\na\n", {}, "a.tsv, row 2: expected 2 fields and found 1; remove tabs"),
        ("a.csv", "a,x\n", {"header": ["text", "label", "id"]}, "row 1: expected 3 fields and found 2; check"),
        ("a.csv", "text,label\na,x\n", {"header": ["text", "label"]}, "row 1: the file has a header row of its own"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,x\nd,y\n', {}, "a.csv, row 3: this is not well-formed (unexpected end"),
        ("a.csv", "text,label\na,x\nb,\n", {}, "a.csv, row 3: the label is missing; fill it in"),
        ("a.csv", "text,label\na,x\nb,x\n", {}, "has the label 'x'; check `label:`, two are needed."),
        ("a.csv", "text,label\n ,x\n,y\n", {}, "a.csv: every text is empty; check `text:`."),
        ("a.csv", "text,label\n", {}, "a.csv holds no rows; check that it was written completely"),
        ("a.csv", "", {}, "a.csv is empty; check that it was written completely."),
        ("a.csv", "text,label,d\na,x,n\nb,y,\n", {"domain": "d"}, "a.csv, row 3: the domain is missing"),
        ("a.csv", "text,label\na,x\n", {"encoding": "utf-99"}, "There is no encoding called 'utf-99'"),
        ("a.xlsx", "PK", {}, "a.xlsx is not in a format that fedstill reads; save it as .csv, .tsv,"),
        ("a.jsonl", '{"text": "a", "label": 1}\n\n{"text": \n', {}, "a.jsonl, row 3: this is not JSON (Expecting"),
        ("a.json", '[{"text": "a", "label": 1}]\n', {}, "a.json, row 1: this is not a JSON object; write one"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', {}, "a.jsonl, row 2: there is no column 'label'"),
        ("a.jsonl", '{"text": "a", "label": null}\n', {}, "a.jsonl, row 1: the label is missing"),
        ("a.jsonl", '{"text": ["a"], "label": 1}\n', {}, "row 1: column 'text' holds a list; fedstill reads texts and"),
        ("a.jsonl", '{"text": "\\ud83d", "label": 1}\n', {}, "row 1: column 'text' holds half a character"),
        ("a.jsonl", '{"text": "a", "label": 1}\n', {"header": ["text"]}, "names its own columns; leave `header:` out"),
        ("a.parquet", "PAR1 but no more", {}, "a.parquet is not a readable Parquet file"),
    ],
)  # fmt: skip
def test_a_fault_in_a_file_is_located_and_comes_with_a_remedy(tmp_path, name, contents, settings, complaint):
    path = write(tmp_path / name, contents)
    with pytest.raises(FedstillError) as raised:
        read(path, **settings)
    assert complaint in str(raised.value)


def test_a_label_outside_the_list_is_located(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\nb,z\n")
    with pytest.raises(FedstillError, match=r"a\.csv, row 3: the label 'z' is none of x, y; add it to `labels:`"):
        read(path, labels=["x", "y"])


def test_a_wrong_encoding_is_located_to_the_byte(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\nca\u00f1on,y\n", encoding="cp1252")
    with pytest.raises(FedstillError, match=r"a\.csv, row 3: byte 18 of the file is not utf-8; set `encoding:`"):
        read(path)
    with pytest.raises(FedstillError, match=r"byte 1 of the file is not utf-8; set .* for example utf-16"):
        read(write(tmp_path / "b.csv", "text,label\na,x\n", encoding="utf-16"))


def test_a_missing_file_and_an_empty_folder_say_so(tmp_path):
    with pytest.raises(FedstillError, match=r"absent\.csv does not exist; check `path:`"):
        read(tmp_path / "absent.csv")
    with pytest.raises(FedstillError, match="is a folder without data"):
        read(tmp_path)


# Hugging Face data sets


def test_a_data_set_gives_class_names_for_class_numbers(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    text = {"name": "text", "dtype": "string"}
    label = {"name": "label", "dtype": {"class_label": {"names": {"0": "bad", "1": "good"}}}}
    card = yaml.safe_dump({"dataset_info": {"features": [text, label]}})
    write(tmp_path / "set" / "README.md", f"---\n{card}---\n")
    write(tmp_path / "set" / "train.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')
    rows = list(files.read_dataset(str(tmp_path / "set"), None, "train", files.Columns()))
    assert [(row.text, row.label) for row in rows] == [("a", "good"), ("b", "bad")]
    assert rows[1].line == 2


def test_a_missing_extra_is_answered_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedstillError, match=r'run `pip install "fedstill\[datasets\]"`'):
        load(CorpusSpec(name="some/set"))


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(FedstillError, match=r"Did you mean tweets\?"):
        load(CorpusSpec(name="twets"))


def test_a_data_set_that_cannot_be_had_offline_is_one_sentence(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    with pytest.raises(FedstillError, match=r"none \(split train\) could not be loaded: .*; FEDSTILL_OFFLINE is set"):
        load(CorpusSpec(name="no-such-organisation/none"))


def test_a_path_given_as_a_name_is_answered_with_the_right_key(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\n")
    with pytest.raises(FedstillError, match=r"is a file or folder; write `corpus: \{path: "):
        load(CorpusSpec(name=str(path)))


# Public texts


def test_public_texts_need_no_label_column(tmp_path):
    path = write(tmp_path / "a.csv", "text,shop\none,north\n ,east\nOne,east\n")
    corpus = load_public(CorpusSpec(path=str(path), domain="shop"))
    assert corpus.texts == ["one", "One"]
    assert corpus.labels.tolist() == [-1, -1]
    assert corpus.label_names == ()
    assert corpus.groups.tolist() == [0, 0]
    assert domain_sizes(corpus) == {"east": 1, "north": 1}
    assert corpus.counts == {"rows read": 3, "empty text": 1, "duplicate texts": 1}


def test_public_texts_lose_the_labels_they_have(tmp_path):
    labelled = write(tmp_path / "a.csv", "text,label\none,x\ntwo,\n")
    bare = write(tmp_path / "b.csv", "text\none\ntwo\n")
    public, same = (load_public(CorpusSpec(path=str(path))) for path in (labelled, bare))
    assert public.fingerprint() == same.fingerprint()


def test_a_test_file_beside_public_texts_is_not_read(tmp_path):
    path = write(tmp_path / "a.csv", "text\none\ntwo\n")
    corpus = load_public(CorpusSpec(path=str(path), test=str(tmp_path / "absent.csv")))
    assert corpus.texts == ["one", "two"]
    assert corpus.held_out is None


def test_a_corpus_with_a_name_serves_as_public_texts():
    corpus = load_public(CorpusSpec(name="reviews"))
    assert len(corpus) == 33_530
    assert set(corpus.labels.tolist()) == {-1}
    assert corpus.label_names == ()


def test_a_data_set_without_labels_is_read_for_its_texts(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "some" / "set" / "train.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    rows = list(files.read_dataset(str(tmp_path / "some" / "set"), None, "train", files.Columns(label=None)))
    assert [(row.text, row.label) for row in rows] == [("a", ""), ("b", "")]


# Corpora with a name


def test_tweets_are_one_row_an_id_in_five_domains_with_every_dropped_row_counted():
    corpus = load(CorpusSpec(name="tweets"))
    assert corpus.label_names == ("Negative", "Neutral", "Positive")
    assert corpus.counts == {
        "rows read": 74_682,
        "Irrelevant": 12_990,
        "text under 3 characters": 1_299,
        "paraphrase of a tweet already taken": 50_119,
        "duplicate texts": 269,
    }
    assert len(corpus) == 74_682 - 12_990 - 1_299 - 50_119
    assert domain_sizes(corpus) == {
        "companies": 2_355,
        "hardware": 950,
        "shooters": 2_981,
        "sports": 1_044,
        "worlds": 2_944,
    }
    assert len(set(corpus.groups.tolist())) == len(corpus) - 269
    assert min(len(text.strip()) for text in corpus.texts) >= 3
    assert sum(map(len, ENTITIES.values())) == 32


def test_tweets_outside_the_given_labels_are_an_error():
    with pytest.raises(FedstillError, match="the label 'Neutral' is none of Negative, Positive"):
        load(CorpusSpec(name="tweets"), labels=["Negative", "Positive"])


def test_reviews_have_two_domains_and_as_many_negatives_as_positives():
    corpus = load(CorpusSpec(name="reviews"))
    assert domain_sizes(corpus) == {"imdb": 25_000, "rotten_tomatoes": 8_530}
    assert corpus.label_names == ("negative", "positive")
    assert np.bincount(corpus.labels).tolist() == [16_765, 16_765]
    assert corpus.counts == {"rows read": 33_530, "duplicate texts": 96}


def test_amazon_reads_a_file_or_a_folder_a_domain(tmp_path):
    write(tmp_path / "baby.csv", "idx,label,text\n1,0,meh\n2,2,broke\n")
    write(tmp_path / "automotive" / "train.csv", "idx,label,text\n1,1,great\n")
    write(tmp_path / "automotive" / "dev.csv", "idx,label,text\n7,2,rust\n")
    corpus = load(CorpusSpec(name="amazon", path=str(tmp_path)))
    assert domain_sizes(corpus) == {"automotive": 2, "baby": 2}
    named = {text: corpus.label_names[label] for text, label in zip(corpus.texts, corpus.labels, strict=True)}
    assert named == {"meh": "neutral", "broke": "negative", "great": "positive", "rust": "negative"}
    assert corpus.label_names == EMBEDDED["amazon"].labels == ("neutral", "positive", "negative")


def test_amazon_faults_say_what_to_do(tmp_path):
    with pytest.raises(FedstillError, match=r"`corpus\.path=FOLDER`"):
        load(CorpusSpec(name="amazon"))
    with pytest.raises(FedstillError, match="is not a folder"):
        load(CorpusSpec(name="amazon", path=str(tmp_path / "absent")))
    with pytest.raises(FedstillError, match="holds no CSV file"):
        load(CorpusSpec(name="amazon", path=str(tmp_path)))
    write(tmp_path / "baby" / "train.csv", "idx,label,text\n1,0,meh\n2,5,broke\n")
    with pytest.raises(FedstillError, match=r"train\.csv, row 3: the label is '5'; it must be 0 \(neutral\)"):
        load(CorpusSpec(name="amazon", path=str(tmp_path)))
    with pytest.raises(FedstillError, match="is a split, not a domain"):
        load(CorpusSpec(name="amazon", path=str(tmp_path / "baby")))


def test_the_real_amazon_files_are_read_whole():
    corpus = load(CorpusSpec(name="amazon", path=str(real("amazon"))))
    assert domain_sizes(corpus) == {"automotive": 4_076, "baby": 7_676, "health": 4_278, "sport": 8_368}
    health = corpus.labels[corpus.domains == corpus.domain_names.index("health")]
    assert np.bincount(health).tolist() == [3_291, 557, 430]


def test_the_real_glue_files_are_read_whole():
    glue = real("glue")
    acceptability = read(glue / "CoLA" / "train.tsv", header=["source", "label", "mark", "sentence"], text="sentence")
    assert acceptability.counts["rows read"] == 8_551
    paraphrases = read(glue / "MRPC" / "train.tsv", text=["#1 String", "#2 String"], label="Quality")
    assert len(paraphrases) == 3_667
    sentiment = read(glue / "SST-2" / "train.tsv", test=str(glue / "SST-2" / "dev.tsv"), text="sentence")
    assert (~sentiment.held_out).sum() == 67_349
    assert sentiment.held_out.sum() == 872


def test_the_real_news_files_without_a_header_are_read_whole():
    corpus = read(real("agnews") / "train.csv", header=["label", "text"])
    assert np.bincount(corpus.labels).tolist() == [1_000] * 4


def test_a_corpus_is_one_entry(monkeypatch):
    def read(spec, is_public):
        rows = [Row("haiku", 1, "old pond", None, "frog"), Row("haiku", 2, "first snow", None, "hare")]
        return Source("haiku", rows, labels=("hare", "frog"), metrics=("accuracy",))

    monkeypatch.setitem(EMBEDDED, "haiku", Embedded("poems", "none", ("hare", "frog"), frozenset({"encoding"}), read))
    corpus = load(CorpusSpec(name="haiku", encoding="latin-1"))
    assert (corpus.texts, corpus.labels.tolist()) == (["old pond", "first snow"], [1, 0])
    assert (corpus.label_names, corpus.metrics) == (("hare", "frog"), ("accuracy",))
    assert ("haiku", "poems", "hare, frog", "none") in catalogue.corpora()[1]
    with pytest.raises(ValueError, match="did you mean haiku"):
        CorpusSpec(name="Haiku")
    with pytest.raises(ValueError, match="haiku takes no `size:`"):
        CorpusSpec(name="haiku", size=8)


def test_a_corpus_by_name_is_found_in_a_folder_of_several(tmp_path: Path) -> None:
    (tmp_path / "agnews").mkdir()
    for name in ("train", "test"):
        (tmp_path / "agnews" / f"{name}.csv").write_text("0,peace at last\n1,they won\n2,stocks fell\n3,a new chip\n")
    for path in (tmp_path, tmp_path / "agnews"):
        assert load(CorpusSpec(name="agnews", path=str(path))).counts["rows read"] == 8
    assert CorpusSpec(path=str(tmp_path)).folder == tmp_path
