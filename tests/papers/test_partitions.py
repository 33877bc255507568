"""Figures that show who holds what: counted, drawn and written down, with nothing trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedstill.config.source import Source
from fedstill.data import corpora, partition
from fedstill.data.corpora import CorpusSpec
from fedstill.data.partition import PartitionSpec
from fedstill.papers.grid import plan_grid
from fedstill.papers.reproduce import Table, reproduce
from fedstill.results.picture import holdings

SHOPS = """\
# Who has which reviews
title: who has which labels
paper: Nobody, Figure 0
table: partitions
notes: [Stars are labels.]
experiment:
  corpus: {path: REVIEWS, text: [title, body], label: stars}
  partition: {kind: dirichlet, clients: 3, public: 0, validation: 0, test: 0.25}
scales: {small: {}}
groups: {three shops: {}}
rows: {FedAvg: FedAvg}
columns:
  alpha=200: {experiment: {partition: {alpha: 200}}}
  alpha=0.5: {experiment: {partition: {alpha: 0.5}}}
"""


def drawn(reviews: Path, out: Path) -> str:
    grid = plan_grid(Source(SHOPS.replace("REVIEWS", str(reviews)), "shops.yaml"), "small", out)
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        assert reproduce([Table(grid, out)], console)
    return capture.get()


def test_every_partition_is_drawn_in_the_terminal_in_a_png_and_on_the_page(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = drawn(reviews, out)
    assert "three shops, alpha=200" in shown
    assert "Training rows of client-1 to client-3" in shown
    assert "Nothing was trained." in shown
    names = ["table.md", "three-shops-alpha-0.5.png", "three-shops-alpha-200.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    page = (out / "table.md").read_text()
    assert "- Stars are labels." in page
    assert "![three shops, alpha=0.5](three-shops-alpha-0.5.png)" in page
    corpus = corpora.load(CorpusSpec(path=str(reviews), text=["title", "body"], label="stars"), None)
    spec = PartitionSpec(kind="dirichlet", clients=3, alpha=0.5, public=0, validation=0, test=0.25)
    counts, labels = holdings(corpus, partition.split(corpus, spec, 0))
    first = page[page.index("alpha=0.5") :]
    for name, numbers in zip(labels, counts.tolist(), strict=True):
        line = next(line for line in first.splitlines() if line.startswith(name))
        assert [int(word) for word in line.split() if word.isdigit()] == numbers


def test_counts_are_by_task_where_there_are_several(reviews: Path) -> None:
    shops = {"text": ["title", "body"], "label": "stars"}
    tasks = {"first": {"path": str(reviews), **shops}, "second": {"path": str(reviews), **shops}}
    corpus = corpora.load(CorpusSpec.model_validate({"name": "tasks", "tasks": tasks}), None)
    spec = PartitionSpec(kind="task_dirichlet", alpha=0, public=0, validation=0)
    counts, names = holdings(corpus, partition.split(corpus, spec, 0))
    assert names == ("first", "second")
    assert counts.shape == (2, 2)
    assert counts[0, 1] == counts[1, 0] == 0
    assert counts[0, 0] > 0 < counts[1, 1]


def test_without_matplotlib_the_terminal_and_the_page_remain(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = drawn(reviews, tmp_path / "out")
    assert shown.count('pip install "fedstill[figures]"') == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["table.md"]
