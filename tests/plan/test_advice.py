"""Advice follows from what an experiment has; costs are those of a run's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.papers.recipe import recipe_files
from fedstill.plan.advice import CASES, Situation, Wishes, advise, tells
from fedstill.plan.costs import evaluated
from fedstill.plan.prepare import prepare
from tests.conftest import write_reviews

ROOT = Path(__file__).resolve().parents[2]
ALIKE = {"name": "textcnn", "tokenizer": "bert-tiny"}
MIXED = ["bow", "textcnn", "bow"]


@pytest.fixture
def situation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What there is in a small experiment on three shops, or another corpus."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))

    def make(wishes: Wishes = Wishes(), **settings: Any) -> Situation:  # noqa: B008
        return Situation.of(prepare(experiment(tmp_path, **settings), tmp_path)[1], wishes)

    return make


def experiment(folder: Path, **settings: Any) -> Experiment:
    reviews = {"path": str(write_reviews(folder / "reviews.csv")), "text": ["title", "body"], "label": "stars"}
    common = {
        "corpus": {**reviews, "domain": "shop"},
        "clients": ALIKE,
        "server": ALIKE,
        "algorithm": "Local",
        "train": {"epochs": 1, "max_length": 16},
        "rounds": 1,
        "workers": 1,
    }
    return Experiment.model_validate(common | settings)


def names(found: Situation) -> list[str]:
    return [type(method).__name__ for _, method in advise(found).tries]


NO_PUBLIC = {"partition": {"public": 0.0}}
LABELLED = {"partition": {"public": 0.3, "labelled_public": 0.2}}


@pytest.mark.parametrize(
    ("settings", "wishes", "expected"),
    [
        ({}, Wishes(), ["AdaFD", "DSFL", "FedDF"]),
        ({}, Wishes(predictions_only=True), ["AdaFD", "DSFL", "FedED"]),
        ({"clients": MIXED}, Wishes(), ["AdaFD", "DSFL", "MHAT"]),
        ({"clients": MIXED, **LABELLED}, Wishes(), ["AdaFD", "DSFL", "MHAT"]),
        ({"clients": "bow"}, Wishes(), ["AdaFD", "DSFL", "FedDF"]),
        (NO_PUBLIC, Wishes(), ["FedAvg", "FedDRS", "FedSND"]),
        ({"clients": "bow", "server": "bow", **NO_PUBLIC}, Wishes(), ["FedAvg", "FedOpt"]),
        (NO_PUBLIC, Wishes(predictions_only=True), ["FD", "FedHe"]),
        ({"clients": MIXED, **NO_PUBLIC}, Wishes(), ["FD", "FedHe"]),
        ({}, Wishes(untrusted=True), ["AdaFD", "DSFL", "Cronus"]),
        (NO_PUBLIC, Wishes(untrusted=True), []),
        ({}, Wishes(bytes=1_000), ["CFD"]),
        ({"rounds": 3}, Wishes(bytes=1_000), ["CFD", "FedKD"]),
        ({"clients": MIXED}, Wishes(bytes=300), ["FD", "FedHe"]),
    ],
)
def test_advice_follows_from_what_there_is(
    situation: Any, settings: dict[str, Any], wishes: Wishes, expected: list[str]
) -> None:
    assert names(situation(wishes, **settings)) == expected


def test_images_and_several_tasks_have_advice_of_their_own(situation: Any, tmp_path: Path) -> None:
    small = {"name": "cnn", "filters": 4, "hidden": 8}
    dealt = {"kind": "dirichlet", "alpha": 1.0, "clients": 3, "public": 0.0, "rows_per_domain": 90}
    images = situation(corpus={"name": "digits", "size": 8}, partition=dealt, clients=small, server=small)
    assert names(images) == ["FedAvg", "FedSND"]
    for name, seed in (("one.csv", 1), ("two.csv", 2)):
        write_reviews(tmp_path / name, seed=seed)
    tasks = {name: {"path": str(tmp_path / f"{name}.csv"), "text": "body", "label": "stars"} for name in ("one", "two")}
    several = situation(corpus={"name": "tasks", "tasks": tasks}, partition={"kind": "domain", "public": 0.2})
    assert names(several) == ["FedDF", "FedAvg", "FedDRS"]
    assert "6 labels of 2 tasks; 2 clients, 2 active in a round" in str(several)


def test_every_method_that_sends_something_is_advised_possible_or_refused_for_a_reason(situation: Any) -> None:
    advice = advise(situation(clients=MIXED))
    said = [type(method).__name__ for _, method in advice.tries] + [*advice.others, *advice.obstacles]
    assert sorted(said) == sorted({*algorithms.known(Algorithm)} - {"Local", "Centralized"})
    assert advice.obstacles["FedID"] == "needs labelled rows at the server: set partition.labelled_public"
    assert advice.obstacles["LogitAvg"] == "blends the raw logits of different models (BagOfWords, TextCNN)"
    assert advice.obstacles["FedAvg"] == (
        "exchanges parameters, so everybody needs the server's architecture (textcnn): books, toys have another"
    )
    assert "Cronus" in advice.others


def test_what_was_found_is_one_line(situation: Any) -> None:
    found = situation(clients=MIXED, participation=0.67, **LABELLED)
    assert str(found).startswith(
        "experiment: text, 3 labels; 3 clients, 2 active in a round; 2 architectures (bow, textcnn); "
    )
    # Of each shop's 80 rows 24 are public, and a fifth of those, rounded to 5, has labels.
    assert str(found).endswith("; 57 public rows; 15 labelled rows at the server; label counts told.")


def test_one_client_has_nobody_to_learn_from(situation: Any) -> None:
    with pytest.raises(FedstillError, match="experiment has one client"):
        situation(partition={"kind": "iid", "clients": 1})


@pytest.mark.parametrize(
    ("formula", "number"),
    [("NC(K+1)+K", 10 * 3 * 5 + 4), ("2C^2 K", 72), ("P(K+1)+CK", 512), ("P+NCK", 220), ("0", 0)],
)
def test_a_formula_is_a_number(formula: str, number: int) -> None:
    assert evaluated(formula, {"N": 10, "C": 3, "K": 4, "P": 100}) == number


@pytest.mark.parametrize("name", ["DSFL", "FedAvg", "FedID", "FedKD", "FD"])
def test_bytes_foretold_are_those_in_the_ledger(situation: Any, tmp_path: Path, name: str) -> None:
    settings = {"distill": {"epochs": 2}, **LABELLED}
    method = algorithms.make(name)
    cost = situation(**settings).cost(method)
    record = fedstill.run(experiment(tmp_path, algorithm=name, **settings), tmp_path / "run")
    lines = [line for line in record.ledger if line["verb"] not in ("hello", "practise")]
    # A round is what clients say and the answer to it; parameters go down before the first round, too.
    spoken = sum(line["payload"] for line in lines if line["direction"] == "up")
    heard = max((line["payload"] for line in lines if line["direction"] == "down"), default=0)
    assert cost is not None
    if name == "FedID":
        heard = sum(line["payload"] for line in lines if line["direction"] == "down")
    assert cost.bytes == pytest.approx(spoken + heard, rel=0.02)
    assert cost.is_once == (name == "FedKD")


@pytest.mark.parametrize(
    ("name", "sends"),
    [
        ("AdaFD", {"opinions"}),
        ("FedED", {"opinions"}),  # parameters come down, but none go up
        ("CFD", {"opinions"}),
        ("FedID", {"opinions"}),
        ("FedMD", {"opinions"}),
        ("FedAvg", {"parameters"}),
        ("FedDRS", {"parameters"}),
        ("MutualKD", {"parameters"}),
        ("FD", {"other"}),
        ("Local", set()),
        ("Centralized", set()),
    ],
)
def test_what_clients_send_is_read_off_the_method(name: str, sends: set[str]) -> None:
    assert tells(algorithms.make(name)) == sends


def test_evidence_is_a_page_of_the_project_or_of_a_recipe_at_scale_medium() -> None:
    for page in {one.evidence for case in CASES for one in case.tries}:
        recipe = recipe_files().get(page.removeprefix("evidence/").removesuffix(".md"))
        is_made = recipe is not None and "\n  medium:" in recipe.read_text(encoding="utf-8")
        assert is_made or (ROOT / page).is_file(), page
