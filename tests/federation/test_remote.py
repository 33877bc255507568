"""The centre and real sites, with nothing but a function between them: what the transport does to a run."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.common.events import Begun, Event, Noted, RoundDone, tell_nobody
from fedstill.engines.checkpoint import folder_of
from fedstill.engines.host import Host
from fedstill.engines.seconds import Slip
from fedstill.federation import centre
from fedstill.federation.centre import END, Ended
from fedstill.federation.data import read_public, site_plan
from fedstill.federation.line import Unreachable
from fedstill.federation.requests import LARGE, frame, unframe
from fedstill.federation.status import Status
from fedstill.results.record import Record
from fedstill.wire.encoding import decode, encode
from fedstill.wire.messages import Answer, Done, Hello, Message, Opinion
from tests.federation.stage import alone, differences, server_model, until
from tests.federation.together import Deliver, Request, Together, two_shops, write_two_shops
from tests.wire.foreign import foreign

CONVERSING = {
    "algorithm": "FedID",
    "partition": {"labelled_public": 0.1},
    "distill": {"epochs": 1, "batch": 4},
    "rounds": 2,
}
"""Several calls a round."""

Make = Callable[..., Together]


@pytest.fixture(scope="module")
def reviews_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_shops(tmp_path_factory.mktemp("reviews") / "reviews.csv")


@pytest.fixture(scope="module")
def opining_alone(tmp_path_factory: pytest.TempPathFactory, reviews_of_two: Path) -> Record:
    return alone(two_shops(reviews_of_two), tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(scope="module")
def conversing_alone(tmp_path_factory: pytest.TempPathFactory, reviews_of_two: Path) -> Record:
    return alone(two_shops(reviews_of_two, **CONVERSING), tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture
def together(tmp_path: Path, reviews_of_two: Path) -> Iterator[Make]:
    made: list[Together] = []

    def make(patience: dict[str, Any] | None = None, **changes: Any) -> Together:
        made.append(Together(two_shops(reviews_of_two, **changes), tmp_path / "together", **(patience or {})))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A centre that asks again soon."""
    monkeypatch.setattr(centre, "PING_S", 2.0)
    monkeypatch.setattr("fedstill.federation.line.PAUSE_S", 0.1)


def as_alone(record: Record, simulated: Record) -> bool:
    """Whether a federation came to the very numbers and weights of its simulation."""
    assert record.metrics
    assert differences(record, simulated) == []
    server, theirs = (
        [line for line in one.metrics if line["party"] == "server" and line.get("split") != "validation"]
        for one in (record, simulated)
    )
    assert server == theirs  # only a simulation's server sees validation rows
    return server_model(record) == server_model(simulated)


def trained(record: Record, site: str) -> list[int]:
    """The rounds that a site took part in."""
    lines = [line for line in record.metrics if line["party"] == site and line.get("stage") == "trained"]
    return sorted({line["round"] for line in lines})


def rounds_measured(record: Record) -> list[int]:
    lines = [line for line in record.metrics if line["party"] == "server" and line.get("split") == "test"]
    return [line["round"] for line in lines]


# Nothing disturbs it


def patterns(stage: Together, name: str) -> list[bytes]:
    """What would be seen of a site's rows if they left: every text, and the labels in order in several spellings."""
    found: list[bytes] = []
    labels = list(stage.written.experiment.labels or ())
    for part in ("train", "validation", "test"):
        path = stage.written.sites[name].parent / f"{part}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        found += [row["text"].encode() for row in rows]
        numbers = np.array([labels.index(row["label"]) for row in rows])
        if len(rows) > 8:
            found += [numbers.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8, np.float32)]
            found.append(json.dumps(numbers.tolist()).encode())
            found.append(json.dumps([row["label"] for row in rows]).encode())
    return found


