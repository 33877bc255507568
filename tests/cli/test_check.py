"""`fedstill check`: the partition as a picture, and models that cannot read what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.data.corpora import CorpusSpec, load
from fedstill.data.partition import PartitionSpec, split
from tests.cli.test_cli import fedstill

DIGITS = """\
name: numbers
corpus: {name: digits, size: 8}
partition: {kind: dirichlet, alpha: 0.5, clients: 3, public: 0.0, rows_per_domain: 90}
clients: {name: cnn, filters: 4, hidden: 8}
server: {name: cnn, filters: 4, hidden: 8}
algorithm: FedSND
train: {max_length: 16}
workers: 1
"""
SHOPS = """\
name: shops
corpus: {path: reviews.csv, text: [title, body], label: stars, domain: shop}
clients: bow
server: bow
workers: 1
"""


@pytest.fixture
def here(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment on images and one on texts, and a cache of its own."""
    folder = reviews.parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    (folder / "digits.yaml").write_text(DIGITS)
    (folder / "shops.yaml").write_text(SHOPS)
    return folder


def test_who_has_which_label_is_printed_and_drawn_where_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("check", "digits.yaml", "--picture", "shares.png") == 0
    printed = capsys.readouterr().out
    assert (here / "shares.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (here / "shares.png").stat().st_size > 2_000
    assert not (here / "numbers-partition.png").exists()
    assert "shares.png" in printed
    assert not (here / "runs").exists()
    # What the table says is what the partition gives.
    corpus = load(CorpusSpec(name="digits", size=8))
    spec = PartitionSpec(kind="dirichlet", alpha=0.5, clients=3, public=0.0, rows_per_domain=90)
    train = split(corpus, spec, 0).train
    for number in range(10):
        counts = [int((corpus.labels[rows] == number).sum()) for rows in train.values()]
        line = next(line for line in printed.splitlines() if _cells(line)[:1] == [str(number)])
        assert _cells(line)[1:6:2] == [str(count) for count in counts]  # a shade follows each
    missing = {name: set(range(10)) - set(corpus.labels[rows].tolist()) for name, rows in train.items()}
    for name, labels in missing.items():
        assert (f"{name} has no {' and no '.join(map(str, sorted(labels)))} among its" in printed) == bool(labels)
    assert any(missing.values())


def _cells(line: str) -> list[str]:
    return line.replace("│", " ").replace("┃", " ").split()


def test_without_a_place_the_picture_has_the_experiments_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("check", "shops.yaml", "algorithm=FedAvg") == 0
    assert (here / "shops-partition.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "shops-partition.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["digits.yaml", "clients=textcnn", "server=textcnn"], "textcnn reads text, and digits holds images"),
        (["digits.yaml", "clients=bow"], "bow reads text, and digits holds images"),
        (["shops.yaml", "clients=cnn", "server=cnn"], "cnn reads images, and reviews holds text"),
        (["shops.yaml", "server=lenet"], "server's model lenet reads images, and reviews holds text"),
        (["digits.yaml", "public=tweets"], "public: digits holds images; use some of its own rows"),
        (["digits.yaml", "clients=lenet", "server=lenet"], "lenet needs images of 12x12 pixels or more"),
        (["shops.yaml", "algorithm=FedSND"], "bow has no word embeddings to invent texts in"),
        (["shops.yaml", "algorithm=FedDRS"], "bow has no word embeddings to invent texts in"),
        (["shops.yaml", "algorithm=FedAUX"], "FedAUX: bow has no linear layer"),
        (["shops.yaml", "train.heads=task"], "train.heads: reviews has one task only"),
        (["shops.yaml", "corpus={name: superGLUE, task: CB}"], "no corpus called superGLUE; did you mean superglue?"),
        (["digits.yaml", "--picture", "reviews.csv"], "pictures are written as PNG"),
        (["digits.yaml", "--picture", "nowhere/shares.png"], "there is no folder nowhere"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert fedstill("check", *words) != 0
    printed = " ".join((lambda said: said.err + said.out)(capsys.readouterr()).split())
    assert says in printed
    assert "Traceback" not in printed
    assert not list(here.glob("*.png"))
    assert (here / "reviews.csv").read_text().startswith("title,body")


def test_messy_labels_are_told_before_anything_is_trained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = here / "reviews.csv"
    file.write_text(file.read_text().replace(",good,", ",Good,", 3).replace(",bad,", ",,", 2))
    assert fedstill("check", "shops.yaml") == 1
    said = capsys.readouterr().err
    assert "the label is missing, as in 2 of 240 rows" in said
    assert "'Good' (3), 'good'" in said
    assert fedstill("check", "shops.yaml", "corpus.missing=drop") == 0
    printed = capsys.readouterr().out
    assert "(rows read: 240, no label: 2, rows kept: 238)" in printed
    assert "note: 'Good' (3), 'good'" in printed
    assert fedstill("run", "shops.yaml", "corpus.missing=drop", "algorithm=Local", "rounds=1", "train.epochs=1") == 0
    printed = capsys.readouterr().out
    assert "corpus: 240 rows read; no label: 2, rows kept: 238" in printed
    assert "note: corpus: 'Good' (3), 'good'" in printed


def test_a_picture_that_cannot_be_written_does_not_keep_the_rest_from_being_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "shops-partition.png").mkdir()
    assert fedstill("check", "shops.yaml") == 0
    printed = capsys.readouterr().out
    assert "shops-partition.png cannot be used (Is a directory)." in printed
    assert printed.rstrip().endswith("Nothing was trained.")


def test_without_test_rows_it_is_said_that_nothing_will_be_measured(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedstill("check", "shops.yaml", "partition.test=0") == 0
    assert "There are no test rows (partition.test): nothing will be measured" in capsys.readouterr().out
    assert fedstill("check", "shops.yaml") == 0
    assert "There are no test rows" not in capsys.readouterr().out
