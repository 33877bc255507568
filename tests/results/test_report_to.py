"""Whoever is to be told a run's numbers is told each once, round by round, also over an interruption."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill import Experiment, FedstillError, Record
from fedstill.common.events import Event, Measured, Noted
from fedstill.config.experiment import from_source
from fedstill.config.source import Source
from fedstill.papers.evidence import fingerprint
from fedstill.results import report_to
from fedstill.results.report_to import chosen, numbers

Numbers = dict[int, dict[str, float]]


@pytest.fixture
def small(reviews: Path) -> Callable[..., Experiment]:
    def make(**changes: Any) -> Experiment:
        settings: dict[str, Any] = {
            "corpus": {"path": str(reviews), "text": "body", "label": "stars", "domain": "shop"},
            "clients": "bow",
            "server": "bow",
            "train": {"epochs": 1, "batch": 8, "max_length": 16},
            "rounds": 3,
            "workers": 1,
        }
        return Experiment.model_validate(settings | changes)

    return make


def stop_in_round_3(event: Event) -> None:
    if isinstance(event, Measured) and event.metric["round"] == 3:
        raise KeyboardInterrupt


def of_record(record: Record) -> Numbers:
    """The scores, bytes and losses that the record has of every round, worked out from its lines."""
    found: Numbers = {}
    for line in record.metrics:
        here = found.setdefault(line["round"], {})
        if line.get("split") == "test":
            here[f"f1/{line['party']}"] = line["f1"]  # lines of later stages come later
        if line.get("split", "").startswith("test/") and line["party"] == "server":
            here[f"f1 by domain/{line['split'][5:]}"] = line["f1"]
        if line.get("observation") == "losses":
            here |= {f"loss/{name}": value for name, value in line["values"].items()}
    for line in record.ledger:
        here, way = found.setdefault(line["round"], {}), f"bytes/{line['direction']}"
        here[way] = here.get(way, 0) + line["encoded"] * line["recipients"]
    return found


def in_tensorboard(folder: Path) -> Numbers:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(folder / "tensorboard"))
    events.Reload()
    found: Numbers = {}
    for name in events.Tags()["scalars"]:
        steps = [one.step for one in events.Scalars(name)]
        assert len(set(steps)) == len(steps), name
        for one in events.Scalars(name):
            found.setdefault(one.step, {})[name] = one.value
    return found


def same(told: Numbers, record: Record) -> None:
    """What was told is what the record says."""
    for round, known in of_record(record).items():
        for name, value in known.items():
            assert told[round][name] == pytest.approx(value, rel=1e-5), (round, name)
    assert {"seconds/training and predicting", "f1/mean of clients", "loss/mean of clients"} <= set(told[3])


def test_tensorboard_has_every_number_once_also_of_a_run_that_went_on(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small(), folder, tell=stop_in_round_3)
    assert sorted(in_tensorboard(folder)) == [0, 1]
    record = fedstill.resume(folder)
    same(in_tensorboard(folder), record)


def test_nobody_is_told_if_nobody_is_wanted_and_the_numbers_are_the_same(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    quiet, told = (fedstill.run(small(report_to=to, rounds=1), tmp_path / str(len(to))) for to in ([], "auto"))
    assert not (quiet.folder / "tensorboard").exists()
    assert quiet.metrics == told.metrics
    assert quiet.ledger == told.ledger


def test_who_is_told_is_no_part_of_what_is_computed(small: Callable[..., Experiment], tmp_path: Path) -> None:
    assert fingerprint(small()) == fingerprint(small(report_to=[])) == fingerprint(small(report_to=["wandb"]))
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small(report_to=[]), tmp_path / "run", tell=stop_in_round_3)
    path = tmp_path / "run" / "experiment.yaml"
    path.write_text(path.read_text().replace("report_to: []\n", ""))  # as it was before there was such a key
    assert "report_to" not in path.read_text()
    assert fedstill.resume(tmp_path / "run").is_finished


def test_an_unknown_name_is_a_sentence_with_its_line() -> None:
    with pytest.raises(FedstillError, match=r"x\.yaml:2: report_to.*'tensorboard', 'wandb', 'mlflow' or 'trackio'"):
        from_source(Source("rounds: 1\nreport_to: [neptune]\n", "x.yaml"))


def test_what_is_not_installed_is_said_before_anything_is_read(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_to, "find_spec", lambda name: None)
    assert chosen("auto") == []
    with pytest.raises(FedstillError, match=r'wandb is not installed: run `pip install "fedstill\[wandb\]"`'):
        fedstill.run(small(report_to=["wandb"], corpus="nothing-of-this-name"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Broken:
    def __init__(self, *about: object) -> None:
        pass

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        raise OSError("the line is dead")

    def close(self) -> None:
        raise OSError("the line is dead")


def test_a_target_that_fails_is_dropped_with_one_note(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(report_to.TARGETS, "tensorboard", Broken)
    monkeypatch.setattr(report_to, "find_spec", lambda name: "there")
    said: list[Event] = []
    assert fedstill.run(small(report_to=["tensorboard"], rounds=1), tmp_path / "run", tell=said.append).is_finished
    notes = [event.note for event in said if isinstance(event, Noted) and "report_to" in event.note]
    assert notes == ["report_to: tensorboard is told no more (OSError: the line is dead)."]


def test_of_many_clients_there_is_their_mean_and_epsilon_is_told() -> None:
    names = [f"c{number}" for number in range(20)]
    lines: list[dict[str, Any]] = [
        {"round": 1, "party": name, "stage": "trained", "split": "test", "f1": number / 20}
        for number, name in enumerate(names)
    ]
    lines += [{"round": 1, "party": "server", "stage": "distilled", "split": "test", "f1": 0.75}]
    lines += [{"round": 1, "party": names[0], "observation": "epsilon", "values": {"spent": 1.5, "left": 0.5}}]
    found = numbers({"metrics": lines, "ledger": [], "log": []}, 1, "f1", names, has_server=True)
    told = {"f1/server": 0.75, "f1/mean of clients": 0.475, "epsilon/mean of clients": 1.5}
    assert found == pytest.approx(told | {"bytes/up": 0, "bytes/down": 0})


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is absent")
def test_weights_and_biases_offline(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small(report_to=["wandb"]), folder, tell=stop_in_round_3)
    before = json.loads((folder / "report_to.json").read_text())
    assert fedstill.resume(folder).notes == []
    assert json.loads((folder / "report_to.json").read_text()) == before
    assert len(list((folder / "wandb").glob(f"offline-run-*-{before['wandb']}"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is absent")
def test_mlflow_in_a_folder(small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small(report_to=["mlflow"]), folder, tell=stop_in_round_3)
    record = fedstill.resume(folder)
    client = pytest.importorskip("mlflow").MlflowClient()
    run = json.loads((folder / "report_to.json").read_text())["mlflow"]
    told = [(one.step, one.value) for one in client.get_metric_history(run, "f1/server")]
    assert told == [(round, known["f1/server"]) for round, known in of_record(record).items() if "f1/server" in known]
