"""Mutated messages of every type, both ways: each is refused in a sentence, or is a message as agreed; nothing else."""

from __future__ import annotations

import json
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from fedstill.algorithms.averaging import Limit
from fedstill.algorithms.fd import LabelMeans
from fedstill.algorithms.fedaux import Certainty
from fedstill.algorithms.feddrs import Work
from fedstill.algorithms.fedgkd import GlobalModels
from fedstill.algorithms.fedmd import Consensus, Labels
from fedstill.algorithms.feedbacks import Lesson
from fedstill.algorithms.mutual_kd import Student
from fedstill.wire import codecs
from fedstill.wire.codecs import Codecs
from fedstill.wire.crossing import Agreement, Crossing
from fedstill.wire.encoding import SEALED, encode, seal
from fedstill.wire.guard import form_of
from fedstill.wire.messages import Answer, BadMessage, Done, Hello, Message, Opinion, Parameters, Scores

SIZES = {"public": 6, "labels": 3, "labelled": 2}
MODEL = torch.nn.Linear(40, 30)
FORM = form_of(MODEL)
STATE = {name: value.detach() for name, value in MODEL.state_dict().items()}
Z, ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 5, 1], dtype=torch.int32)
MESSAGES: list[Message] = [
    Hello(6, torch.tensor([1, 2, 3]), "Linear/0", "ab", 0.7),
    Opinion(Z, 0.5, torch.tensor([0.1, -1.0, 2.0]), 0.5, Z[:2], Z[:, 0].exp()),
    Answer(Z),
    Scores(Z[:4]),
    Parameters(STATE),
    Done(0.25),
    LabelMeans(Z[:3].softmax(-1), torch.tensor([1, 0, 2], dtype=torch.int32)),
    Certainty(Z[:, 0].sigmoid()),
    Work(STATE, 7),
    GlobalModels(STATE, STATE),
    Labels(torch.tensor([0, 2], dtype=torch.int32)),
    Consensus(ROWS, ROWS, Z[:4]),
    Limit(5),
    Student(update=STATE),
    Student(whole=STATE),
    Lesson(4, 9, 100, ROWS, Z[:4], Z[:2, 0], {"books": Z[0]}, Z[:4]),
]
TYPES = {type(message).__name__: type(message) for message in MESSAGES}
OWED = {name.lower(): (cls,) for name, cls in TYPES.items()}
CODECS = [
    Codecs(),
    Codecs(codecs.make("quantised"), codecs.make("low_rank")),
    Codecs(codecs.make("fp16"), codecs.make("bf16")),
]
DTYPES = [
    "F8_E4M3",
    "F8_E5M2",
    "C64",
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "I32",
    "I16",
    "I8",
    "U8",
    "U64",
    "BOOL",
    "F9",
]
ODD: list[Any] = [None, True, -1, 0, 1, 7, 10**400, 2**63, 1e308, float("nan"), "", "x" * 3000, [], {}, [[1]], [1] * 65]
ODD += [[2**40, 2**40], {"a": {}}, [0, 2**62], "Opinion", "Hello", "logits", *DTYPES]
PATTERNS = [struct.pack("<f", x) for x in (float("nan"), float("inf"), -3e38, 3e38, -1.0, 1e7)] + [
    b"\xff" * 8,
    bytes(8),
]
ASKED = 4


@dataclass
class End:
    name: str
    wire: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def crossing(end: str, chosen: Codecs) -> Crossing:
    """A fresh end: what a codec remembers of one mutation must not excuse the next."""
    agreed = Agreement(TYPES, OWED.__getitem__, SIZES, "ab", 3, chosen, rows_are_drawn=False)
    return Crossing(agreed, End(end), form_of=lambda client: FORM)


