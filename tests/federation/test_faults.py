"""What dies, stalls or comes back, on a real federation: the run ends with the model that it would have had."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedstill.federation.kits import Kits
from fedstill.federation.rehearsal import Rehearsal, rehearsing
from fedstill.federation.simulated import Simulated
from tests.conftest import write_reviews
from tests.federation.stage import (
    Submission,
    alone,
    differences,
    kill_all,
    server_model,
    three_shops,
    until,
    worker_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

SLOW = {"train": {"epochs": 60, "batch": 16, "max_length": 16}, "distill": {"epochs": 1}, "rounds": 3}
"""Seconds of training a round, so that there is time to do something in it."""


def patience(**values: Any) -> Any:
    """Write the centre's patience into its file."""

    def change(simulated: Simulated, kits: Kits) -> None:
        file = yaml.safe_load(simulated.server.read_text()) | values
        simulated.server.write_text(yaml.safe_dump(file))

    return change


@pytest.fixture(scope="module")
def reviews_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("reviews") / "reviews.csv")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, reviews_once: Path) -> Any:
    return alone(three_shops(reviews_once, **SLOW), tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture
def stage(tmp_path: Path, reviews_once: Path) -> Iterator[Rehearsal]:
    change = patience(silence="20s", deadline="1h")
    with rehearsing(three_shops(reviews_once, **SLOW), tmp_path / "stage", lambda line: None, change) as rehearsal:
        yield rehearsal


def test_a_killed_worker_is_started_again_and_nothing_is_lost(stage: Rehearsal, undisturbed: Any) -> None:
    submission = Submission(stage)
    until(lambda: submission.at_work("garden", 2))
    worker_of(stage.sites["garden"]).kill()
    record = submission.wait()
    assert server_model(record) == server_model(undisturbed)
    assert differences(record, undisturbed) == []
    assert any("garden: its worker died (killed by signal 9" in note for note in submission.status["notes"])


def test_a_site_that_dies_whole_and_comes_back_takes_part_as_if_nothing_had_been(
    stage: Rehearsal, undisturbed: Any
) -> None:
    submission = Submission(stage)
    until(lambda: submission.at_work("toys", 2))
    kill_all(stage.sites["toys"])
    until(lambda: submission.status.get("state") == "interrupted")
    assert "toys: silent for 20 s" in submission.status["reason"]
    stage.sites["toys"].start()
    record = submission.wait()
    assert server_model(record) == server_model(undisturbed)
    assert differences(record, undisturbed) == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_server_that_dies_goes_on_after_the_last_finished_round(
    stage: Rehearsal, undisturbed: Any, is_whole: bool
) -> None:
    submission = Submission(stage)
    until(lambda: submission.at_work("books", 3))
    if is_whole:
        kill_all(stage.server)
    else:  # the job's own process stays behind
        assert stage.server.process is not None
        stage.server.process.kill()
        stage.server.process.wait()
    time.sleep(2)  # for a while there is none
    stage.server.start()
    record = submission.wait()
    assert server_model(record) == server_model(undisturbed)
    assert differences(record, undisturbed) == []
    rounds = [line["round"] for line in record.metrics if line["party"] == "server" and line.get("split") == "test"]
    assert rounds == [1, 2, 3]


def test_a_site_that_stalls_holds_a_round_no_longer_than_the_deadline(tmp_path: Path, reviews_once: Path) -> None:
    change = patience(silence="20s", deadline="60s", failures=1)
    experiment = three_shops(reviews_once, **(SLOW | {"rounds": 4}), quorum=0.5)
    with rehearsing(experiment, tmp_path / "stage", lambda line: None, change) as stage:
        submission = Submission(stage)
        until(lambda: submission.at_work("garden", 2))
        worker_of(stage.sites["garden"]).send_signal(signal.SIGSTOP)
        until(lambda: submission.status["round"] >= 2)
        record = submission.wait()
    notes = submission.status["notes"]
    assert any("garden: no usable reply: not done within the deadline of 60 s" in note for note in notes)
    assert any("garden: left out after 1 failures" in note for note in notes)
    assert any("garden: answers again and takes part again" in note for note in notes)
    trained = {(line["round"], line["party"]) for line in record.metrics if line.get("stage") == "trained"}
    assert {(1, "garden"), (4, "garden"), (2, "books"), (2, "toys")} <= trained
    assert not {(2, "garden"), (3, "garden")} & trained  # in round 3 it is not asked


def test_a_run_that_can_do_without_a_site_goes_on_and_takes_it_back(tmp_path: Path, reviews_once: Path) -> None:
    change = patience(silence="20s", deadline="1h", failures=1)
    experiment = three_shops(reviews_once, **(SLOW | {"rounds": 6}), quorum=0.5)
    with rehearsing(experiment, tmp_path / "stage", lambda line: None, change) as stage:
        submission = Submission(stage)
        until(lambda: submission.at_work("toys", 2))
        kill_all(stage.sites["toys"])
        until(lambda: submission.status["round"] >= 2)
        stage.sites["toys"].start()
        record = submission.wait()
    trained = {(line["round"], line["party"]) for line in record.metrics if line.get("stage") == "trained"}
    assert (2, "toys") not in trained
    assert (6, "toys") in trained
    assert {(number, "books") for number in range(1, 7)} <= trained
    assert any("toys is back" in line for line in submission.lines)
