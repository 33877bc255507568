"""Tables for which nothing is trained: how many rows there are, and how the clients' languages differ."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer

from fedstill.papers.languages import components, languages
from fedstill.papers.statistics import statistics
from tests.cli.test_cli import fedstill
from tests.papers.tiny import TINY, tiny_grid

LANGUAGES = TINY[: TINY.index("values:")].replace("method: AdaFD", "table: languages")
STATISTICS = """\
# Rows of two corpora
title: rows
paper: Nobody, Table 0
table: statistics
experiment: {corpus: {path: REVIEWS, text: [title, body], label: stars, domain: shop}, workers: 1}
scales: {small: {}}
rows:
  ours: Local
  gone: {algorithm: Local, experiment: {corpus: {path: nowhere.csv}}}
columns:
  train: {heading: "#Train"}
  dev: {heading: "#Dev"}
values:
  "":
    ours: [240, 7]
    gone: [10, 2]
"""


def test_components_are_those_of_scikit_learn_up_to_the_sign(reviews: Path) -> None:
    with reviews.open(newline="", encoding="utf-8") as file:
        texts = [f"{row['title']} {row['body']}" for row in csv.DictReader(file)]
    features = TfidfVectorizer().fit_transform(texts)
    expected = PCA(2, svd_solver="full").fit_transform(features.toarray())
    found = components(features)
    signs = np.sign((found * expected).sum(axis=0))
    assert found * signs == pytest.approx(expected, abs=1e-8)


def test_every_client_is_compared_with_every_other(reviews: Path, tmp_path: Path) -> None:
    table, _ = languages(tiny_grid(reviews, tmp_path, text=LANGUAGES))
    assert table.headings == (
        "client",
        "texts",
        "component 1",
        "component 2",
        "like books",
        "like garden",
        "like toys",
    )
    ((_, rows),) = table.groups
    assert [row[:2] for row in rows] == [(shop, "58") for shop in ("books", "garden", "toys")]
    likeness = [list(map(float, row[4:])) for row in rows]
    assert np.allclose(likeness, np.transpose(likeness))
    assert np.diag(likeness).tolist() == [1.0, 1.0, 1.0]


def test_rows_are_counted_beside_what_the_paper_says(reviews: Path, tmp_path: Path) -> None:
    table, problems = statistics(tiny_grid(reviews, tmp_path, text=STATISTICS))
    assert table.groups == (("", (("ours", "240 | 240", "7 | 0"), ("gone", "10 | –", "2 | –"))),)
    assert len(problems) == 1
    assert problems[0].startswith("gone: ")


def test_the_command_trains_nothing(reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "rows.yaml"
    recipe.write_text(STATISTICS.replace("REVIEWS", str(reviews)))
    assert fedstill("reproduce", str(recipe), "--out", str(tmp_path / "out")) == 0
    assert "Nothing was trained." in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["table.md"]
    assert "| ours | 240 \\| 240 | 7 \\| 0 |" in (tmp_path / "out" / "table.md").read_text()
