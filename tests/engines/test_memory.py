"""What of the clients stays in memory, and where the time goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedstill import Experiment, FedstillError, run
from fedstill.common.events import tell_nobody
from fedstill.engines.host import Host, in_excess
from fedstill.engines.seconds import FORM, Seconds, Slip
from fedstill.plan.prepare import prepare
from fedstill.wire.encoding import decode, encode
from fedstill.wire.messages import BadMessage, Hello

Small = Callable[..., Experiment]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ONE = 4 * (2 * 2**17 + 1) * 3 + 4 * 3
"""Bytes of a bag of words over pairs, three classes."""


def host_of(small: Small, folder: Path, limit: int | None, **changes: object) -> Host:
    folder.mkdir()
    _, plan, _ = prepare(small(**{"clients": "bow", "device": "cpu"} | changes), folder)
    return Host(replace(plan, host_bytes=limit), tell_nobody)


def turn(round: int) -> bytes:
    return encode(None, {"verb": "turn", "round": round})


def test_the_least_recently_used_go_first_and_no_more_than_must() -> None:
    bytes = {"a": 5, "b": 3, "c": 4, "d": 2}
    assert in_excess(bytes, None, ()) == in_excess(bytes, 14, ()) == []
    assert in_excess(bytes, 13, ()) == ["a"]
    assert in_excess(bytes, 8, ()) == ["a", "b"]
    assert in_excess(bytes, 8, {"a"}) == ["b", "c"]
    assert in_excess(bytes, 0, {"d"}) == ["a", "b", "c"]


@given(st.dictionaries(st.text(), st.integers(1, 100)), st.integers(0, 500), st.sets(st.text()))
def test_the_others_fit_unless_they_must_stay(bytes: dict[str, int], limit: int, staying: set[str]) -> None:
    going = in_excess(bytes, limit, staying)
    left = {name: own for name, own in bytes.items() if name not in going}
    assert not staying & set(going)
    assert sum(left.values()) <= limit or left.keys() <= staying
    assert not going or sum(left.values()) + bytes[going[-1]] > limit


def test_clients_that_only_said_hello_need_no_model_and_no_file(small: Small, tmp_path: Path) -> None:
    host = host_of(small, tmp_path / "run", 1)
    said = {}
    for name in host.plan.clients:
        raw, _ = Slip.take_off(host.call(name, encode(None, {"verb": "hello", "round": 0})))
        said[name] = decode(raw, host.plan.agreement.types).message
    assert not any(client.has_model for client in host.awake.values())
    assert host.files == {}
    for name, client in host.awake.items():
        hello = said[name]
        assert isinstance(hello, Hello)
        assert hello.architecture == client.model.architecture


@pytest.mark.parametrize("save_every", [1, 2])
def test_a_client_that_fails_goes_back_to_its_file_and_nobody_s_copy_fills_the_memory(
    small: Small, tmp_path: Path, save_every: int
) -> None:
    host = host_of(small, tmp_path / "run", None, quorum=0.5)
    host.call("books", turn(1))
    before = host.awake["books"].state()
    if save_every == 1:
        host.save(1)
    with pytest.raises(Exception, match="no verb"):
        host.call("books", encode(None, {"verb": "nonsense", "round": 2}))
    assert "books" not in host.awake
    assert not any(isinstance(value, dict) for value in host.before.values())
    host.call("garden", turn(2))
    assert list(host.before) == ["books", "garden"]
    again = host.wake("books").state()
    model = [name for name in before if name.startswith("model/")]
    assert model
    assert all(torch.equal(before[name], again[name]) for name in model)


def test_who_has_closed_sleeps_as_the_model_in_the_record_and_hears_nothing_more(small: Small, tmp_path: Path) -> None:
    host = host_of(small, tmp_path / "run", int(1.5 * ONE))
    models = tmp_path / "run" / "models"
    for name in host.plan.clients:
        host.call(name, turn(1))
    states = sorted((tmp_path / "run" / "checkpoint" / "state").iterdir())
    for name in host.plan.clients:
        host.call(name, encode(None, {"verb": "close", "round": 2}))
    assert sorted(path.name for path in models.iterdir()) == ["books", "garden"]
    assert sorted((tmp_path / "run" / "checkpoint" / "state").iterdir())[: len(states)] == states
    with pytest.raises(FedstillError, match="books has closed"):
        host.call("books", turn(2))
    for name in host.plan.clients:
        host.export(name)
    assert len(list(models.iterdir())) == 3
    assert not host.awake


@needs_gpu
def test_clients_over_the_device_s_limit_wait_in_pinned_memory_and_come_back(small: Small, tmp_path: Path) -> None:
    host = host_of(small, tmp_path / "run", None, device="cuda", memory={"device": f"{int(1.5 * ONE / 1000)}KB"})
    for name in host.plan.clients:
        host.call(name, turn(1))
    assert list(host.awake) == ["books", "garden", "toys"]
    assert host.dozing == {"books", "garden"}
    asleep = list(host.awake["books"].model.module.parameters())
    assert all(tensor.is_pinned() for tensor in asleep)
    assert all(tensor.is_cuda for tensor in host.awake["toys"].model.module.parameters())
    before = [tensor.clone() for tensor in asleep]
    host.wake("books")
    assert all(tensor.is_cuda for tensor in asleep)
    assert all(torch.equal(old, new.cpu()) for old, new in zip(before, asleep, strict=True))


@needs_gpu
def test_clients_on_a_gpu_sleep_on_the_host_and_on_disk_and_learn_the_same(small: Small, tmp_path: Path) -> None:
    limits = {"awake": {}, "host": {"device": "1MiB"}, "disk": {"device": "1MiB", "host": "1MiB"}}
    records = {
        name: run(small(device="cuda", precision="fp32", clients="bow", memory=memory), tmp_path / name)
        for name, memory in limits.items()
    }
    logits = {name: load_file(record.folder / "predictions" / "toys.safetensors") for name, record in records.items()}
    for name in ("host", "disk"):  # a GPU adds in no fixed order
        assert torch.allclose(logits["awake"]["logits"], logits[name]["logits"], atol=1e-3)


def test_without_a_gpu_the_device_s_limit_changes_nothing(small: Small, tmp_path: Path) -> None:
    host = host_of(small, tmp_path / "run", None, device="cpu", memory={"device": "1KiB"})
    for name in host.plan.clients:
        host.call(name, turn(1))
    assert len(host.awake) == 3
    assert not host.dozing


def test_a_slip_comes_off_as_it_was_stuck_on() -> None:
    slip = Slip(1.25, 0.5, 2**63, 0.75)
    assert Slip.take_off(slip.stick(b"reply")) == (b"reply", slip)
    for bad in (b"", b"short", FORM.pack(float("nan"), 0.0, 1, 0.0), FORM.pack(0.0, float("inf"), 1, 0.0)):
        with pytest.raises(BadMessage):
            Slip.take_off(bad)


def test_a_call_takes_as_long_as_its_busiest_host() -> None:
    clock = Seconds()
    clock.account([Slip(3.0, 1.0, 7, 0.5), Slip(2.0, 0.5, 8, 0.5), Slip(1.0, 0.0, 8, 0.25)])  # 4 against 3.5
    clock.account([Slip(0.5, 0.0, 7), Slip(1.0, 1.0, 8)])  # 0.5 against 2
    line = clock.end({"building": 0.25, "measuring": 0.1})
    assert (line["phases"], line["state"]) == (3.0 + 1.0 - 0.25, 1.0 + 1.0 + 0.25)
    assert line["idle"] == 0.25 + 0.75
    assert line["digest"] == 0.75
    assert line["measuring"] == 0.1
    assert line["rest"] == pytest.approx(line["total"] - 6.0, abs=2e-3)
    assert clock.end({})["phases"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_every_round_says_where_its_seconds_went(small: Small, tmp_path: Path, workers: int) -> None:
    record = run(small(workers=workers, rounds=2, clients="textcnn"), tmp_path / "run")
    lines = [json.loads(line) for line in (record.folder / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "seconds" in line]
    assert [(line["round"], line["active"]) for line in lines] == [(0, 0), (1, 3), (2, 3), (3, 3)]
    for line in lines[1:]:
        parts = line["seconds"]
        assert parts["phases"] + parts["state"] + parts["rest"] == pytest.approx(parts["total"], abs=5e-3)
        assert min(parts["phases"], parts["state"]) >= 0
        assert parts["rest"] > -1e-3
    assert [line["seconds"]["digest"] > 0 for line in lines] == [False, False, True, True]  # of the round before
    assert lines[1]["seconds"]["phases"] > 0
    assert 0.5 * record.summary["seconds"] < sum(line["seconds"]["total"] for line in lines)
