"""Masks: what one client sends looks like nothing, and the sum of all is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire import masks
from fedstill.wire.blends import Blending
from fedstill.wire.masks import Circle, Lost, MaskSpec, Seeds, Veil, is_masked, masked
from fedstill.wire.messages import BadMessage, Done, Hello, Message, Opinion, Parameters
from fedstill.wire.replies import Replies, uniform
from fedstill.wire.summed import MaskedReplies, level

pytest.importorskip("cryptography")

NAMES = ["a", "b", "c", "d", "e"]
SIZES = dict(zip(NAMES, (10, 20, 30, 40, 25), strict=True))
SPEC = MaskSpec()


def master(name: str) -> bytes:
    return name.encode() * 32


def circle(most: float = 40, round: int = 1, names: list[str] = NAMES, **changes: Any) -> Circle:
    keys = {name: masks.public_key(masks.secret_of(master(name), "s")).hex() for name in names}
    total = sum(min(SIZES[name], most) for name in names)
    return replace(Circle("s", round, "turn", 0, keys, most, float(total)), **changes)


def veil(name: str, drawn: Circle, **more: Any) -> Veil:
    envelope = {"verb": drawn.verb, "round": drawn.round, "circle": drawn.as_json()}
    return Veil(name, SIZES[name], master(name), more.pop("spec", SPEC), envelope | more)


def opinion(seed: int, rows: int = 50) -> Opinion:
    return Opinion(10 * torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)))


def sent(said: Mapping[str, Message], drawn: Circle) -> dict[str, Message]:
    return {name: veil(name, drawn).over(message) for name, message in said.items()}


def test_the_masked_sum_is_the_fixed_point_sum_to_the_last_digit() -> None:
    drawn, said = circle(), {name: opinion(number) for number, name in enumerate(NAMES)}
    total = masks.summed(sent(said, drawn), {})
    by_hand = np.zeros(150, dtype=np.int64)
    for name in NAMES:
        share = SIZES[name] / 125
        by_hand += np.rint(said[name].logits.double().numpy().ravel() * (share * (2**31 - 2**16) / 256)).astype(
            np.int64
        )
    assert np.array_equal(total["logits"].view(np.int32), by_hand)
    assert total["weight"].tolist() == [sum(round(SIZES[name] / 125 * 2**30) for name in NAMES)]


def test_the_mean_is_that_of_the_clients_weights_within_the_step() -> None:
    drawn, said = circle(), {name: opinion(number) for number, name in enumerate(NAMES)}
    mean = masks.means(sent(said, drawn), {}, SPEC)["logits"]
    wanted = sum(SIZES[name] / 125 * said[name].logits.double() for name in NAMES)
    assert (mean.double() - wanted).abs().max() < 5 * 256 / 2**31 + 1e-6  # the latter: float32 near 30


def test_the_largest_numbers_do_not_overflow_and_larger_ones_are_cut_off_and_noted() -> None:
    drawn = circle()
    for value in (256.0, -256.0, 1000.0):
        said = {name: Opinion(torch.full((2, 3), value)) for name in NAMES}
        mean = masks.means(sent(said, drawn), {}, SPEC)["logits"]
        torch.testing.assert_close(mean, torch.full((2, 3), max(-256.0, min(256.0, value))))
    hiding = veil("a", drawn)
    hiding.over(Opinion(torch.full((2, 3), 1000.0)))
    assert hiding.notes == ["numbers beyond 256 were cut off before they were masked: raise wire.mask.range."]
    with pytest.raises(FedstillError, match="not finite"):
        hiding.over(Opinion(torch.tensor([[float("nan"), 0.0, 0.0]])))


def test_one_of_five_is_lost_and_the_others_recover_the_sum_of_theirs_exactly() -> None:
    drawn, said = circle(), {name: opinion(number) for number, name in enumerate(NAMES)}
    arrived = sent(said, drawn)
    del arrived["c"]
    seeds = {}
    for name in arrived:
        told = veil(name, drawn).reveal(Lost(torch.tensor([2])))
        seeds[name, "c"] = bytes(told.seeds[0].tolist())
    total = masks.summed(arrived, seeds)
    by_hand = sum(
        np.rint(said[n].logits.double().numpy().ravel() * (SIZES[n] / 125 * SPEC.scale)).astype(np.int64)
        for n in arrived
    )
    assert np.array_equal(total["logits"].view(np.int32), by_hand)
    mean = masks.means(arrived, seeds, SPEC)["logits"]
    wanted = sum(SIZES[name] / 95 * said[name].logits.double() for name in arrived)
    torch.testing.assert_close(mean.double(), wanted, rtol=0, atol=1e-5)
    without = masks.means(arrived, {}, SPEC)["logits"]
    assert (without.double() - wanted).abs().median() > 1  # the masks of the lost one are still in it


def bytes_of(message: Message) -> np.ndarray:
    return message.logits.numpy().view(np.uint8).ravel()  # type: ignore[attr-defined]


def test_one_masked_message_looks_like_random_bytes_whatever_it_says() -> None:
    for said in (Opinion(torch.zeros(20_000, 3)), opinion(0, 20_000)):
        found = np.bincount(bytes_of(veil("b", circle()).over(said)), minlength=256)
        expected = found.sum() / 256
        # Chi-square with 255 degrees of freedom: 350 is beyond its 99.99th percentile.
        assert ((found - expected) ** 2 / expected).sum() < 350
    unmasked = np.bincount(opinion(0, 20_000).logits.numpy().view(np.uint8).ravel(), minlength=256)
    assert ((unmasked - expected) ** 2 / expected).sum() > 10_000


@pytest.mark.parametrize("change", [{"round": 2}, {"number": 1}, {"verb": "ask"}, {"session": "t"}, {"total": 126.0}])
def test_the_same_message_differs_wholly_in_another_call(change: dict[str, Any]) -> None:
    one, other = circle(), circle()
    if "session" in change:
        keys = {name: masks.public_key(masks.secret_of(master(name), "t")).hex() for name in NAMES}
        change = change | {"keys": keys}
    first = bytes_of(veil("b", one).over(opinion(0, 1000)))
    second = bytes_of(veil("b", replace(other, **change)).over(opinion(0, 1000)))
    assert 0.98 < (first != second).mean() < 1


def test_clients_that_were_told_different_circles_do_not_cancel() -> None:
    said = {name: Opinion(torch.zeros(100, 3)) for name in NAMES}
    arrived = sent(said, circle()) | sent({"a": said["a"]}, circle(most=39.0))
    assert np.abs(masks.summed(arrived, {})["logits"].view(np.int32).astype(float)).mean() > 2**29


def test_parameters_are_masked_and_integers_are_averaged() -> None:
    said = {
        name: Parameters({"w": torch.full((2, 2), float(number)), "steps": torch.tensor(7 + number)})
        for number, name in enumerate(NAMES)
    }
    drawn = circle(most=1.0)
    mean = masks.means(sent(said, drawn), {}, SPEC, ["parameters/steps"])
    torch.testing.assert_close(mean["parameters/w"], torch.full((2, 2), 2.0))
    assert mean["parameters/steps"].tolist() == 9
    assert mean["parameters/steps"].dtype == torch.int64


def test_nothing_leaves_beside_what_is_masked() -> None:
    assert [item.name for item in fields(masked(Opinion))] == ["weight", "logits", "labelled_logits"]  # type: ignore[arg-type]
    assert masked(Done) is None
    assert not is_masked(Done)
    with pytest.raises(FedstillError, match=r"Opinion\.loss would leave without a mask"):
        veil("a", circle()).over(Opinion(torch.zeros(2, 3), loss=0.5))
    assert veil("a", circle()).over(Done()) == Done()


@pytest.mark.parametrize(
    ("name", "drawn", "reason"),
    [
        ("a", circle(names=["a"]), "at least 2 clients"),
        ("a", circle(names=["b", "c"]), "has not a's key"),
        ("a", replace(circle(), total=0.0), "at least 2 clients"),
        ("a", replace(circle(), keys={**circle().keys, "b": "00" * 32}), "a key for masks that is none"),
        ("a", replace(circle(), keys={**circle().keys, "b": "xy"}), "no key of 'b'"),
    ],
)
def test_a_client_masks_for_no_circle_that_would_show_its_reply(name: str, drawn: Circle, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        veil(name, drawn).over(opinion(0))


def test_a_circle_counts_for_its_own_call_only() -> None:
    drawn = circle()
    with pytest.raises(BadMessage, match="that of another call"):
        veil("a", drawn, round=2).over(opinion(0))
    with pytest.raises(BadMessage, match="no circle"):
        Veil("a", 10, master("a"), SPEC, {"verb": "turn", "round": 1}).over(opinion(0))


@pytest.mark.parametrize(
    ("lost", "reason"),
    [([], "nobody"), ([0], "nobody"), ([5], "not in the circle"), ([1, 2, 3, 4], "too many clients are lost")],
)
def test_a_client_reveals_nothing_about_itself_nor_so_that_one_reply_is_left(lost: list[int], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        veil("a", circle()).reveal(Lost(torch.tensor(lost, dtype=torch.int64)))


def test_both_of_a_pair_reveal_the_same_seed_and_hello_carries_the_key() -> None:
    drawn = circle()
    first, second = veil("a", drawn).reveal(Lost(torch.tensor([3]))), veil("d", drawn).reveal(Lost(torch.tensor([0])))
    assert torch.equal(first.seeds, second.seeds)
    assert isinstance(first, Seeds)
    hello = veil("a", drawn, session="s").over(Hello(10, torch.tensor([4, 6])))
    assert isinstance(hello, Hello)
    assert hello.key is not None
    assert bytes(hello.key.tolist()).hex() == drawn.keys["a"]
    assert torch.equal(hello.label_counts, torch.tensor([4, 6]))  # type: ignore[arg-type]
    masks.check_key(bytes(hello.key.tolist()))
    with pytest.raises(BadMessage):
        masks.check_key(bytes(32))


# What a method sees


def replies(weighed: Any = "size", max_share: Any = None) -> MaskedReplies[Any]:
    hellos = {name: Hello(size) for name, size in SIZES.items()}
    means: dict[str, Tensor] = {"logits": torch.eye(3), "parameters/w": torch.ones(2)}
    who = {name: Message() for name in NAMES}
    return MaskedReplies(who, hellos, (), Blending(max_share=max_share), means=means, weighed=weighed)


def test_masked_replies_give_the_mean_and_refuse_whatever_looks_at_one() -> None:
    ups = replies()
    assert torch.equal(ups.blend("logits", ups.shares), torch.eye(3))
    assert ups.average("parameters", ups.shares)["w"].tolist() == [1.0, 1.0]
    assert torch.equal(replies("uniform").mean("logits"), torch.eye(3))
    looks = [
        lambda: ups["a"],
        lambda: list(ups.values()),
        lambda: list(ups.items()),
        lambda: ups.column("logits"),
        lambda: ups.change("logits", torch.exp),
        lambda: ups.rows("logits", torch.tensor([0])),
        lambda: ups.only(["a"]),
        lambda: ups.blended(torch.zeros(5, 3, 3), ups.shares),
        lambda: ups.averaged({}, ups.shares),
    ]
    for look in looks:
        with pytest.raises(FedstillError, match="only their weighted sum is known"):
            look()
    with pytest.raises(FedstillError, match="asks for other weights"):
        ups.blend("logits", uniform(5))


@pytest.mark.parametrize("max_share", [None, "auto", 0.25, 0.2])
def test_a_limit_to_shares_is_a_limit_to_rows(max_share: Any) -> None:
    sizes = {"a": 10, "b": 20, "c": 30, "d": 400, "e": 25}
    hellos = {name: Hello(size) for name, size in sizes.items()}
    asked = Replies({name: Message() for name in sizes}, hellos, (), Blending(max_share=max_share))
    most, total = level(asked, "size")
    shares = torch.tensor([min(size, most) / total for size in sizes.values()], dtype=torch.float64)
    torch.testing.assert_close(shares, asked.shares)
    assert level(asked, "uniform") == (1.0, 5.0)
