"""One small federation of rows in memory, which the tests of this folder read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import fedstill
from tests.conftest import write_reviews


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Reviews of three shops, as mappings; a column that nobody needs is among them."""
    path = write_reviews(tmp_path_factory.mktemp("rows") / "reviews.csv")
    with path.open(newline="") as file:
        return [{**row, "secret": "never kept"} for row in csv.DictReader(file)]


@pytest.fixture(scope="session")
def experiment(rows: list[dict[str, Any]]) -> fedstill.Experiment:
    return fedstill.Experiment(
        name="memory",
        corpus={"table": rows, "text": ["title", "body"], "label": "stars", "domain": "shop"},
        clients=["bow", "textcnn", "bow"],
        server="bert-tiny",
        train={"epochs": 2, "max_length": 24},
        rounds=1,
        workers=1,
    )


@pytest.fixture(scope="session")
def record(experiment: fedstill.Experiment, tmp_path_factory: pytest.TempPathFactory) -> fedstill.Record:
    return fedstill.run(experiment, tmp_path_factory.mktemp("api") / "run", progress=False)


@pytest.fixture
def small(experiment: fedstill.Experiment) -> fedstill.Experiment:
    """The same with nothing but bags of words, which takes a second."""
    return experiment.changed(clients="bow", server="bow")


def files_of(run: Path) -> dict[str, bytes]:
    """What must be the same for the same experiment."""
    kept = ("metrics.jsonl", "ledger.jsonl", "models/server/model.safetensors")
    return {name: (run / name).read_bytes() for name in kept}
