"""What one client sends, whatever it is, is that client's failure; the quorum decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill import Experiment
from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.engines import checkpoint, runner
from fedstill.engines.local import LocalEngine
from fedstill.engines.seconds import Slip
from fedstill.plan.prepare import prepare
from fedstill.results.record import Record
from fedstill.wire.encoding import decode
from fedstill.wire.messages import Done, Hello, Message, Opinion, Parameters
from fedstill.wire.replies import Failure
from tests.wire.foreign import foreign

Small = Callable[..., Experiment]
Lie = Callable[[Any], Message]

ALIKE = {"clients": {"name": "textcnn", "tokenizer": "bert-tiny"}, "algorithm": "FedAvg"}
LIAR = "garden"


def conduct(experiment: Experiment, folder: Path, lies: Mapping[int, Lie]) -> Record:
    """A run in which one client's messages of some rounds are others than it sent; round 0 is its hello."""
    experiment, plan, _ = prepare(experiment, folder)

    class Lying(LocalEngine):
        def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
            replies = dict(super().deliver(calls, round))
            if isinstance(said := replies.get(LIAR), bytes) and round in lies:
                raw, slip = Slip.take_off(said)
                parcel = decode(raw, plan.agreement.types)
                replies[LIAR] = slip.stick(foreign(lies[round](parcel.message), parcel.envelope))
            return replies

    manifest, _ = checkpoint.latest(folder)
    return runner.conduct(plan, folder, tell_nobody, manifest, Lying)


def notes_of(folder: Path) -> list[str]:
    lines = (json.loads(line) for line in (folder / "log.jsonl").open())
    return [line["note"] for line in lines if line.get("party") == LIAR]


def logits(change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    return lambda said: replace(said, logits=change(said.logits))


def parameters(**changes: torch.Tensor) -> Lie:
    return lambda said: Parameters({**said.parameters, **changes})


OPINIONS: list[tuple[Lie, str]] = [
    (logits(lambda z: z.to(torch.float8_e4m3fn)), "holds F8_E4M3, which cannot be sent"),
    (logits(lambda z: z.to(torch.complex64)), "holds C64, which cannot be sent"),
    (logits(lambda z: z.reshape((1,) * 63 + z.shape)), "has 65 dimensions"),
    (logits(lambda z: torch.full_like(z, 3e38)), "Opinion.logits is 3e+38: at most 1e+06 is expected"),
    (lambda said: replace(said, loss=None), "Opinion.loss is missing"),
    (lambda said: replace(said, loss=-1e9), "Opinion.loss is -1e+09"),
    (lambda said: Done(), "Done is no reply to turn"),
]
PARAMETERS: list[tuple[Lie, str]] = [
    (parameters(more=torch.ones(2)), "more"),
    (lambda said: Parameters({}), "is not of the client's architecture"),
    (
        lambda said: Parameters({k: v.double() * 1e300 for k, v in said.parameters.items()}),
        "is expected",
    ),
    (lambda said: Parameters({k: v.long() for k, v in said.parameters.items()}), "is not of the client's architecture"),
    (lambda said: Opinion(torch.ones(2, 2)), "Opinion' where"),
]
HELLOS: list[tuple[Lie, str]] = [
    (lambda said: replace(said, size=10**400), "Hello.size is 1000"),
    (lambda said: replace(said, size=10**12), "Hello.size is 1000"),
    (lambda said: replace(said, label_counts=said.label_counts * 0), "add up to 0"),
    (lambda said: replace(said, architecture="TextCNN/0123456789ab"), "everybody needs the server's architecture"),
]


@pytest.mark.parametrize(("algorithm", "lies"), [({}, OPINIONS), (ALIKE, PARAMETERS)], ids=["AdaFD", "FedAvg"])
def test_a_run_goes_on_without_what_one_client_says(
    small: Small, tmp_path: Path, algorithm: dict[str, Any], lies: list[tuple[Lie, str]]
) -> None:
    experiment = small(**algorithm, quorum=0.5, rounds=len(lies) + 1, train={"epochs": 1, "max_length": 8})
    record = conduct(experiment, tmp_path, {number: lie for number, (lie, _) in enumerate(lies, 1)})
    assert record.is_finished
    notes = notes_of(tmp_path)
    assert len(notes) == len(lies)
    for note, (_, reason) in zip(notes, lies, strict=True):
        assert reason in note
    trained = {line["round"] for line in record.metrics if line["party"] == LIAR and line.get("stage") == "trained"}
    assert trained == {len(lies) + 1}


@pytest.mark.parametrize(("lie", "reason"), HELLOS)
def test_a_client_that_lies_about_itself_takes_no_part_until_it_does_not(
    small: Small, tmp_path: Path, lie: Lie, reason: str
) -> None:
    record = conduct(small(**ALIKE, quorum=0.5, rounds=2), tmp_path, {0: lie, 1: lie})
    assert len(notes_of(tmp_path)) == 2
    assert all(reason in note for note in notes_of(tmp_path))
    trained = {line["round"] for line in record.metrics if line["party"] == LIAR and line.get("stage") == "trained"}
    assert trained == {2}


def test_an_architecture_that_nobody_has_is_that_clients_failure(small: Small, tmp_path: Path) -> None:
    lie: Lie = lambda said: replace(said, architecture="Own/0123456789ab")  # noqa: E731
    experiment = small(algorithm="FedDF", quorum=0.5, rounds=1)
    record = conduct(experiment, tmp_path, {0: lie, 1: lie})
    assert record.is_finished
    assert all("no party of this experiment has a model of architecture Own" in note for note in notes_of(tmp_path))


def test_a_run_that_needs_everybody_ends_in_a_sentence(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"2 of 3 clients answered, 3 are needed \(garden: unreadable message"):
        conduct(small(rounds=1), tmp_path, {1: OPINIONS[0][0]})


def test_a_client_cannot_grow_while_a_run_rests(small: Small, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(said: Any) -> Message:
        raise Stop

    def grow(said: Hello) -> Hello:
        assert said.label_counts is not None
        more = said.label_counts.clone()
        more[0] += 5
        return replace(said, size=said.size + 5, label_counts=more)

    experiment = small(quorum=0.5, rounds=2)
    with pytest.raises(Stop):
        conduct(experiment, tmp_path, {2: stop})
    record = conduct(experiment, tmp_path, {0: grow, 2: grow})
    assert any("when it first said hello" in note for note in notes_of(tmp_path))
    trained = {line["round"] for line in record.metrics if line["party"] == LIAR and line.get("stage") == "trained"}
    assert trained == {1}
