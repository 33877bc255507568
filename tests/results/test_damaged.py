"""Files of a run that were cut short: one sentence names the file, and what can be made again is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import fedstill
from fedstill import Experiment
from fedstill.common.errors import FedstillError
from fedstill.results.record import Record
from fedstill.results.report.material import partition_of
from tests.cli.test_cli import fedstill as command
from tests.conftest import write_reviews


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of small models and one transformer."""
    folder = tmp_path_factory.mktemp("damaged")
    corpus = {"path": str(write_reviews(folder / "reviews.csv")), "text": "body", "label": "stars", "domain": "shop"}
    settings = {"corpus": corpus, "clients": ["bow", "bow", "bert-tiny"], "server": "bow", "rounds": 2, "workers": 1}
    train = {"epochs": 1, "max_length": 8}
    fedstill.run(Experiment.model_validate(settings | {"train": train, "alone": "first"}), folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("party", ["server", "toys"])
def test_a_models_file(run: Path, party: str) -> None:
    cut_short(run / "models" / party / "model.safetensors")
    with pytest.raises(FedstillError, match=f"{re.escape(str(run / 'models' / party))} is damaged .*: restore it from"):
        Record(run).model(party)


def test_the_partition(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_short(run / "partition.safetensors")
    with pytest.raises(FedstillError, match=r"partition\.safetensors is damaged"):
        partition_of(run)
    assert command("report", str(run), "--out", str(run.parent / "page.html")) == 1
    assert "partition.safetensors is damaged" in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_the_experiment(run: Path) -> None:
    cut_short(run / "experiment.yaml")
    with pytest.raises(FedstillError, match=r"experiment\.yaml was cut short or changed"):
        Record(run).model()


def test_a_summary_is_written_again_as_the_message_says(run: Path) -> None:
    whole = Record(run).summary
    cut_short(run / "summary.json")
    with pytest.raises(FedstillError, match=f"Remove it; then `fedstill run --resume {re.escape(str(run))}` writes"):
        _ = Record(run).summary
    (run / "summary.json").unlink()
    assert command("run", "--resume", str(run)) == 0
    assert Record(run).summary | {"seconds": 0} == whole | {"seconds": 0}


def test_the_last_line_of_the_log_does_not_keep_a_run_from_going_on(run: Path) -> None:
    with (run / "log.jsonl").open("a") as log:
        log.write('{"x": 1')
    assert command("run", "--resume", str(run), "rounds=3") == 0
    assert Record(run).summary["rounds"] == 3
    assert [line for line in Record(run).log if line.get("round") == 3]
