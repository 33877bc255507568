from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstill import AdaFD, Experiment, FedstillError, Replies, Server, run
from fedstill.common.events import Event, RoundDone
from fedstill.engines.local import LocalEngine
from fedstill.engines.sharing import share_out
from fedstill.results.report.material import Material
from fedstill.results.report.words import remarks
from tests.engines.conftest import content

Small = Callable[..., Experiment]


@pytest.mark.slow
def test_one_and_two_workers_give_the_same_bytes(small: Small, tmp_path: Path) -> None:
    mixed = {"clients": ["bert-tiny", "textcnn", "bow"], "server": "bert-tiny", "rounds": 2}
    for workers in (1, 2):
        run(small(workers=workers, **mixed), tmp_path / str(workers))
    one, two = content(tmp_path / "1"), content(tmp_path / "2")
    assert len(one) == 2 + 4 + 4
    assert one == two


def test_the_same_seed_twice_gives_the_same_bytes_and_another_seed_does_not(small: Small, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(small(seed=seed, rounds=1), tmp_path / name)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") != content(tmp_path / "c")


def test_clients_that_sleep_on_disk_give_the_same_bytes(small: Small, tmp_path: Path) -> None:
    run(small(), tmp_path / "awake")
    run(small(memory={"host": "1MiB"}), tmp_path / "asleep")
    assert content(tmp_path / "awake") == content(tmp_path / "asleep")


def test_a_host_keeps_no_more_models_awake_than_the_limit_allows(small: Small, tmp_path: Path) -> None:
    from dataclasses import replace

    from fedstill.common.events import tell_nobody
    from fedstill.engines.host import Host
    from fedstill.plan.prepare import prepare
    from fedstill.wire.encoding import encode

    (tmp_path / "run").mkdir()
    _, plan, _ = prepare(small(clients="bow"), tmp_path / "run")
    one = 4 * (2 * 2**17 + 1) * 3 + 4 * 3  # bytes of a bag of words over pairs, three classes
    host = Host(replace(plan, host_bytes=int(1.5 * one)), tell_nobody)
    for name in plan.clients:
        host.call(name, encode(None, {"verb": "turn", "round": 1}))
    assert list(host.awake) == ["toys"]
    assert sorted(host.files) == ["books", "garden"]


def test_the_costliest_clients_are_shared_out_first(small: Small, tmp_path: Path) -> None:
    from fedstill.plan.prepare import prepare

    _, plan, _ = prepare(small(clients=["bow", "bert-tiny", "textcnn"]), tmp_path)
    assert share_out(plan, 2) == [["garden"], ["toys", "books"]]


def test_a_worker_that_dies_ends_the_run_with_a_sentence(small: Small, tmp_path: Path) -> None:
    import multiprocessing

    def kill_one(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    with pytest.raises(FedstillError, match=r"worker process died \(killed by signal 9.*--resume"):
        run(small(workers=2), tmp_path / "run", tell=kill_one)
    assert (tmp_path / "run" / "checkpoint" / "round-00001.json").exists()


def test_workers_write_their_clients_states_while_the_server_learns(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, early = AdaFD.server, []

    def server(self: AdaFD, me: Server, ups: Replies[Any]) -> Any:
        states = tmp_path / "run" / "checkpoint" / "state"
        until = time.monotonic() + 60
        while (
            len(found := sorted(path.name for path in states.glob("[!.]*.1.safetensors"))) < 3
            and time.monotonic() < until
        ):
            time.sleep(0.02)
        early.append(found)
        return learn(self, me, ups)

    monkeypatch.setattr(AdaFD, "server", server)
    run(small(workers=2, rounds=1), tmp_path / "run")
    assert early == [[f"{name}.1.safetensors" for name in ("books", "garden", "toys")]]


def test_states_that_cannot_be_written_early_end_the_run_with_a_sentence(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(self: LocalEngine, calls: Mapping[str, bytes], round: int) -> Any:
        if round == 2:
            shutil.rmtree(tmp_path / "run" / "checkpoint" / "state")
            (tmp_path / "run" / "checkpoint" / "state").write_text("a file where a folder was")
        return carry(self, calls, round)

    carry = LocalEngine.deliver
    monkeypatch.setattr(LocalEngine, "deliver", deliver)
    with pytest.raises(FedstillError, match=r"state.*cannot be used.*what was written before is whole"):
        run(small(workers=2), tmp_path / "run")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_whose_model_cannot_be_saved_ends_the_run_with_a_sentence(
    small: Small, tmp_path: Path, workers: int
) -> None:
    models = tmp_path / "run" / "models"

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            models.mkdir()
            (models / "garden").write_text("a file where a folder is to be")

    with pytest.raises(FedstillError, match=r"garden.* cannot be used .*run --resume .*written before is whole"):
        run(small(workers=workers), tmp_path / "run", tell=tell)


def test_participation_below_one_calls_fewer_clients_and_all_digest_at_the_end(small: Small, tmp_path: Path) -> None:
    record = run(small(participation=0.4, rounds=4), tmp_path / "run")
    spoke = {
        t: sorted(
            m["party"]
            for m in record.metrics
            if m.get("stage") == "trained" and m["round"] == t and m["split"] == "test"
        )
        for t in range(1, 5)
    }
    assert all(len(names) == 1 for names in spoke.values())
    assert len({tuple(names) for names in spoke.values()}) > 1
    ended = {m["party"] for m in record.metrics if m.get("stage") == "distilled" and m["round"] == 4}
    assert ended == {"books", "garden", "toys", "server"}


TWICE = """
from dataclasses import dataclass

from fedstill import Algorithm, Opinion


@dataclass(frozen=True)
class Twice(Algorithm):
    has_server_model = False

    def round(self, fed, answer):
        fed.call("turn")
        fed.call("turn")

    def opine(self, me):
        me.train()
        return Opinion(me.predict())


@dataclass(frozen=True)
class Broken(Twice):
    def opine(self, me):
        return nonsense
"""


def test_two_calls_in_a_round_are_the_same_for_clients_that_sleep_in_between(small: Small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TWICE)
    own = {"algorithm": f"{tmp_path}/own.py:Twice", "clients": "textcnn", "rounds": 2}
    run(small(**own), tmp_path / "awake")
    run(small(**own, memory={"host": "1MiB"}), tmp_path / "asleep")
    assert content(tmp_path / "awake") == content(tmp_path / "asleep")


def test_a_mistake_in_a_users_method_names_its_line(small: Small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TWICE)
    with pytest.raises(FedstillError, match=r"NameError in own\.py:23: name 'nonsense' is not defined"):
        run(small(algorithm=f"{tmp_path}/own.py:Broken"), tmp_path / "run")


def test_models_that_never_learnt_are_not_saved(small: Small, tmp_path: Path) -> None:
    record = run(small(algorithm="Centralized", rounds=1), tmp_path / "run")
    assert [path.name for path in (record.folder / "models").iterdir()] == ["server"]
    assert [path.name for path in (record.folder / "predictions").iterdir()] == ["server.safetensors"]


def test_models_and_predictions_can_be_read_by_whom_the_umask_allows(small: Small, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        record = run(small(rounds=1), tmp_path / "run")
    finally:
        os.umask(before)
    weights = [*record.folder.glob("models/*/*"), *record.folder.glob("predictions/*")]
    assert {path.name for path in weights} >= {"model.safetensors", "server.safetensors", "garden.safetensors"}
    assert {path.stat().st_mode & 0o777 for path in weights} == {0o640}


@pytest.mark.parametrize("name", ["used [/old] & new", "../up", ".hidden", "a b/c"])
def test_odd_domain_names_are_only_names(small: Small, reviews: Path, tmp_path: Path, name: str) -> None:
    from rich.console import Console

    from fedstill.results.progress import Progress

    reviews.write_text(reviews.read_text().replace(",books", f",{name}"))
    console = Console(force_terminal=True, width=200)
    with console.capture() as shown, Progress(console) as tell:
        record = run(small(rounds=1, clients="bow"), tmp_path / "runs" / "run", tell=tell)
    assert name in shown.get()
    assert record.f1(name) >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews.csv", "runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_a_domain_called_server_is_refused(small: Small, reviews: Path, tmp_path: Path) -> None:
    reviews.write_text(reviews.read_text().replace(",books", ",server"))
    with pytest.raises(FedstillError, match="cannot be called 'server'"):
        run(small(), tmp_path / "run")


LEAVING = '''
from dataclasses import dataclass
from fedstill.algorithms.fedid import FedID

@dataclass(frozen=True)
class Leaving(FedID):
    """FedID in which the garden hangs up in the middle of the second round's conversation."""

    def learn(self, me, lesson):
        if me.name == "garden" and me.round == 2:
            raise RuntimeError("hung up")
        super().learn(me, lesson)
'''


def test_who_leaves_a_conversation_is_as_it_was_before_the_round_and_back_in_the_next(
    small: Small, tmp_path: Path
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    partition = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}
    algorithm = f"{tmp_path / 'leaving.py'}:Leaving"
    record = run(small(algorithm=algorithm, partition=partition, quorum=0.5, rounds=3), tmp_path / "run")
    assert any("hung up" in note for note in record.notes)
    distilled = {(line["party"], line["round"]) for line in record.metrics if line.get("stage") == "distilled"}
    assert ("garden", 2) not in distilled
    assert {("garden", 1), ("garden", 3), ("books", 2)} <= distilled
    asked = {line["recipients"] for line in record.ledger if line["round"] == 2 and line["message"] == "Lesson"}
    assert asked == {3, 2}


def test_what_was_done_to_labels_is_in_the_record_and_in_its_report(tmp_path):
    labels = ["good", "bad", "good", "Good", ""] * 20
    lines = [f"text {number},{label},{'ab'[number % 3 % 2]}" for number, label in enumerate(labels)]
    (tmp_path / "rows.csv").write_text("text,label,shop\n" + "\n".join(lines) + "\n")
    corpus = {"path": str(tmp_path / "rows.csv"), "domain": "shop", "missing": "drop", "fold_labels": True}
    experiment = Experiment(corpus=corpus, clients=["bow"], server="bow", rounds=1, workers=1, train={"epochs": 1})
    record = run(experiment, tmp_path / "run", progress=False)
    assert [line["party"] for line in record.log if "note" in line][:3] == ["corpus", "corpus", "clients"]
    assert "'Good' (20) is read as 'good'" in record.notes[0]
    assert record.notes[1].startswith("left out 20 of 100 rows, which have no label: ")
    assert record.counts == {"rows read": 100, "no label": 20, "rows kept": 80}
    (tmp_path / "rows.csv").unlink()  # the report needs no corpus for it
    said = remarks(record, Material.of(record))
    assert any("no label: 20" in remark.says for remark in said)
    assert any("is read as 'good'" in remark.says for remark in said)