def test_opinions_give_the_simulations_numbers_and_nothing_private_leaves(
    together: Make, opining_alone: Record, tmp_path: Path
) -> None:
    stage = together(quorum=1.0)
    copy = stage.written.server.parent / "public.jsonl"
    stage.start(books={"public": {"path": str(copy)}}, garden={"limits": {"parameters": False}})
    status = Status(stage.run, stage.job)
    record = stage.conduct(status)
    assert as_alone(record, opining_alone)
    assert record.notes == []
    assert trained(record, "garden") == [1, 2, 3]

    sent = [line for line in record.ledger if line["message"] == "PublicSet"]
    size = len(read_public(stage.centre).pack())
    assert [(line["round"], line["direction"], line["messages"], line["bytes"]) for line in sent] == [
        (0, "down", 1, size)  # the garden has no copy
    ]

    for name in ("books", "garden"):
        secrets, said = patterns(stage, name), stage.said[name]
        assert len(secrets) > 60
        assert len(said) >= 8
        assert b"".join(secrets[:3]) in b"".join(secrets)
        assert not [secret for secret in secrets for raw in said if secret in raw]
        model = stage.sites[name].folder / "models" / name / "model.safetensors"
        assert model.stat().st_size > 0  # a site's model is written at the site
        assert not (stage.run / "models" / name).exists()

    assert (status.state["round"], status.state["rounds"]) == (3, 3)
    assert {place["state"] for place in status.state["sites"].values()} == {"answered"}
    up_to_the_last_round = sum(line["bytes"] * line["recipients"] for line in record.ledger if line["round"] <= 3)
    assert status.state["bytes"] == up_to_the_last_round


@pytest.mark.slow
def test_parameters_give_the_simulations_numbers_and_large_replies_are_announced_first(
    together: Make, tmp_path: Path, reviews_of_two: Path
) -> None:
    averaging = {"algorithm": "FedAvg", "clients": "bert-tiny", "server": "bert-tiny", "rounds": 1}
    stage = together(**averaging)
    record = stage.conduct()
    assert as_alone(record, alone(two_shops(reviews_of_two, **averaging), tmp_path / "alone"))
    announced = [(request.site, header["bytes"]) for request, header, _ in stage.replies if header["state"] == "ready"]
    large = [(request, len(data)) for request, _, data in stage.replies if len(data) > LARGE]
    assert sorted(announced) == sorted((request.site, size) for request, size in large)
    assert {site for site, _ in announced} == {"books", "garden"}
    assert all(request.header.get("takes_large") for request, _ in large)


def test_replies_that_are_lost_are_asked_for_again_and_nothing_is_done_twice(
    together: Make, conversing_alone: Record, impatient: None
) -> None:
    stage = together(**CONVERSING)

    def lossy(request: Request, deliver: Deliver) -> bytes:
        said = deliver()
        if request.site == "garden" and request.is_new:
            raise Unreachable("the reply was lost")
        return said

    stage.transport = lossy
    record = stage.conduct()
    assert as_alone(record, conversing_alone)
    assert record.notes == []
    new = [request for request in stage.requests if request.is_new and request.site == "garden"]
    again = [request for request in stage.requests if not request.is_new and request.header["what"] != "poll"]
    calls = [request for request in new if request.what == "call"]
    assert len(calls) > 2 * 4  # hello, and a conversation of several calls a round
    assert {request.header["number"] for request in again} == {request.header["number"] for request in new}


# Lies


def of(reply: bytes, **changes: Any) -> bytes:
    """A reply with something else in its message or around it."""
    raw, slip = Slip.take_off(reply)
    types: dict[str, type[Message]] = {kind.__name__: kind for kind in (Hello, Opinion, Answer, Done)}
    parcel = decode(raw, types)
    assert parcel.message is not None
    message = changes.pop("message", None) or replace(parcel.message, **changes.pop("fields", {}))
    return slip.stick(foreign(message, parcel.envelope | changes))


def with_nan(reply: bytes) -> bytes:
    logits = decode(Slip.take_off(reply)[0], {"Opinion": Opinion}).message.logits  # type: ignore[union-attr]
    return of(reply, fields={"logits": torch.where(logits == logits.max(), torch.nan, logits)})


def done(payload: bytes) -> bytes:
    return frame({"state": "done", "notes": []}, payload)


def cut(reply: bytes) -> bytes:
    raw, slip = Slip.take_off(reply)
    return slip.stick(raw[:-8])


