"""What a site has after a federation: its scores, its gain, and a model that it can predict with."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstill.cli.predict import predict
from fedstill.cli.push import push
from fedstill.common.units import size_text
from fedstill.federation import own_record, site
from fedstill.federation.budget import read_sent
from fedstill.learning.metrics import METRICS
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
    assert said.startswith(
        f"after one round alone {100 * member.own.alone:.1f}, now {100 * member.own.after:.1f}, gain "
    )
    assert "on your own test rows" in said
    assert "scores: false" in (own_record.gain(own_folder(stage, "garden")) or "")
    assert own_record.gain(stage.folder / "nowhere") is None


def test_a_call_that_was_repeated_counts_once(finished: tuple[Together, Record], tmp_path: Path) -> None:
    stage, _ = finished
    lines = (own_folder(stage, "books") / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(lines + lines)
    assert own_record.gain(tmp_path) == own_record.gain(own_folder(stage, "books"))


def test_a_site_pushes_its_own_model_with_a_card_of_what_it_knows(
    finished: tuple[Together, Record], tmp_path: Path
) -> None:
    stage, record = finished
    run = own_folder(stage, "books")
    left = list(read_sent(run.parent))
    assert Record(run).summary["bytes"] == {
        "up": sum(line["bytes"] for line in left),
        "down": sum(line["received"] for line in left),
    }
    assert all(line["received"] for line in left)
    push(run, "me/ours", out=tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text()
    score = 100 * record.score("f1", "books", "test/books")
    many = next(line["rows"] for line in Record(run).metrics if "rows" in line)
    assert f"| the site's own | {many} | {METRICS['f1'].caption} | {score:.1f} | not known |" in card
    assert "a site's model of a federation between sites on their own machines" in card
    assert f"{size_text(sum(line['bytes'] for line in left))} left this site" in card
    assert not any(name in card for name in ("books", "garden", str(tmp_path)))
    push(own_folder(stage, "garden"), "me/theirs", out=tmp_path / "other")
    assert "This model was not measured on test rows." in (tmp_path / "other" / "README.md").read_text()
    assert "AdaFD" in text(compare(load_runs([run])))


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
