"""What a site counts of what it says, and where it stops; what it tells its operator of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedstill.common.units import size_text
from fedstill.engines.seconds import Slip
from fedstill.federation.budget import SENT, Budget, Spent, left, read_sent
from fedstill.federation.files import Limits, SiteFile, to_values
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.federation.view import what_left
from fedstill.wire import envelopes
from fedstill.wire.encoding import encode
from fedstill.wire.messages import Done, Opinion
from tests.federation.together import Caller, Inside, Together, two_shops, write_two_shops

JOB = Job({"name": "wards", "rounds": 3, "labels": ["a", "b"]}, "", 0, 0, ("north",), "1")


def reply(words: str, rows: int = 2) -> bytes:
    """An answer; other words, another answer. Its time differs every time."""
    message = Opinion(torch.zeros(rows, 2), 0.5)
    return Slip(random.random(), 0.0, 1).stick(encode(message, {"round": 1, "metrics": [], "notes": [words]}))


def call(round: int) -> bytes:
    return encode(None, {"verb": "turn", "round": round})


def say(budget: Budget, round: int, words: str) -> None:
    """One call and its answer."""
    budget.send(round, budget.admit(round, call(round)), reply(words))


def test_rounds_outside_the_experiment_are_refused_without_any_limit(tmp_path: Path) -> None:
    budget = Budget(tmp_path, JOB, Limits())
    for round in (0, 1, 2, 3, 4):
        say(budget, round, f"of {round}")
    for round in (-1, 5, 50):
        with pytest.raises(Refusal, match=f"^a call of round {round}, and the experiment has 3 rounds.$"):
            budget.admit(round, call(round))
    with pytest.raises(Refusal, match=r"^a call of round 1 that holds one of another round\.$"):
        budget.admit(1, call(50))
    for verb in (7, "", "turn\nround 1 of 3", "x" * 100):  # it is written into the site's log
        with pytest.raises(Refusal, match=r"^a call without a verb\.$"):
            budget.admit(1, encode(None, {"verb": verb, "round": 1}))
    with pytest.raises(Refusal, match=r"^unreadable message of 4 bytes"):
        budget.admit(1, b"none")
    assert budget.spent.rounds == 3  # neither the greeting nor the end is one


def test_a_round_repeated_with_the_same_answers_is_free_and_with_others_it_is_not(tmp_path: Path) -> None:
    limits = Limits(rounds=3)
    for round in (0, 1, 2):
        say(Budget(tmp_path, JOB, limits), round, f"of {round}")
    for round in (0, 1, 2, 3, 4):  # an interruption: the site and the centre begin again after round 0
        say(Budget(tmp_path, JOB, limits), round, f"of {round}")
    budget = Budget(tmp_path, JOB, limits)
    assert (budget.spent.rounds, budget.spent.calls) == (3, 8)
    for round in (0, 1, 2, 4):
        with pytest.raises(Refusal, match=r"^its limit of 3 rounds in one experiment is reached\.$"):
            say(budget, round if round != 4 else 1, "something new")
    say(budget, 2, "of 2")  # and this it may still hear again


def test_calls_and_bytes_are_counted_on_disk_and_by_experiment(tmp_path: Path) -> None:
    size = len(reply("a"))
    for number in range(2):
        say(Budget(tmp_path, JOB, Limits(calls=2, bytes=5 * size)), 1, str(number))
    with pytest.raises(Refusal, match=r"^its limit of 2 calls in one experiment is reached\.$"):
        Budget(tmp_path, JOB, Limits(calls=2)).admit(1, call(1))
    for number in range(3):
        say(Budget(tmp_path, JOB, Limits(bytes=5 * size)), 1, str(number))
    told = size_text(5 * size).replace(".", r"\.")
    with pytest.raises(Refusal, match=f"^its limit of {told} in one experiment is reached.$"):
        Budget(tmp_path, JOB, Limits(bytes=5 * size)).admit(1, call(1))
    with pytest.raises(Refusal, match=r"^its limit of "):
        Budget(tmp_path, JOB, Limits(bytes=6 * size - 1)).send(1, "turn", reply("a"))
    assert len(list(read_sent(tmp_path))) == 5  # what was refused did not leave
    other = Job(JOB.experiment | {"name": "others"}, "", 0, 0, ("north",), "1")
    assert Budget(tmp_path, other, Limits(calls=1)).spent.calls == 0


def test_sizes_are_written_as_people_do_and_survive_the_sites_own_copy_of_its_file() -> None:
    file = SiteFile.model_validate({"corpus": {"path": "x.csv"}, "limits": {"bytes": "50MB", "calls": 9}})
    assert file.limits.bytes == 50_000_000
    assert SiteFile.model_validate_json(json.dumps(to_values(file))).limits == file.limits


def test_a_line_says_what_left_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    budget = Budget(tmp_path, JOB, Limits())
    say(budget, 1, "a note")
    packed = encode(Done(), {"packed": envelopes.pack({"round": 2, "metrics": [{}, {}], "notes": []})})
    with (tmp_path / SENT).open("a") as out:
        out.write('{"hash": "cut o')  # by a crash
    budget.send(2, "close", Slip(0.0, 0.0, 1).stick(packed))
    first, second = read_sent(tmp_path)
    assert (first["experiment"], first["hash"], first["round"], first["verb"]) == (JOB.id, JOB.hash, 1, "turn")
    assert (first["message"], first["held"]) == ("Opinion", {"logits": "F32 [2, 2]", "loss": "F32 []"})
    assert (first["bytes"], first["metrics"], first["notes"]) == (len(reply("a note")), 0, 1)
    assert "a note" not in json.dumps(first)
    assert (second["message"], second["held"], second["metrics"]) == ("Done", {}, 2)
    assert (tmp_path / SENT).stat().st_mode & 0o777 == 0o600


def test_what_is_left_is_said_in_words() -> None:
    spent = Spent()
    for round in (0, 1, 2):
        spent.add({"round": round, "rounds": 3, "sha256": str(round), "bytes": 1000})
    assert left(spent, Limits()) == ""
    assert left(spent, Limits(rounds=3, calls=2, bytes="1MB")) == "1 round, 0 calls, 997.0 KB"  # type: ignore[arg-type]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Together]:
    monkeypatch.setattr("fedstill.federation.site.Worker", Inside)
    made = Together(two_shops(write_two_shops(tmp_path / "reviews.csv"), rounds=2), tmp_path / "together")
    yield made
    made.close()


def test_a_site_that_has_said_enough_is_a_failure_as_data_and_the_run_goes_on(stage: Together) -> None:
    stage.start(garden={"limits": {"calls": 2}})  # hello and the first round
    record = stage.conduct()
    enough = "its limit of 2 calls in one experiment is reached."
    assert record.notes == [f"no usable reply: {enough}"] * 2  # of the second round, and of the end
    garden = stage.sites["garden"]
    sent = list(read_sent(garden.folder.parent))
    arrived = [data for request, _, data in stage.replies if request.site == "garden" and data]
    assert [(line["round"], line["verb"], line["message"]) for line in sent] == [
        (0, "hello", "Hello"),
        (1, "turn", "Opinion"),
    ]
    assert [line["bytes"] for line in sent] == [len(data) for data in arrived]
    assert f"call: {enough}" in (garden.folder / "site.log").read_text()

    again = Caller(stage.site("garden", limits={"calls": 2}))  # its machine was started again
    assert again("open")[0]["state"] == "done"
    assert again("call", call(2), round=2)[0] == {"state": "failed", "reason": enough}
    assert again("call", call(9), round=9)[0]["reason"] == "a call of round 9, and the experiment has 2 rounds."
    assert "call: a call of round 9" in (again.site.folder / "site.log").read_text()
    assert again.site.worker is None  # nothing was computed for it

    console = Console(width=200)
    with console.capture() as captured:
        console.print(what_left(garden.folder.parent, 1))
    shown = captured.get()
    assert "1 earlier answers" in shown
    narrow = Console(width=80)
    with narrow.capture() as captured:
        narrow.print(what_left(garden.folder.parent, 0))
    assert stage.job.id in captured.get()
    assert "…" not in captured.get()
    assert any(
        line.split()[:4] == [stage.job.id, "1", "2", *size_text(sum(map(len, arrived))).split()[:1]]
        for line in shown.splitlines()
    )
