"""Random kills of a real federation's processes: every run ends with the model that it would have had."""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil
import pytest

from fedstill.federation.rehearsal import Rehearsal, rehearsing
from tests.conftest import write_reviews
from tests.federation.stage import Submission, alone, differences, kill_all, server_model, three_shops, until, worker_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

VICTIMS = ["worker", "site", "centre"]


@pytest.mark.parametrize("algorithm", ["AdaFD", "FedID"])
def test_whoever_dies_whenever_the_run_ends_with_the_same_model(tmp_path: Path, algorithm: str) -> None:
    chance = random.Random(algorithm)
    reviews = write_reviews(tmp_path / "reviews.csv")
    parts = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}
    slow = {"train": {"epochs": 20, "batch": 16, "max_length": 16}, "rounds": 4}
    experiment = three_shops(reviews, algorithm=algorithm, partition=parts, **slow)
    undisturbed = alone(experiment, tmp_path / "alone")
    with rehearsing(experiment, tmp_path / "stage", lambda line: None) as stage:
        submission = Submission(stage)
        until(lambda: submission.status.get("state") == "running")
        for victim in VICTIMS:
            time.sleep(chance.uniform(1, 10))
            if not submission.thread.is_alive():
                break
            end(stage, victim, chance)
        record = submission.wait()
    assert server_model(record) == server_model(undisturbed)
    assert differences(record, undisturbed) == []


def end(stage: Rehearsal, victim: str, chance: random.Random) -> None:
    """Kill a worker, a whole site or the whole centre, which come back."""
    site = stage.sites[chance.choice(sorted(stage.sites))]
    if victim == "worker":
        try:
            worker_of(site).kill()
        except (StopIteration, psutil.NoSuchProcess):  # it has none just now
            return
    else:
        daemon = site if victim == "site" else stage.server
        kill_all(daemon)
        time.sleep(1)
        daemon.start()
