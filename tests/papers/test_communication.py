"""The ledger's numbers against the formulas, worked out from a partition and a model that really ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedstill.common.errors import FedstillError
from fedstill.engines.runner import run
from fedstill.papers.communication import COSTS, Account, communication
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes
from fedstill.results.runs import load_runs
from tests.papers.tiny import TINY, tiny_grid

ROWS = """\
rows:
  FedAvg: FedAvg
  FedDF: FedDF
  FedED: FedED
  FedKD: FedKD
  DS-FL: DSFL
  MHAT: MHAT
  FedID: FedID
columns: {Formulation: {}}
"""
TABLE = (
    TINY[: TINY.index("rows:")].replace("method: AdaFD", "table: communication").replace("epochs: 2", "epochs: 3")
    + ROWS
).replace("public: 0.1", "public: 0.3, labelled_public: 0.2")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grid, Outcomes]:
    """All seven methods with a small model, for real."""
    from tests.conftest import write_reviews

    folder = tmp_path_factory.mktemp("communication")
    grid = tiny_grid(write_reviews(folder / "reviews.csv"), folder / "out", text=TABLE, seeds=1)
    for each in grid.runs:
        run(each.experiment, each.folder)
    return grid, {each.folder: load_runs([each.folder])[0] for each in grid.runs}


def test_every_number_in_the_ledger_is_accounted_for(ran: tuple[Grid, Outcomes]) -> None:
    grid, outcomes = ran
    folder = grid.runs[0].folder
    parameters = sum(array.size for array in load_file(folder / "models/server/model.safetensors").values())
    # 240 reviews of three shops: 3 x 24 public, of which 3 x 5 are labelled; bad, good and so-so; two rounds
    n, c, k, t, d, b = 57, 3, 3, 2, 3, 4
    expected = {
        "FedAvg": (parameters * (k + 1) * t, parameters * (k + 1) * t + parameters),
        "FedDF": (parameters * (k + 1) * t, parameters * (k + 1) * t + parameters),
        "FedED": ((parameters + n * c * k) * t, (parameters + n * c * k) * t + parameters),
        "FedKD": (n * c * k, n * c * k),
        "DS-FL": (n * c * (k + 1) * t, n * c * (k + 1) * t),
        "MHAT": (n * c * (k + 1) * t, n * c * (k + 1) * t),
        "FedID": (n * c * (k + 1) * d * t, n * c * (k + 1) * d * t + b * d * t),
    }
    table, remarks, holds = communication(grid, outcomes)
    assert holds
    ((_, rows),) = table.groups
    assert {row[0]: (row[3], row[4]) for row in rows} == {
        name: (f"{predicted:,}", f"{counted:,}") for name, (predicted, counted) in expected.items()
    }
    verdicts = {row[0]: row[5] for row in rows}
    assert verdicts["MHAT"] == "equal"
    assert verdicts["FedAvg"] == f"+{parameters:,}: the last model goes down after round T too (P)"
    assert verdicts["FedID"] == "+24: the feedback, one number per public batch (BDT)"
    assert remarks[0].startswith("N = 57 public rows, C = 3 classes, K = 3 clients")
    assert remarks[2] == "FedED, FedKD, DS-FL, MHAT: the paper leaves out the factor C."


def test_a_number_that_nobody_expected_is_seen(ran: tuple[Grid, Outcomes], tmp_path: Path) -> None:
    grid, outcomes = ran
    ledger = next(run.folder for run in grid.runs if run.row == "MHAT") / "ledger.jsonl"
    before = ledger.read_text()
    line = json.loads(before.splitlines()[-1]) | {"payload": 40}
    ledger.write_text(before + json.dumps(line) + "\n")
    try:
        table, _, holds = communication(grid, outcomes)
    finally:
        ledger.write_text(before)
    assert not holds
    assert next(row[5] for row in table.groups[0][1] if row[0] == "MHAT") == "NOT EXPLAINED: +10"


def test_a_method_without_a_formula_is_refused_by_name(ran: tuple[Grid, Outcomes]) -> None:
    grid, _ = ran
    experiment = grid.runs[0].experiment.model_copy(update={"algorithm": {"name": "FedMD"}})
    with pytest.raises(FedstillError, match="no formula is known for FedMD"):
        Account.of(type(grid.runs[0])("few", "FedMD", ("Formulation",), experiment, grid.runs[0].folder))
    assert set(COSTS) == {"FedAvg", "FedDF", "FedED", "FedKD", "DSFL", "MHAT", "FedID"}
