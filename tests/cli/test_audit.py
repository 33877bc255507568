"""`fedstill audit` on small runs: what leaves, what is found, and what cannot be audited."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedstill import Experiment, FedstillError, Record, run
from fedstill.cli import audit as auditing
from fedstill.cli.main import app
from fedstill.results.audit import Findings
from tests.conftest import write_reviews

MEMORISING = {"name": "bow", "dropout": 0.0}


def experiment(folder: Path, **changes: Any) -> Experiment:
    path = folder / "reviews.csv"
    corpus = {
        "path": str(path if path.exists() else write_reviews(path, rows=150)),
        "text": ["title", "body"],
        "label": "stars",
    }
    settings = {
        "corpus": corpus | {"domain": "shop"},
        "partition": {"kind": "domain", "public": 0.2, "test": 0.3},
        "clients": MEMORISING,
        "server": MEMORISING,
        "train": {"epochs": 8, "max_length": 16},
        "rounds": 1,
        "workers": 1,
    }
    return Experiment.model_validate(settings | changes)


def found(folder: Path, shadows: int = 0, **changes: Any) -> Findings:
    record = run(experiment(folder, **changes), folder / "run")
    return auditing.run(record.folder, Console(quiet=True), None, shadows)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parameters_that_memorise_show_their_rows_and_name_exactly_the_private_tokens(tmp_path: Path) -> None:
    record = run(experiment(tmp_path, algorithm="FedAvg"), tmp_path / "run")
    before = files(record.folder)
    findings = auditing.run(record.folder, Console(quiet=True), None, 4)
    assert findings.leaves == "parameters"
    assert [(line["precision"], line["recall"]) for line in findings.tokens] == [(1.0, 1.0)] * 3
    pooled = {line["attack"]: line for line in findings.membership if line["client"] == "all"}
    assert pooled["loss threshold"]["auc"]["low"] > 0.7
    assert pooled["LiRA"]["auc"]["low"] > 0.7
    after = files(record.folder)
    assert json.loads(after.pop("audit.json"))["membership"] == findings.membership
    assert after == before
    again = auditing.run(record.folder, Console(quiet=True), None, 4)
    assert again == findings


@pytest.mark.slow
def test_textcnn_names_its_tokens_too(tmp_path: Path) -> None:
    model = {"name": "textcnn", "dropout": 0.0}
    findings = found(tmp_path, algorithm="FedAvg", clients=model, server=model, train={"epochs": 1, "max_length": 16})
    assert [(line["precision"], line["recall"]) for line in findings.tokens] == [(1.0, 1.0)] * 3


def test_opinions_name_no_token_and_tell_about_labels(tmp_path: Path) -> None:
    findings = found(tmp_path, shadows=2, algorithm="DSFL")
    assert findings.leaves == "opinions"
    assert [(line["named"], line["recall"]) for line in findings.tokens] == [(0, 0.0)] * 3
    assert {line["client"] for line in findings.membership} == {"books", "garden", "toys", "all"}
    assert {line["attack"] for line in findings.membership} == {"loss threshold", "LiRA"}
    for line in findings.membership:
        for measured in (line["auc"], line["tpr"]):
            assert 0 <= measured["low"] <= measured["high"] <= 1
    assert all(0 <= line["error"] < 0.67 for line in findings.label_shares)
    assert any("with fewer than 1,000" in note for note in findings.notes)


def test_label_shares_of_one_sided_clients_are_told_by_their_opinions(tmp_path: Path) -> None:
    skewed = {"kind": "dirichlet", "clients": 3, "alpha": 0.1, "public": 0.3, "test": 0.2}
    findings = found(tmp_path, algorithm="LogitAvg", partition=skewed)
    assert sum(line["error"] for line in findings.label_shares) < sum(line["guess"] for line in findings.label_shares)


def test_under_masks_only_the_sum_can_be_attacked(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    findings = found(tmp_path, algorithm="LogitAvg", wire={"mask": True})
    assert findings.leaves == "the sum of opinions"
    assert [line["client"] for line in findings.membership] == ["all"]


def test_the_command_prints_tables_or_json(tmp_path: Path) -> None:
    folder = run(experiment(tmp_path, algorithm="FedAvg"), tmp_path / "run").folder
    told = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["audit", str(folder), "--shadows", "0"])
    assert told.exit_code == 0, told.output
    for words in (
        "FedAvg: parameters leave",
        "TPR at 0.1% FPR",
        "loss threshold",
        "Private tokens",
        "Shares of labels",
    ):
        assert words in told.output
    assert "LiRA was left out" in told.output
    printed = CliRunner().invoke(app, ["audit", str(folder), "--shadows", "0", "--json"])
    assert json.loads(printed.stdout)["method"] == "FedAvg"


def refusal(folder: Path) -> str:
    with pytest.raises(FedstillError) as caught:
        auditing.run(folder, Console(quiet=True), None, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_audited_says_why_in_a_sentence(tmp_path: Path) -> None:
    folder = run(experiment(tmp_path, algorithm="LogitAvg", train={"epochs": 1}), tmp_path / "run").folder
    summary = Record(folder).summary
    shutil.move(folder / "models" / "toys", tmp_path / "away")
    assert "has no model of toys" in refusal(folder)
    shutil.move(tmp_path / "away", folder / "models" / "toys")
    (folder / "summary.json").write_text(json.dumps(summary | {"engine": "flare"}))
    assert "rows are at its sites" in refusal(folder)
    (folder / "summary.json").write_text(json.dumps(summary | {"test_fingerprint": "other"}))
    assert "corpus is not the one" in refusal(folder)
    (folder / "summary.json").unlink()
    assert "no finished run" in refusal(folder)
    assert "is not a run folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("Local", "sends neither opinions"),
        ("Centralized", "all rows in one place"),
        ("MutualKD", "cannot be audited: its clients need what they remembered"),
    ],
)
def test_methods_that_send_nothing_or_need_a_memory_are_refused(tmp_path: Path, algorithm: str, reason: str) -> None:
    folder = run(experiment(tmp_path, algorithm=algorithm, train={"epochs": 1}), tmp_path / "run").folder
    assert reason in refusal(folder)