def parsed(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a message, with ours inside it as values, and its data."""
    size = int.from_bytes(raw[SEALED : SEALED + 8], "little")
    header = json.loads(raw[SEALED + 8 : SEALED + 8 + size])
    header["__metadata__"]["fedstill"] = json.loads(header["__metadata__"]["fedstill"])
    return header, raw[SEALED + 8 + size :]


def joined(header: dict[str, Any], data: bytes) -> bytes:
    """The message with such a header, with a right checksum."""
    inside = header.get("__metadata__")
    if isinstance(inside, dict) and "fedstill" in inside:
        header = header | {"__metadata__": inside | {"fedstill": json.dumps(inside["fedstill"])}}
    text = json.dumps(header).encode()
    return seal(len(text).to_bytes(8, "little") + text + data)


def changed_header(raw: bytes, chance: random.Random) -> bytes:
    """Somewhere in the header another value, a value less or one more."""
    header, data = parsed(raw)
    inside: Any = header
    while True:
        places: list[Any] = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        place = chance.choice(places)
        if isinstance(inside[place], dict | list) and inside[place] and chance.random() < 0.85:
            inside = inside[place]
            continue
        what = chance.random()
        if what < 0.1:
            del inside[place]
        elif what < 0.2 and isinstance(inside, dict):
            inside[chance.choice(["more", "logits", "size", "dtype", "weight#U"])] = inside[place]
        else:
            inside[place] = chance.choice(ODD)
        return joined(header, data)


def changed_arrays(raw: bytes, chance: random.Random) -> bytes:
    """One array with another type or shape, or with odd numbers; the data is as long as the header says."""
    header, data = parsed(raw)
    names = [name for name in header if name != "__metadata__"]
    if not names:
        return changed_header(raw, chance)
    own = header[chance.choice(names)]
    if chance.random() < 0.5:
        dtype = chance.choice(DTYPES)
        width = {"64": 8, "32": 4, "16": 2, "M3": 1, "M2": 1}.get(dtype[-2:], 1)
        shape = [chance.choice([0, 1, 2, 3, 4, 6, 1000]) for _ in range(chance.choice([0, 1, 2, 3, 9, 66]))]
        many = min(width * int(torch.tensor(shape).double().prod()), 1 << 20)
        own |= {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + many]}
        return joined(header, data + chance.randbytes(many))
    begin, end = own["data_offsets"]
    place = chance.randrange(begin, max(begin + 1, end))
    pattern = chance.choice(PATTERNS)
    return joined(header, (data[:place] + pattern + data[place + len(pattern) :])[: len(data)])


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut off or doubled; half of the time with a right checksum."""
    blob = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        blob[chance.randrange(len(blob))] = chance.randrange(256)
    if chance.random() < 0.4:
        blob = blob[: chance.randrange(len(blob))] if chance.random() < 0.5 else blob + blob[-50:]
    return seal(bytes(blob[SEALED:])) if chance.random() < 0.5 else bytes(blob)


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [changed_header, changed_arrays, damaged]


def fits(message: Message | None) -> bool:
    """What every accepted message promises."""
    for value in vars(message).values() if message is not None else ():
        parts = value.values() if isinstance(value, dict) else [value]
        for part in parts:
            if isinstance(part, Tensor) and (part.numel() > 1200 or not bool(torch.isfinite(part.double()).all())):
                return False
            if isinstance(part, float) and abs(part) > 1e30:
                return False
    return True


def mutate(many: int, seed: int) -> tuple[int, int]:
    """So many mutations; returns how many were refused and how many accepted."""
    chance, refused, accepted, longest = random.Random(seed), 0, 0, 0
    for number in range(many):
        message, chosen = MESSAGES[number % len(MESSAGES)], CODECS[number // len(MESSAGES) % len(CODECS)]
        is_up, verb = chance.random() < 0.5, type(message).__name__.lower()
        if is_up:
            envelope = {
                "round": 1,
                "metrics": [{"round": 1, "stage": "trained", "split": "test", "f1": 0.5}],
                "notes": ["n"],
            }
            raw = crossing("books", chosen).answer(message, envelope, 1)
        else:
            raw = crossing("server", chosen).calls(verb, message, ["books"], 1)["books"]
        raw = chance.choice(MUTATIONS)(raw, chance)
        try:
            if is_up:
                parcel = crossing("server", chosen).reply(raw, "books", verb, 1, ASKED)
            else:
                parcel = crossing("books", chosen).call(raw)
        except BadMessage as error:
            refused, longest = refused + 1, max(longest, len(str(error)))
        else:
            assert fits(parcel.message)
            accepted += 1
    assert longest < 1000
    return refused, accepted


def test_honest_messages_pass() -> None:
    for message in MESSAGES:
        raw = crossing("books", Codecs()).answer(message, {"round": 1, "verb": "turn"}, 1)
        assert (
            crossing("server", Codecs()).reply(raw, "books", type(message).__name__.lower(), 1, ASKED).message
            is not None
        )
        assert crossing("books", Codecs()).call(raw).message is not None


def test_hundreds_of_mutations_are_refused_or_harmless() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, accepted = mutate(800, 1)
    assert refused > 400
    assert accepted > 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.slow
def test_thousands_of_mutations_are_refused_or_harmless() -> None:
    refused, accepted = mutate(20_000, 2)
    assert refused + accepted == 20_000


def peak(raw: bytes, verb: str, chosen: Codecs) -> tuple[str, int]:
    """Why the server refuses a reply, and the most memory that it took meanwhile, in bytes of Python and of torch."""
    server, before = crossing("server", chosen), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage) as refused:
            server.reply(raw, "books", verb, 1, ASKED)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        return str(refused.value), max(tracemalloc.get_traced_memory()[1], grown)
    finally:
        tracemalloc.stop()


def test_small_factors_cannot_become_gigabytes() -> None:
    parts = {"update/weight#U": torch.ones(1 << 10, 1), "update/weight#S": torch.ones(1)}
    parts["update/weight#V"] = torch.ones(1, 1 << 10)
    about = {"type": "Student", "plain": {"update": ["weight"]}, "round": 1}
    raw = seal(save(parts, metadata={"fedstill": json.dumps(about)}))
    reason, bytes = peak(raw, "student", CODECS[1])
    assert "an array of shape (1024, 1024): no call asks for so many" in reason
    assert bytes < 3 << 20


def test_a_message_that_is_too_large_is_refused_before_it_is_read() -> None:
    raw = encode(Opinion(torch.zeros(100_000, 100), 0.5), {"round": 1})
    reason, bytes = peak(raw, "opinion", CODECS[0])
    assert "a message of 40," in reason
    assert bytes < 3 << 20
    long = encode(Opinion(Z, 0.5), {"round": 1, "notes": ["n" * 1_000_000]})
    assert "a message of 1,0" in peak(long, "opinion", CODECS[0])[0]


def test_declared_shapes_are_refused_before_anything_is_made() -> None:
    header, data = parsed(encode(Opinion(Z, 0.5), {"round": 1}))
    header["logits"]["shape"] = [1 << 39, 1 << 39]
    assert (
        "Opinion.logits has shape (549755813888, 549755813888): (6, 3)"
        in peak(joined(header, data), "opinion", CODECS[0])[0]
    )
