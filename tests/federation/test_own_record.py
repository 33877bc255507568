"""What a site has after a federation: its scores, its gain, and a model that it can predict with."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstill.cli.predict import predict
from fedstill.federation import own_record, site
from fedstill.results.compare import compare, load_runs
from fedstill.results.record import Record
from fedstill.results.table import text
from tests.federation.together import Inside, Together, two_shops, write_two_shops


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Together, Record]]:
    """A federation of two sites; books chose another model than the experiment's, garden tells no scores."""
    folder = tmp_path_factory.mktemp("own")
    stage = Together(two_shops(write_two_shops(folder / "reviews.csv"), rounds=2, quorum=1.0), folder / "together")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "Worker", Inside)
        stage.start(books={"model": {"name": "textcnn"}}, garden={"scores": False})
        yield stage, stage.conduct()
    stage.close()


def own_folder(stage: Together, name: str) -> Path:
    return stage.folder / "state" / name / stage.job.id


def test_a_site_predicts_with_its_own_model_without_saying_whose(
    finished: tuple[Together, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, _ = finished
    new = tmp_path / "new.csv"
    new.write_text("text\na lovely novel\nan awful novel\n")
    run = own_folder(stage, "books")
    predict(run, new, text=["text"])
    shown = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    expected = Record(run).model("books").predict(["a lovely novel", "an awful novel"])
    assert [row["predicted"] for row in shown] == expected.labels
    assert not (own_folder(stage, "garden") / "models" / "books").exists()


def test_its_gain_is_the_one_that_the_centre_computed(finished: tuple[Together, Record]) -> None:
    stage, record = finished
    member = next(member for member in record.members if member.name == "books")
    assert member.own is not None
    said = own_record.gain(own_folder(stage, "books")) or ""
    assert said.startswith(f"alone {100 * member.own.alone:.1f}, now {100 * member.own.after:.1f}, gain ")
    assert "on your own test rows" in said
    assert "scores: false" in (own_record.gain(own_folder(stage, "garden")) or "")
    assert own_record.gain(stage.folder / "nowhere") is None


def test_a_call_that_was_repeated_counts_once(finished: tuple[Together, Record], tmp_path: Path) -> None:
    stage, _ = finished
    lines = (own_folder(stage, "books") / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(lines + lines)
    assert own_record.gain(tmp_path) == own_record.gain(own_folder(stage, "books"))


def test_what_a_site_keeps_only_its_user_can_read(finished: tuple[Together, Record]) -> None:
    folder = own_folder(finished[0], "books")
    assert (folder / "metrics.jsonl").stat().st_mode & 0o077 == 0


def test_the_record_names_the_model_that_a_site_chose(finished: tuple[Together, Record]) -> None:
    _, record = finished
    assert record.summary["models"] == {"server": "bow", "books": "textcnn", "garden": "bow"}
    assert {member.name: member.model for member in record.members}["books"] == "textcnn"


def test_of_a_path_or_an_own_class_only_the_last_part_leaves() -> None:
    assert [site._public_name(name) for name in ("/home/me/secret/model", "/home/me/m.py:Mine", "minilm[:3]")] == [
        "model",
        "Mine",
        "minilm[:3]",
    ]


def test_a_federations_table_has_the_sites_scores(tmp_path: Path) -> None:
    reviews = write_two_shops(tmp_path / "reviews.csv")
    stage = Together(two_shops(reviews, rounds=1, quorum=1.0), tmp_path / "together")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "Worker", Inside)
        record = stage.conduct()
        stage.close()
    (row,) = compare(load_runs([record.folder])).rows
    own = [record.f1(name, f"test/{name}") for name in ("books", "garden")]
    assert row.clients_mean is None  # nobody but the server saw the pooled test
    assert row.clients_own is not None
    assert row.clients_own.mean == pytest.approx(sum(own) / 2)
    assert "each on its own test rows" in " ".join(text(compare(load_runs([record.folder]))).split())
