"""Tables in memory, as files have them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from fedstill.common.errors import FedstillError
from fedstill.data import corpora, partition
from fedstill.data.corpora import CorpusSpec
from fedstill.data.corpora.memory import Held, check_kept, is_table
from fedstill.data.partition import PartitionSpec

ROWS: list[dict[str, Any]] = [
    {"text": f"text {number}", "label": number % 2, "domain": "ab"[number % 2]} for number in range(6)
]


def spec(table: Any, **settings: Any) -> CorpusSpec:
    return CorpusSpec.model_validate({"table": table, **settings} if settings else table)


def test_every_kind_of_table_is_the_same_corpus() -> None:
    datasets = pytest.importorskip("datasets")
    tables = [
        ROWS,
        tuple(ROWS),
        pandas.DataFrame(ROWS),
        pyarrow.Table.from_pylist(ROWS),
        datasets.Dataset.from_list(ROWS),
    ]
    found = [corpora.load(spec(table)) for table in tables]
    assert {corpus.fingerprint() for corpus in found} == {found[0].fingerprint()}
    assert len({spec(table).path for table in tables}) == 1
    assert found[0].label_names == ("0", "1")
    assert found[0].domain_names == ("a", "b")


def test_class_numbers_of_a_data_set_become_names() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS).cast_column("label", datasets.ClassLabel(names=["bad", "good"]))
    assert corpora.load(spec(table)).label_names == ("bad", "good")


def test_cells_are_as_in_a_file() -> None:
    frame = pandas.DataFrame(
        {
            "text": ["a", "b", "c", "d"],
            "label": [1.0, 2.0, np.nan, 2.0],
            "group": pandas.array([1, None, 2, 2], dtype="Int64"),
            "flag": [np.bool_(True), np.bool_(False), None, np.bool_(True)],
        }
    )
    held = Held.of(frame, ["text", "label", "group", "flag"])
    assert held.records[2] == {"text": "c", "label": None, "group": 2, "flag": None}
    assert json.loads(held.data.splitlines()[0]) == {"text": "a", "label": 1.0, "group": 1, "flag": True}
    with pytest.raises(FedstillError, match="the table, row 3: the label is missing"):
        corpora.load(spec(frame))


def test_the_name_of_the_file_tells_the_rows() -> None:
    assert spec(ROWS).path == spec(list(ROWS)).path
    assert spec(ROWS).path != spec(ROWS[:-1]).path
    assert spec(ROWS).path != spec([{**row, "text": row["text"].upper()} for row in ROWS]).path
    assert spec(ROWS).path == spec([{**row, "unused": 1} for row in ROWS]).path


def test_a_table_has_its_own_test_rows() -> None:
    both = spec(ROWS, test=[{"text": "new", "label": 1, "domain": "a"}], domain="domain")
    corpus = corpora.load(both)
    assert corpus.held_out is not None
    assert corpus.held_out.tolist() == [False] * 6 + [True]
    assert len(both.held_files()) == 2


def test_tables_named_after_parts_become_these_parts() -> None:
    datasets = pytest.importorskip("datasets")
    later = [{**row, "text": f"later {row['text']}"} for row in ROWS]
    extra = [{**row, "text": f"extra {row['text']}"} for row in ROWS]
    split = {"train": ROWS, "validation": later, "test": extra}
    data = datasets.DatasetDict({name: datasets.Dataset.from_list(table) for name, table in split.items()})
    corpus = corpora.load(spec(data))
    assert corpus.fingerprint() == corpora.load(spec(split)).fingerprint()
    assert corpus.fingerprint() == corpora.load(spec(split, text="text", domain="domain")).fingerprint()
    assert corpus.held_out is not None
    assert corpus.validating is not None
    parts = partition.split(corpus, PartitionSpec(public=0), seed=0)
    for role, names in ((parts.train, ""), (parts.validation, "later "), (parts.test, "extra ")):
        rows = np.concatenate(list(role.values()))
        assert sorted(corpus.texts[row] for row in rows) == [f"{names}text {number}" for number in range(6)]
    assert set(corpora.load_public(spec(data)).texts) == {row["text"] for row in ROWS}


def test_tables_with_other_names_are_domains() -> None:
    north, south = ROWS[:3], ROWS[3:]
    corpus = corpora.load(spec({"north": north, "south": pandas.DataFrame(south)}))
    assert corpus.domain_names == ("north", "south")
    assert corpus.domains is not None
    assert corpus.domains.tolist() == [0, 0, 0, 1, 1, 1]
    own = corpora.load(spec({"north": north, "south": south}, domain="domain", test={"north": ROWS}))
    assert own.domain_names == ("a", "b")  # a column wins over names, as in a folder of files


def test_rows_that_are_also_in_validation_or_test_are_left_out() -> None:
    split = {"train": ROWS, "dev": [ROWS[0], ROWS[1], {**ROWS[2], "text": "new"}], "test": [ROWS[1]]}
    corpus = corpora.load(spec(split))
    parts = partition.split(corpus, PartitionSpec(kind="iid", clients=1, public=0), seed=0)

    def texts(rows: Any) -> list[str]:
        return [corpus.texts[row] for row in rows]

    assert texts(parts.train["client-1"]) == ["text 2", "text 3", "text 4", "text 5"]
    assert texts(parts.validation["client-1"]) == ["text 0", "new"]
    assert texts(parts.test["client-1"]) == ["text 1"]
    assert parts.counts == {"shares a group with a held-out or validation row": 3}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"train": ROWS, "unsupervised": ROWS}, "leave unsupervised out"),
        ({"test": ROWS}, "a corpus has one train"),
        ({"train": ROWS, "dev": ROWS, "validation": ROWS}, "at most one validation"),
        ({"table": {"north": ROWS}, "test": ROWS}, "give tables by domain for each of table, test"),
        ({"table": {"train": ROWS, "test": ROWS}, "test": ROWS}, "at most one validation and one test"),
    ],
)
def test_tables_whose_names_leave_a_doubt_are_refused(tables: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        spec(tables)


def test_rows_travel_until_they_are_kept(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(spec(ROWS)))
    assert corpora.load(again).texts == corpora.load(spec(ROWS)).texts
    kept = spec(ROWS).kept_in(tmp_path)
    for name, data in kept.held_files().items():
        (tmp_path / name).write_bytes(data)
    sent = pickle.loads(pickle.dumps(kept))
    assert sent.held("path") is None
    assert corpora.load(sent).fingerprint() == corpora.load(spec(ROWS)).fingerprint()
    (tmp_path / Path(str(kept.path)).name).write_text("{}\n")
    with pytest.raises(FedstillError, match="was changed since its run began"):
        check_kept(Path(str(kept.path)))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (pandas.DataFrame({"txt": ["a"], "label": ["x"]}), "the table: there is no column 'text', did you mean 'txt'"),
        (pandas.DataFrame({"text": [], "label": []}), "the table holds no rows"),
        ([{"text": ["a"], "label": 1}], "row 1: column 'text' holds a list"),
    ],
)
def test_mistakes_are_named(table: Any, sentence: str) -> None:
    with pytest.raises(FedstillError, match=sentence):
        corpora.load(spec(table))


def test_what_is_no_table_is_refused() -> None:
    assert not is_table("tweets")
    assert not is_table({"path": "x.csv"})
    assert not is_table(pandas.Series(["a"]))
    assert not is_table(["a", "b"])
    with pytest.raises(ValueError, match="`table` is a DataFrame"):
        spec(3, text="text")
    with pytest.raises(ValueError, match="takes the place of `path`"):
        spec(ROWS, path="x.csv")
