"""`fedstill predict`: every column is kept, the input is never written to, and a long file takes no more memory."""

from __future__ import annotations

import csv
import json
import shutil
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import fedstill as package
from fedstill.common.errors import FedstillError
from fedstill.data.corpora.tables import Columns, Form
from fedstill.results import inference, labelled
from tests.cli.test_cli import fedstill

ADDED = ["predicted", "probability_bad", "probability_good", "probability_so-so"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on reviews of a title and a body."""
    folder = tmp_path_factory.mktemp("predict")
    words = {"bad": "awful", "good": "lovely", "so-so": "fine"}
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "body", "stars"])
        for number in range(90):
            stars = list(words)[number % 3]
            writer.writerow([f"thing {number}", f"it was {words[stars]}", stars])
    return package.run(
        package.Experiment(
            corpus={"path": str(folder / "reviews.csv"), "text": ["title", "body"], "label": "stars"},
            partition={"kind": "iid", "clients": 2},
            clients="bow",
            server="bow",
            train={"epochs": 1, "batch": 8, "max_length": 16},
            rounds=1,
            workers=1,
        ),
        folder / "run",
    ).folder


@pytest.fixture
def texts(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of texts to label."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(run.parent / "reviews.csv", tmp_path / "x.csv")
    return tmp_path


def test_predictions_are_not_written_over_their_texts(
    run: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (texts / "x.csv").read_bytes()
    (texts / "link.csv").symlink_to(texts / "x.csv")
    for out in ("x.csv", "./x.csv", "link.csv"):
        assert fedstill("predict", str(run), "x.csv", "--out", out) == 1
        assert "is the file of the texts itself" in capsys.readouterr().err
    assert fedstill("predict", str(run), ".", "--out", "x.csv") == 1
    assert (texts / "x.csv").read_bytes() == before


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_all_columns_are_kept_and_labels_and_probabilities_added(run: Path, texts: Path, suffix: str) -> None:
    assert fedstill("predict", str(run), "x.csv", "--out", f"y.{suffix}") == 0
    with (texts / "x.csv").open() as file:
        given = list(csv.DictReader(file))
    rows = _rows(texts / f"y.{suffix}")
    assert list(rows[0]) == ["title", "body", "stars", *ADDED]
    assert [{name: row[name] for name in given[0]} for row in rows] == given
    for row in rows:
        chances = {name.partition("_")[2]: float(str(row[name])) for name in ADDED[1:]}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert row["predicted"] == max(chances, key=chances.__getitem__)
    assert [path.name for path in texts.iterdir() if path.name.startswith(".")] == []


def test_eight_bits_are_for_encoders(run: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("predict", str(run), "x.csv", "--int8") == 1
    assert "int8 is for BERT-" in capsys.readouterr().err


def test_columns_of_a_parquet_file_keep_their_types(run: Path, texts: Path) -> None:
    table = pyarrow.table({"title": ["a", "b"], "body": ["lovely", "awful"], "ids": [[1, 2], None], "n": [1.5, None]})
    pyarrow.parquet.write_table(table, "x.parquet")
    assert fedstill("predict", str(run), "x.parquet", "--out", "y.parquet") == 0
    assert pyarrow.parquet.read_table("y.parquet").select(table.column_names) == table
    assert fedstill("predict", str(run), "x.parquet", "--out", "y.csv") == 0
    assert [(row["ids"], row["n"]) for row in _rows(texts / "y.csv")] == [("[1, 2]", "1.5"), ("", "")]
    assert fedstill("predict", str(run), "x.parquet", "--out", "y.jsonl") == 0
    assert [(row["ids"], row["n"]) for row in _rows(texts / "y.jsonl")] == [([1, 2], 1.5), (None, None)]


@pytest.mark.parametrize(
    ("name", "contents", "out", "says"),
    [
        ("x.csv", "title,body,predicted\na,b,c\n", "y.csv", "has a column 'predicted' already"),
        ("x.csv", "title,body,id,id\na,b,1,2\n", "y.csv", "there are 2 columns called 'id'; rename all but one"),
        ("x.csv", 'title,body\na,"b\nc"\n', "y.tsv", "holds tabs or line breaks, which TSV cannot"),
        ("x.csv", "title,body\na,b\nc\n", "y.csv", "x.csv, row 3: expected 2 fields and found 1"),
        ("x.csv", "title,body\na,b\n", "y.xlsx", "give a name that ends in .csv, .tsv, .jsonl or .parquet"),
    ],
)
def test_nothing_is_written_where_it_cannot_be_whole(
    run: Path, texts: Path, capsys: pytest.CaptureFixture[str], name: str, contents: str, out: str, says: str
) -> None:
    (texts / name).write_text(contents)
    assert fedstill("predict", str(run), name, "--out", out) == 1
    assert says in capsys.readouterr().err
    assert [path.name for path in texts.iterdir()] == ["x.csv"]


def test_a_row_that_does_not_fit_the_types_so_far_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled, "AT_ONCE", 2)
    rows: list[dict[str, object]] = [{"n": 1}, {"n": 2}, {"n": "three"}]
    with pytest.raises(FedstillError, match="values of several kinds"):
        labelled.write_rows(tmp_path / "y.parquet", rows, ["n"], tmp_path / "x.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_file_ten_times_as_long_takes_no_more_memory(run: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "AT_ONCE", 100)
    model = inference.labeller(run, "server")

    def peak(rows: int) -> int:
        (texts / "long.csv").write_text("title,body\n" + "".join(f"thing {n},it was lovely {n}\n" for n in range(rows)))
        tracemalloc.start()
        found = inference.Texts.survey(texts / "long.csv", Columns("title", "body", None), Form())
        assert sum(1 for _ in model.label(found)) == rows
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(200)
    assert peak(2000) < 1.5 * peak(200)


def _rows(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_a_missing_column_is_said_with_the_option_that_names_another(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    new.write_text("id,letter\n1,lovely\n")
    assert fedstill("predict", str(run), str(new)) == 1
    assert "The columns are 'id', 'letter'; set `--text` to one of them." in capsys.readouterr().err