DEEP = b"[" * 100_000
DREAM = [{"round": 8, "stage": "dreamt", "split": "test", "f1": 1.0}]
LIES: list[tuple[Callable[[bytes], Any], str]] = [
    (lambda reply: b"\xff\xff\xff\x7fgarbage", "11 bytes that are no frame."),
    (lambda reply: "a text", "a str where bytes are expected."),
    (lambda reply: b"", "0 bytes that are no frame."),
    (lambda reply: done(b""), "a reply of 0 bytes."),
    (lambda reply: done(cut(reply)), "unreadable message of "),
    (lambda reply: done(with_nan(reply)), "Opinion.logits holds values that are not finite."),
    (lambda reply: done(of(reply, fields={"logits": torch.zeros(2, 3)})), "Opinion.logits has shape (2, 3): "),
    (lambda reply: done(of(reply, metrics=DREAM)), "a measurement of stage 'dreamt', split 'test'."),
    (lambda reply: done(of(reply, round=99)), "a reply for round 99 in round 9."),
    (lambda reply: done(of(reply, message=Hello(9))), "Hello is no reply to turn."),
    (lambda reply: done(of(reply, message=Done())), "Done is no reply to turn."),
    (lambda reply: frame({"state": "ready", "bytes": 10**400}), "a reply that is too large: "),
    (lambda reply: bytes(9 << 20), "a reply that is too large: "),
    (lambda reply: done(of(reply, fields={"loss": None})), "Opinion.loss is missing, and the method needs it."),
    (lambda reply: done(of(reply, fields={"logits": torch.ones(()).to(torch.float8_e5m2)})), "unreadable message of "),
    (lambda reply: len(DEEP).to_bytes(4, "little") + DEEP, "100004 bytes that are no frame."),
    (lambda reply: frame({"state": "failed", "reason": "no " * 9999}), ("no " * 9999)[:480]),
    (lambda reply: frame({"state": "done", "notes": 7, "progress": []}, reply), ""),
]
"""What becomes of a true reply in round 1, 2, ..., and what is noted; of the last nothing is wrong but the notes."""


def test_whatever_a_site_answers_the_run_goes_on_without_it(together: Make) -> None:
    stage = together({"failures": 99}, rounds=len(LIES))

    def lying(request: Request, deliver: Deliver) -> bytes:
        said = deliver()
        header, payload = unframe(said)
        is_its = (request.site, request.what, header["state"]) == ("garden", "call", "done")
        if not is_its or not 0 < request.round <= len(LIES):
            return said
        lie: bytes = LIES[request.round - 1][0](payload)
        return lie

    stage.transport = lying
    record = stage.conduct()
    notes = [line for line in (json.loads(row) for row in (stage.run / "log.jsonl").open()) if "note" in line]
    assert [(line["round"], line["party"]) for line in notes] == [(n, "garden") for n in range(1, len(LIES))]
    for (_, reason), line in zip(LIES, notes, strict=False):
        assert line["note"].startswith(f"no usable reply: {reason}")
    assert trained(record, "garden") == [len(LIES)]
    assert trained(record, "books") == list(range(1, len(LIES) + 1))
    weights = [line["values"] for line in record.metrics if line.get("observation") == "weights"]
    assert [sorted(values) for values in weights] == [["books"]] * (len(LIES) - 1) + [["books", "garden"]]
    assert record.is_finished


@pytest.mark.slow
def test_a_run_that_needs_everybody_ends_in_one_sentence_that_names_site_and_reason(together: Make) -> None:
    stage = together(quorum=1.0)

    def lying(request: Request, deliver: Deliver) -> bytes:
        if request.site == "garden" and request.what == "call":
            hello = Slip(0.0, 0.0, 1).stick(encode(Hello(0), {"round": 0, "metrics": [], "notes": []}))
            return done(hello)
        return deliver()

    stage.transport = lying
    with pytest.raises(FedstillError) as ended:
        stage.conduct()
    assert str(ended.value) == (
        "round 0: 1 of 2 clients answered, 2 are needed (garden: Hello.size is 0: at least 1 is expected.)"
    )
    assert stage.notes == ["garden: no usable reply: Hello.size is 0: at least 1 is expected."]


