from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment, FedstillError
from fedstill.common import plugins
from fedstill.federation.job import LOCAL, Job

SETTINGS: dict[str, Any] = {"labels": ["bad", "good"], "clients": "bow", "server": "bow"}


def job(sites: tuple[str, ...] = ("b", "a"), known: str = "f", samples: int = 9, version: str = "1", **of: Any) -> Job:
    return Job.make(Experiment.model_validate(SETTINGS | of), known, samples, 0, sites, version)


def asking(**changes: Any) -> Job:
    """A job whose experiment says something that no file of ours would."""
    return replace(job(), experiment=job().experiment | changes)


COUNTS = {
    "name": "other",
    "labels": ["good", "bad"],
    "clients": "textcnn",
    "server": "textcnn",
    "algorithm": "DSFL",
    "train": {"epochs": 7},
    "distill": {"epochs": 7},
    "rounds": 7,
    "participation": 0.5,
    "quorum": 0.5,
    "seed": 7,
    "threads": 7,
    "wire": {"opinions": "bf16"},
    "precision": "bf16",
    "fast": False,
    "save_every": 7,
    "blend": "median",
    "max_share": None,
    "privacy": {"kind": "head", "epsilon": 3},
}
IS_LOCAL = {
    "corpus": "reviews",
    "partition": {"test": 0.3},
    "public": "reviews",
    "client_tests": "own",
    "alone": "rounds",
    "measure": "validation",
    "engine": "flare",
    "workers": 7,
    "device": "cpu",
    "memory": {"host": "7MiB"},
    "report_to": ["tensorboard"],
}


def test_every_key_of_an_experiment_counts_or_is_local() -> None:
    assert set(COUNTS) | set(IS_LOCAL) | {"faults"} == set(Experiment.model_fields)  # faults are refused
    assert set(IS_LOCAL) == set(LOCAL)


@pytest.mark.parametrize("key", COUNTS)
def test_the_hash_changes_with_every_key_that_counts(key: str) -> None:
    assert job(**{key: COUNTS[key]}).hash != job().hash


@pytest.mark.parametrize("key", IS_LOCAL)
def test_the_hash_does_not_change_with_what_is_local(key: str) -> None:
    assert job(**{key: IS_LOCAL[key]}) == job()


def test_the_hash_changes_with_the_public_set_and_the_sites_and_not_with_the_version() -> None:
    assert job(known="g").hash != job().hash
    assert job(samples=8).hash != job().hash
    assert job(sites=("a", "c")).hash != job().hash
    assert job(sites=("a", "b")).hash == job().hash, "sites have no order"
    assert job(version="2").hash == job().hash
    assert job().id == f"experiment-{job().hash[:12]}"


def test_where_a_class_of_ones_own_lies_does_not_count(tmp_path: Path) -> None:
    places = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(
            "from fedstill.algorithms.adafd import AdaFD\nclass Mine(AdaFD): pass\n"
        )
        places.append(f"{tmp_path / folder / 'own.py'}:Mine")
    one, two = (job(algorithm={"name": place}) for place in places)
    assert one == two
    assert one.experiment["algorithm"]["name"] == "own:Mine"
    plugins.allow_only({"Mine": places[1]})
    assert type(one.settled().method).__name__ == "Mine"


def test_a_job_reads_back_what_it_was() -> None:
    there = Job.from_json(job().to_json())
    assert there == job()
    assert there.hash == job().hash
    assert there.settled().model_dump(mode="json") == Experiment.model_validate(SETTINGS).resolved().model_dump(
        mode="json"
    )


def test_an_experiment_without_labels_is_no_job() -> None:
    with pytest.raises(FedstillError, match="labels: a federation needs the ordered list"):
        job(labels=None)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no JSON",
        "[]",
        "null",
        "3",
        "{}",
        json.dumps({"sites": None}),
        *(
            json.dumps(json.loads(job().to_json()) | wrong)
            for wrong in (
                {"experiment": []},
                {"experiment": "AdaFD"},
                {"public": 3},
                {"samples": "9"},
                {"labelled": None},
                {"sites": [1]},
                {"sites": 5},
                {"version": 1},
                {"further": 1},
            )
        ),
        job().to_json()[:-9],
    ],
)
def test_what_is_no_job_is_refused_in_a_sentence(body: str) -> None:
    with pytest.raises(FedstillError, match="this is not a job of fedstill"):
        Job.from_json(body)


@pytest.mark.parametrize("key", LOCAL)
def test_a_job_cannot_decide_what_is_each_machines_own_affair(key: str) -> None:
    with pytest.raises(FedstillError, match=f"the job sets {key}, which each machine sets for itself"):
        asking(**{key: IS_LOCAL[key]}).settled()


def test_a_job_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(FedstillError, match=r"the job:.*unknown key 'runs'"):
        asking(runs="rm -rf").settled()


ELSEWHERE = ["os:system", "subprocess:Popen", "./own.py:Bad", "/tmp/own.py:Bad", "own:Bad", "fractions:Fraction"]


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize(
    "place",
    [
        lambda name: {"algorithm": {"name": name}},
        lambda name: {"algorithm": name},
        lambda name: {"algorithm": {"name": "AdaFD", "weighting": name}},
        lambda name: {"algorithm": {"name": "AdaFD", "weighting": {"name": name}}},
        lambda name: {"clients": name},
        lambda name: {"clients": [name, "bow"]},
        lambda name: {"clients": {"a": name, "b": "bow"}},
        lambda name: {"clients": {"a": {"model": {"name": name}}, "b": "bow"}},
        lambda name: {"server": name},
        lambda name: {"server": {"name": name}},
    ],
    ids=[
        "algorithm",
        "algorithm as text",
        "weighting as text",
        "weighting",
        "clients as text",
        "a list of clients",
        "clients by name as text",
        "clients by name",
        "server as text",
        "server",
    ],
)
def test_a_job_loads_no_class_that_the_machine_does_not_list(
    name: str, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from pathlib import Path\nPath('ran').touch()\nclass Bad: pass\n")
    for allowed in ({}, {"Good": f"{tmp_path}/own.py:Good"}):
        plugins.allow_only(allowed)
        with pytest.raises(FedstillError, match=r"is not allowed here: .* name .* under `own:` in your own file"):
            asking(**place(name)).settled()
    assert not (tmp_path / "ran").exists()


def test_a_listed_class_is_loaded_from_where_the_machine_says_whatever_path_the_job_gives(tmp_path: Path) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(
            f"from fedstill.algorithms.adafd import AdaFD\nclass Mine(AdaFD): origin = '{folder}'\n"
        )
    plugins.allow_only({"Mine": f"{tmp_path}/ours/own.py:Mine"})
    made = asking(algorithm={"name": f"{tmp_path}/theirs/own.py:Mine"}).settled().method
    assert made.origin == "ours"  # type: ignore[attr-defined]
