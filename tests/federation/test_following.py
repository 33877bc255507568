"""`fedstill watch` at a centre: what `status` knows of sites, and nothing that tells how many rows they have."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("jinja2", reason="the packages of report pages are absent")

from fedstill import Experiment
from fedstill.common.errors import FedstillError
from fedstill.common.events import SiteSaid
from fedstill.common.locks import lock
from fedstill.federation.files import FederationFile
from fedstill.federation.following import following
from fedstill.federation.job import Job
from fedstill.federation.kits import init
from fedstill.federation.operate import Centre, fetch
from fedstill.federation.rehearsal import free_ports
from fedstill.federation.status import Status, last_notes, read_status
from fedstill.results.watch.watch import Watch

ABOUT = {"name": "wards", "engine": "flare", "method": "AdaFD", "algorithm": "AdaFD", "role": "method", "seed": 0}
ABOUT |= {"rounds": 3, "labels": ["bad", "good"], "metrics": ["f1"], "clients": ["north", "south"], "models": {}}
ABOUT |= {"test_fingerprint": "00", "versions": {}}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation whose server is not running."""
    folder = tmp_path_factory.mktemp("centre") / "federation"
    port, admin_port = free_ports(2)
    values = {"name": "hospitals", "host": "localhost", "sites": ["north", "south"], "days": 30}
    init(FederationFile.model_validate(values | {"port": port, "admin_port": admin_port}), folder)
    return folder


def a_job(federation: Path, name: str, **status: Any) -> Path:
    """A job of which one round is done, and its folder."""
    folder = federation / "centre" / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    sites = {
        "north": {"state": "answered", "since": now - 30, "took": 1.0, "reason": "", "score": {"f1": 0.5}},
        "south": {"state": "working", "since": now - 30, "progress": {"phase": "train", "done": 21, "steps": 84}},
    }
    values = {"name": "wards", "state": "running", "round": 1, "rounds": 3, "bytes": 4200, "metric": "f1"}
    told = values | {"server": {}, "sites": sites, "notes": ["south: is <slow>"], "forgotten": 0} | status
    (folder / "status.json").write_text(json.dumps(told))
    (folder / "job.json").write_text("{}")
    (folder / "experiment.yaml").write_text("name: wards\n")
    lines = [{"round": 0, "begun": ABOUT, "at": now - 60}]
    lines += [{"round": number, "active": 2, "seconds": {"total": 9.0}, "at": now - 30} for number in (0, 1)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("name", ["federation", "."])
def test_sites_late_ones_and_bytes_are_on_the_page_and_steps_are_not(federation: Path, name: str) -> None:
    folder = a_job(federation, "wards-1")
    with following() as find, (folder / "log.jsonl").open() as file:
        lock(file.fileno())  # as the centre's process does
        news = Watch(federation.parent / name, find=find).news()
    assert news["words"] == "running, round 2 of 3; late: south"
    assert news["left"] == "more than 9 s left"  # the second round is late, and the third is to come
    for shown in ("round 1/3: 4.2 KB", "note: south: is &lt;slow&gt;", "late: train 25%, 3", "50.0", "answered"):
        assert shown in news["panels"]
    assert "84" not in news["panels"]


def test_a_job_whose_process_died_says_how_to_go_on(federation: Path) -> None:
    a_job(federation, "wards-2", reason="too few sites")
    with following() as find:
        watch = Watch(federation, find=find)
        words, page = watch.news()["words"], watch.page()
    assert words == ("stopped after round 1 of 3 (too few sites); continue with: fedstill federation submit EXPERIMENT")
    assert "Federation hospitals" in page


def test_the_last_word_of_a_site_is_written_at_once(tmp_path: Path) -> None:
    experiment = Experiment.model_validate({"labels": ["bad", "good"], "clients": "bow", "server": "bow"})
    tell = Status(tmp_path, Job.make(experiment, "f", 9, 0, ("north", "south"), "1"))
    for state in ("asked", "working", "answered"):
        tell(SiteSaid("north", state))  # type: ignore[arg-type]
    assert read_status(tmp_path)["sites"]["north"]["state"] == "answered"


def test_a_folder_without_a_federation_is_one_of_runs(tmp_path: Path) -> None:
    with following() as find:
        assert Watch(tmp_path, find=find).news()["words"] == f"waiting for a run in {tmp_path}"


def test_a_note_of_every_round_is_shown_once_with_how_often_and_the_last_ones_last() -> None:
    notes = [*(f"note {number}" for number in range(5)), "again", "again", "note 4"]
    assert last_notes({"notes": notes}, most=3) == ["note 3", "again (2x)", "note 4 (2x)"]
    assert last_notes({}) == []


def test_a_second_fetch_says_that_the_record_is_there_and_another_record_is_not_touched(
    federation: Path, tmp_path: Path
) -> None:
    folder, out = a_job(federation, "fetched-000000000000"), tmp_path / "run"
    (folder / "summary.json").write_text('{"name": "wards", "seed": 0}')
    assert fetch(Centre(federation), folder.name, out) == out
    with pytest.raises(FedstillError, match="run has been fetched already; choose another folder"):
        fetch(Centre(federation), folder.name, out)
    (out / "summary.json").write_text('{"name": "wards", "seed": 1}')
    with pytest.raises(FedstillError, match="run is not empty; choose another folder"):
        fetch(Centre(federation), folder.name, out)