@pytest.mark.slow
def test_a_method_that_needs_label_counts_says_who_withholds_them(together: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedstill.algorithms.adafd import AdaFD\n"
        "@dataclass(frozen=True)\n"
        "class Counting(AdaFD):\n"
        "    def server(self, me, ups):\n"
        "        me.observe('rows', dict(zip(ups, ups.label_counts.sum(-1).tolist())))\n"
        "        return super().server(me, ups)\n"
    )
    stage = together(algorithm=f"{tmp_path / 'mine.py'}:Counting", rounds=1)
    stage.start(garden={"label_counts": False})
    with pytest.raises(FedstillError, match=r"^this method needs label counts, and garden withholds them\.$"):
        stage.conduct()
    hellos = [data for request, _, data in stage.replies if request.what == "call" and request.round == 0 and data]
    told = [decode(Slip.take_off(raw)[0], {"Hello": Hello}).message for raw in hellos]
    counts = sorted(hello.label_counts is None for hello in told if isinstance(hello, Hello))
    assert counts == [False, True]


# Workers that die or stall


@pytest.mark.slow
def test_a_worker_that_dies_in_a_conversation_is_brought_back_to_the_byte(
    together: Make, conversing_alone: Record
) -> None:
    stage = together(**CONVERSING)
    calls: list[int] = []

    def murderous(request: Request, deliver: Deliver) -> bytes:
        if request.site != "garden" or request.what != "call" or not request.is_new:
            return deliver()
        worker = stage.sites["garden"].worker
        calls.append(request.round)
        if (request.round, calls.count(request.round)) == (1, 3):  # between two calls
            assert worker is not None
            worker.process.kill()
            worker.process.wait()
        if (request.round, calls.count(request.round)) == (2, 4):  # in the middle of one
            assert worker is not None
            worker.process.send_signal(signal.SIGSTOP)
            said = deliver()
            worker.process.kill()
            return said
        return deliver()

    stage.transport = murderous
    record = stage.conduct()
    assert as_alone(record, conversing_alone)
    died = "its worker died (killed by signal 9; out of memory?) and was started again."
    assert record.notes == [died, died]
    assert [note for note in stage.notes if "worker" in note] == [f"garden: {died}"] * 2


