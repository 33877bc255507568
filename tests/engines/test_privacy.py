"""Whole runs whose clients tell no more about a row than their epsilon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill import Experiment, FedstillError, resume, run
from fedstill.algorithms.base import Algorithm
from fedstill.common.events import tell_nobody
from fedstill.parties.private import Sealed
from fedstill.plan.prepare import prepare
from fedstill.results.privacy import in_words
from fedstill.wire.messages import Opinion, Parameters
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after

pytest.importorskip("opacus")

Small = Callable[..., Experiment]

SGD = {"kind": "sgd", "steps": 6, "batch": 16}


def quick(small: Small, **changes: Any) -> Experiment:
    """Three bags of words, two rounds."""
    return small(**{"clients": "bow", "server": "bow", "rounds": 2, "privacy": SGD} | changes)


def told(folder: Path) -> list[tuple[int, str, float, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    seen = [line for line in lines if line.get("observation") == "epsilon"]
    return [(line["round"], line["party"], line["values"]["spent"], line["values"]["left"]) for line in seen]


@pytest.mark.parametrize("algorithm", ["AdaFD", "FedAvg", "FedMD"])
def test_a_run_spends_its_budget_round_by_round_and_says_so(small: Small, tmp_path: Path, algorithm: str) -> None:
    record = run(quick(small, algorithm=algorithm), tmp_path / "run")
    lines = told(record.folder)
    assert {party for _, party, _, _ in lines} == {"books", "garden", "toys"}
    for party in ("books", "garden", "toys"):
        own = [(spent, left) for _, name, spent, left in lines if name == party]
        assert 0 < own[0][0] < own[-1][0] <= 3
        assert own[-1][0] > 2.99
        assert all(spent + left == pytest.approx(3) for spent, left in own)
    assert record.summary["epsilon"]["noise"] == "seeded (simulation)"
    assert record.privacy is not None
    assert record.privacy.startswith("privacy: epsilon 3.00 of 3.00 spent by each of 3 clients (delta 1e-05, sgd")


@pytest.mark.slow
def test_a_private_head_spends_all_at_once_and_later_training_costs_nothing(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, clients="bert-tiny", privacy={"kind": "head", "epsilon": 2})
    lines = told(run(chosen, tmp_path / "run").folder)
    assert len(lines) == 6
    assert len({spent for _, _, spent, _ in lines}) == 1
    assert lines[0][2] == pytest.approx(2, rel=1e-3)


def test_a_head_without_an_encoder_is_refused(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="has no pretrained encoder"):
        run(quick(small, privacy={"kind": "head"}), tmp_path / "run")


@pytest.mark.parametrize("kind", ["votes", "probabilities"])
def test_opinions_with_noise_are_counted_and_nothing_else_leaves(small: Small, tmp_path: Path, kind: str) -> None:
    record = run(quick(small, privacy={"kind": kind, "epsilon": 50}, algorithm="AdaFD"), tmp_path / "run")
    spent = {party: max(s for _, name, s, _ in told(record.folder) if name == party) for party in ("books", "toys")}
    assert all(49.9 < value <= 50 for value in spent.values())
    losses = [line["values"] for line in record.metrics if line.get("observation") == "losses"]
    assert losses
    assert {value for values in losses for value in values.values()} == {1.0}


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, algorithm="LogitAvg")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "again", tell=stop_after(1))
    assert content(resume(tmp_path / "again").folder) == content(run(chosen, tmp_path / "one").folder)


@pytest.mark.slow
def test_two_workers_compute_what_one_does(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, algorithm="LogitAvg")
    whole = content(run(chosen, tmp_path / "one").folder)
    assert content(run(chosen.model_copy(update={"workers": 2}), tmp_path / "two").folder) == whole


REFUSED = {
    "FD": "FD tells what a client's model says of its own rows, by label",
    "FedHe": "FedHe tells what",
    "Cronus": "Cronus learns private and public rows in one phase",
    "FedGKD": "FedGKD trains with a loss of its own",
    "FedSND": "FedSND trains with a loss of its own",
    "MutualKD": "MutualKD trains two models",
    "FedAUX": "FedAUX tells how much public samples are like private rows",
    "FedDRS": "needs the clients' label counts",
}


@pytest.mark.parametrize("algorithm", REFUSED)
def test_a_method_that_reads_rows_otherwise_is_refused_in_one_sentence(small: Small, algorithm: str) -> None:
    with pytest.raises(FedstillError, match=REFUSED[algorithm]) as refusal:
        prepare(quick(small, algorithm=algorithm), Path("run"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": {"name": "AdaFD", "rehearsal": True}}, "reads private rows for `rehearsal`"),
        ({"algorithm": {"name": "AdaFD", "competence": True}}, "reads private rows for `competence`"),
        ({"algorithm": {"name": "AdaFD", "calibrate": True}}, "reads private rows for `calibrate`"),
        ({"train": {"class_weights": "balanced"}}, "weighs classes by their numbers"),
        ({"train": {"rows": 5}}, "draws some rows"),
        ({"algorithm": "FedAvg", "privacy": {"kind": "votes"}}, "FedAvg sends more than opinions"),
        ({"algorithm": "Centralized"}, "pools all rows"),
    ],
)
def test_options_that_tell_more_are_refused(small: Small, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedstillError, match=sentence):
        prepare(quick(small, **changes), Path("run"))


def test_sealed_rows_have_a_number_and_nothing_else(small: Small, tmp_path: Path) -> None:
    _, plan, _ = prepare(quick(small), tmp_path)
    client = plan.make_client("books", tell_nobody)
    assert isinstance(client.data.train, Sealed)
    assert client.size == len(plan.partition.train["books"])
    hello = Algorithm().hello(client, None)
    assert hello.label_counts is None
    assert hello.unlike is None
    reads: list[Callable[[], object]] = [
        client.label_counts,
        client.held_out_f1,
        lambda: client.predict(client.data.train),
        lambda: client.data.train.pick([0]),
        lambda: client.data.validation.labels,
        lambda: client.distill(client.predict(), torch.nn.MSELoss(), also=client.data.train),
        lambda: client.extra("second").train(),
    ]
    for read in reads[:-1]:
        with pytest.raises(FedstillError, match="otherwise than by training, which `privacy` forbids"):
            read()
    with pytest.raises(FedstillError):
        reads[-1]()
    with pytest.raises(FedstillError, match="a loss of its own"):
        client.train(loss=lambda logits, labels: logits.sum(-1))


def test_what_has_noise_is_kept_at_a_real_site_and_never_drawn_again(small: Small, tmp_path: Path) -> None:
    _, plan, _ = prepare(quick(small, engine="flare", privacy={"kind": "sgd", "steps": 2}, rounds=1), tmp_path)
    assert plan.is_real
    client, again, other = (plan.make_client("books", tell_nobody) for _ in range(3))
    losses = [one.train().mean for one in (client, again)]
    assert losses == [[1.0], [1.0]]
    first, second = client.parameters(), again.parameters()
    assert all(torch.equal(first[name], second[name]) for name in first)
    (kept,) = (tmp_path / "private" / "books").iterdir()
    kept.unlink()
    other.train()
    assert not torch.equal(other.parameters()["bias"], first["bias"])  # no seed gives it away


def test_the_noise_on_votes_is_kept_too_and_a_spent_budget_answers_nothing_more(small: Small, tmp_path: Path) -> None:
    privacy = {"kind": "votes", "steps": 30}
    _, plan, _ = prepare(quick(small, engine="flare", privacy=privacy, partition={"public": 0.1}), tmp_path)
    client, again = (plan.make_client("toys", tell_nobody) for _ in range(2))
    opinion = Opinion(torch.zeros(24, 3), loss=0.4, f1=0.9, class_losses=torch.zeros(3))
    said, repeated = client.released(opinion), again.released(opinion)
    assert isinstance(said, Opinion)
    assert isinstance(repeated, Opinion)
    assert torch.equal(said.logits, repeated.logits)
    assert (said.loss, said.f1, said.class_losses) == (1.0, None, None)
    with pytest.raises(FedstillError, match="toys has given 24 opinions, and 30 are within its epsilon"):
        client.released(opinion)
    with pytest.raises(FedstillError, match="votes cover opinions only, not Parameters"):
        client.released(Parameters({}))


def test_differences_of_embedding_rows_name_no_private_token(small: Small, tmp_path: Path) -> None:
    """What a reader of parameters would do: words whose rows changed most are words of private rows."""
    auc = {}
    for name, privacy in {"open": None, "private": SGD | {"epsilon": 1}}.items():
        _, plan, _ = prepare(quick(small, algorithm="FedAvg", privacy=privacy), tmp_path)
        client = plan.make_client("books", tell_nobody)
        before = client.parameters()["weight.weight"]
        client.train()
        moved = (client.parameters()["weight.weight"] - before).norm(dim=1)
        own = torch.zeros(len(moved), dtype=torch.bool)
        rows = client.data.train.unsealed if isinstance(client.data.train, Sealed) else client.data.train
        batch = rows.batch(torch.arange(len(rows)), torch.device("cpu"))
        own[batch["input_ids"][batch["attention_mask"].bool()]] = True
        some = moved[~own][:2000]
        auc[name] = float(
            (moved[own][:, None] > some).float().mean() + 0.5 * (moved[own][:, None] == some).float().mean()
        )
    assert auc["open"] > 0.85  # dropout hides some words
    assert abs(auc["private"] - 0.5) < 0.05


def test_what_one_client_spent_is_said_of_one() -> None:
    ledger = {"spent": {"books": 1.5}, "budget": 3.0, "delta": 1e-5, "kind": "head", "noise": "seeded"}
    assert in_words(ledger) == "privacy: epsilon 1.50 of 3.00 spent by the client (delta 1e-05, head, noise seeded)"
