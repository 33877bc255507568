"""`alone: rounds`: everybody first works alone for as many rounds, and the members are compared with that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstill import Experiment, Local, Record, resume, run
from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Said
from fedstill.engines.alone import experiment_alone
from tests.engines.conftest import content

Small = Callable[..., Experiment]


def metrics(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def compared(small: Small, tmp_path: Path) -> Record:
    return run(small(alone="rounds"), tmp_path / "compared")


def test_members_are_compared_with_the_last_round_of_local_which_is_a_run_of_its_own(
    small: Small, compared: Record, tmp_path: Path
) -> None:
    local = run(small(algorithm="Local"), tmp_path / "local")
    assert metrics(compared.folder / "alone") == metrics(local.folder)
    alone = {member.name: member.own.alone for member in compared.members if member.own is not None}
    assert alone == {name: local.f1(name, f"test/{name}") for name in local.summary["clients"]}
    assert compared.rounds_alone == 3
    assert "than alone for as long by more than a point" in (compared.verdict or "")
    assert not (compared.folder / "alone" / "models").exists()


def test_the_federation_itself_is_the_same_to_the_byte(small: Small, compared: Record, tmp_path: Path) -> None:
    plain = run(small(), tmp_path / "plain")
    assert metrics(compared.folder) == metrics(plain.folder)
    assert plain.rounds_alone == 1
    assert "than after one round alone" in (plain.verdict or "")
    first = {member.name: member.own.alone for member in plain.members if member.own is not None}
    trained = {
        str(line["party"]): line["f1"]
        for line in metrics(plain.folder)
        if (line["round"], line.get("stage"), line.get("split")) == (1, "trained", f"test/{line['party']}")
    }
    assert first == trained


@pytest.mark.parametrize("when", ["alone: first", "alone: round 2", "alone: round 3"])
def test_an_interruption_while_everybody_is_alone_changes_nothing(
    small: Small, compared: Record, tmp_path: Path, when: str
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Said) and event.line.startswith(when):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(alone="rounds"), tmp_path / "run", tell=stop)
    record = resume(tmp_path / "run")
    assert content(record.folder) == content(compared.folder)
    assert record.members == compared.members


def test_models_that_the_method_cannot_average_are_refused_before_anybody_works_alone(
    small: Small, tmp_path: Path
) -> None:
    with pytest.raises(FedstillError, match="exchanges parameters, so everybody needs the server's architecture"):
        run(small(alone="rounds", algorithm="FedAvg", clients="bow", server="textcnn"), tmp_path / "run")
    assert not (tmp_path / "run" / "alone").exists()


def test_more_rounds_are_more_rounds_alone_too(small: Small, compared: Record, tmp_path: Path) -> None:
    longer = resume(compared.folder, rounds=4)
    whole = run(small(alone="rounds", rounds=4), tmp_path / "whole")
    assert Record(longer.folder / "alone").summary["rounds"] == 4
    assert longer.members == whole.members
    assert longer.rounds_alone == 4


def test_nobody_is_asked_to_work_alone_where_the_run_says_it_itself(small: Small) -> None:
    assert experiment_alone(small()) is None
    assert experiment_alone(small(alone="rounds", rounds=1)) is None
    assert experiment_alone(small(alone="rounds", algorithm="Local")) is None
    assert experiment_alone(small(alone="rounds", algorithm="Centralized")) is None
    assert experiment_alone(small(alone="rounds", rounds=1, participation=0.5)) is not None


def test_alone_nothing_leaves_so_there_is_no_noise_no_liar_and_no_codec(small: Small) -> None:
    many = {"blend": "median", "faults": [{"kind": "flip", "share": 0.2}], "wire": {"opinions": "fp16"}}
    alone = experiment_alone(small(alone="rounds", privacy={"kind": "head", "epsilon": 3}, **many))
    assert alone is not None
    assert isinstance(alone.method, Local)
    assert alone.model_dump() == small(algorithm="Local", report_to=[]).model_dump()


def test_rows_in_memory_are_the_same_alone(tmp_path: Path) -> None:
    texts = [f"{'good' if number % 2 else 'bad'} thing number {number}" for number in range(120)]
    rows = [
        {"text": text, "label": text.split()[0], "domain": "ab"[number % 3 == 0]} for number, text in enumerate(texts)
    ]
    small = Experiment(corpus=rows, clients="bow", server="bow", rounds=2, alone="rounds", workers=1)
    record = run(small, tmp_path / "run")
    assert record.rounds_alone == 2
    assert len(record.members) == 2