@pytest.mark.slow
def test_a_stalled_site_is_given_up_at_the_deadline_and_returns_as_if_it_had_not_been_there(together: Make) -> None:
    stage = together(rounds=4)
    stopped_at: list[float] = []
    calls: dict[int, tuple[bytes, bytes]] = {}

    def stalling(request: Request, deliver: Deliver) -> bytes:
        is_call = request.site == "garden" and request.what == "call"
        if is_call and request.round == 2 and request.is_new:
            worker = stage.sites["garden"].worker
            assert worker is not None
            worker.process.send_signal(signal.SIGSTOP)
            stopped_at.append(time.monotonic())
        said = deliver()
        if is_call and request.is_new:
            calls[request.round] = (request.payload, b"")
        if is_call and unframe(said)[0]["state"] == "done":
            calls[request.round] = (calls[request.round][0], unframe(said)[1])
        return said

    given_up_after: list[float] = []

    def hear(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            stage.wait_no_longer_than(20.0)  # books must be done by then, on a slow machine too
        if isinstance(event, Noted) and "deadline" in event.note:
            stage.wait_no_longer_than(3600.0)
            given_up_after.append(time.monotonic() - stopped_at[0])

    stage.transport = stalling
    record = stage.conduct(hear)
    assert record.notes == ["no usable reply: not done within the deadline of 20 s."]
    assert given_up_after[0] >= 20
    assert trained(record, "garden") == [1, 4]  # in round 3 it is not asked
    assert trained(record, "books") == [1, 2, 3, 4]

    # Who never heard rounds 2 and 3 says in round 4 what the site said.
    folder = stage.folder / "reference"
    folder.mkdir()
    public = read_public(stage.centre)
    reference = Host(site_plan(stage.job, "garden", stage.file("garden"), public, folder), tell_nobody)
    torch.set_num_threads(1)
    for round in (0, 1, 4):
        heard, said = calls[round]
        assert Slip.take_off(reference.call("garden", heard))[0] == Slip.take_off(said)[0]


# Sites that come and go


@pytest.mark.slow
def test_a_site_that_comes_and_goes_takes_part_when_it_is_there(together: Make, impatient: None) -> None:
    stage = together({"silence": "3s", "failures": 1}, rounds=6)
    missed: list[Request] = []

    def unsteady(request: Request, deliver: Deliver) -> bytes:
        if request.site == "garden":
            is_short = stage.round == 3 and not missed
            if is_short:
                missed.append(request)
            if stage.round in (1, 4, 5) or is_short:
                raise Unreachable("the line is cut")
        return deliver()

    stage.transport = unsteady
    record = stage.conduct()
    garden = [note.removeprefix("garden: ") for note in stage.notes]
    assert garden == [
        "no usable reply: silent for 3 s (the line is cut).",  # opening
        "left out after 1 failures, until it answers again.",
        "answers again and takes part again.",  # round 2; of the short silence in round 3 nothing is heard
        "no usable reply: silent for 3 s (the line is cut).",
        "left out after 1 failures, until it answers again.",
        "answers again and takes part again.",
    ]
    assert missed
    failed = [event.reason for event in stage.sites_said if event.reason.startswith("left out")]
    rests = [f"left out, rounds until it is asked again: {n}; silent for 3 s (the line is cut)." for n in (2, 1, 1)]
    assert failed == rests  # hello, round 1, round 5: nobody waits for it
    assert trained(record, "garden") == [2, 3, 6]
    assert trained(record, "books") == [1, 2, 3, 4, 5, 6]
    assert rounds_measured(record) == [1, 2, 3, 4, 5, 6]


def test_nobody_is_asked_any_more_when_a_run_has_been_interrupted(together: Make) -> None:
    stage = together()
    asked: list[Request] = []
    is_busy = threading.Event()

    def interrupted(request: Request, deliver: Deliver) -> bytes:
        if request.what == "open":
            return deliver()
        if request.site == "books":
            asked.append(request)
            if len(asked) > 2:
                is_busy.set()
            return frame({"state": "working"})
        is_busy.wait()
        raise KeyboardInterrupt

    stage.transport = interrupted
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        stage.conduct()
    until(lambda: threading.active_count() <= before)  # nobody is left who could ask


# Going on


@pytest.mark.slow
def test_the_operators_wish_ends_a_job_after_the_round_and_it_goes_on_later(together: Make, impatient: None) -> None:
    stage = together({"silence": "1s", "failures": 1})

    def wish(event: Event) -> None:
        if isinstance(event, Begun):
            (stage.run / END).write_text("enough for today")

    with pytest.raises(Ended, match="enough for today"):
        stage.conduct(wish)
    assert not (stage.run / END).exists()
    assert [path.name for path in folder_of(stage.run).glob("round-*")] == ["round-00001.json"]

    # On the next day the garden comes late: it misses the greeting, and is not asked in the next round.
    def late(request: Request, deliver: Deliver) -> bytes:
        if request.site == "garden" and not any("left out, " in event.reason for event in stage.sites_said):
            raise Unreachable("still asleep")
        return deliver()

    stage.start()
    stage.transport = late
    record = stage.conduct()
    begun = stage.events[0]
    assert isinstance(begun, Begun)
    assert (begun.after, begun.rounds, begun.metric, list(begun.models)) == (1, 3, "f1", ["server", *stage.sites])
    assert "garden: answers again and takes part again." in stage.notes
    assert not any("continues from its state" in note for note in stage.notes)
    assert trained(record, "garden") == [1, 3]
    assert rounds_measured(record) == [1, 2, 3]


@pytest.mark.slow
def test_sites_that_are_ahead_of_the_centre_go_back_with_it(together: Make, opining_alone: Record) -> None:
    stage = together(quorum=1.0)

    def interrupted(request: Request, deliver: Deliver) -> bytes:
        if request.round == 3 and request.site == "books":
            raise KeyboardInterrupt
        return deliver()

    stage.transport = interrupted
    with pytest.raises(KeyboardInterrupt):
        stage.conduct()
    (folder_of(stage.run) / "round-00002.json").unlink()
    for site in stage.sites.values():
        assert (folder_of(site.folder) / "round-00002.json").exists()

    stage.start()
    stage.transport = lambda request, deliver: deliver()
    record = stage.conduct()
    assert as_alone(record, opining_alone)
    assert rounds_measured(record) == [1, 2, 3]
    went_back = [
        (request.site, request.round, header["round"])
        for request, header, _ in stage.replies
        if request.what == "restore" and header["state"] == "done"
    ]
    assert sorted(went_back) == [("books", 1, 1), ("garden", 1, 1)]
    assert not [request for request in stage.requests if request.what == "public"]
    assert record.notes == []
