"""One real run, in which every text and a shop's name try to be markup."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedstill
from fedstill import Experiment
from fedstill.results.record import Record
from tests.conftest import write_reviews

ATTACK = "<script>alert(1)</script>"
SHOP = "to<b>ys"


@pytest.fixture(scope="session")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of one seed: AdaFD, and every client alone."""
    folder = tmp_path_factory.mktemp("report")
    lines = list(csv.reader(write_reviews(folder / "reviews.csv").open(newline="")))
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(lines[0])
        for title, body, stars, shop in lines[1:]:
            writer.writerow([title, f"{body} {ATTACK}", stars, SHOP if shop == "toys" else shop])
    for algorithm in ("AdaFD", "Local"):
        settings = {
            "name": f"shops-{algorithm.lower()}",
            "corpus": {"path": str(folder / "reviews.csv"), "text": "body", "label": "stars", "domain": "shop"},
            "partition": {"kind": "domain", "public": 0.2, "test": 0.2, "validation": 0.1},
            "clients": "bow",
            "server": "bow",
            "algorithm": algorithm,
            "train": {"epochs": 1, "batch": 8, "max_length": 16},
            "rounds": 2,
            "workers": 1,
        }
        fedstill.run(Experiment.model_validate(settings), folder / "runs" / algorithm / "seed-0")
    return folder / "runs"


@pytest.fixture(scope="session")
def record(shops: Path) -> Record:
    """The run of AdaFD."""
    return Record(shops / "AdaFD" / "seed-0")
