import binascii
import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.encoding import SEALED, Sizes, decode, encode, seal
from fedstill.wire.messages import Answer, BadMessage, Done, Hello, Message, Opinion, array
from tests.wire.foreign import foreign


@dataclass(frozen=True)
class Everything(Message):
    """A message of a user's own, with every kind of field."""

    weights: Mapping[str, Tensor]
    count: int
    name: str
    flag: bool = False
    share: float | None = None
    rows: Tensor | None = array("rows", optional=True)


TYPES = {cls.__name__: cls for cls in (Hello, Opinion, Answer, Done, Everything)}

shapes = st.lists(st.integers(0, 4), max_size=3)
seeds = st.integers(0, 2**32 - 1)
floats = st.floats(-1e6, 1e6, width=32)


@st.composite
def tensors(draw, dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)):
    generator = torch.Generator().manual_seed(draw(seeds))
    drawn = torch.randint(0, 200, draw(shapes), generator=generator).to(draw(st.sampled_from(dtypes)))
    return drawn.T if drawn.ndim == 2 and draw(st.booleans()) else drawn  # also what is not contiguous


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
messages = st.one_of(
    st.builds(
        Opinion,
        logits=tensors(),
        loss=st.none() | floats,
        class_losses=st.none() | tensors(),
        f1=st.none() | floats,
        labelled_logits=st.none() | tensors(),
    ),
    st.builds(Answer, logits=tensors()),
    st.builds(Done, loss=st.none() | floats),
    st.builds(
        Hello, size=st.integers(), label_counts=st.none() | tensors(), architecture=names, public_fingerprint=names
    ),
    st.builds(
        Everything,
        weights=st.dictionaries(names, tensors(), max_size=3),
        count=st.integers(-(2**60), 2**60),
        name=names,
        flag=st.booleans(),
        share=st.none() | floats,
        rows=st.none() | tensors(),
    ),
)


def same(one, other):
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and one == other


def opinion():
    return Opinion(
        logits=torch.arange(12.0).reshape(4, 3), loss=0.5, class_losses=torch.ones(3), labelled_logits=torch.ones(2, 3)
    )


@given(messages, st.dictionaries(st.sampled_from(["round", "verb", "notes"]), st.integers() | names))
def test_decoding_inverts_encoding_for_message_and_envelope(message, envelope):
    parcel = decode(encode(message, envelope), TYPES)
    assert type(parcel.message) is type(message)
    for field in dataclasses.fields(message):
        assert same(getattr(message, field.name), getattr(parcel.message, field.name)), field.name
    assert parcel.envelope == envelope


@given(messages)
def test_equal_messages_have_equal_bytes(message):
    assert encode(message, {"round": 1}) == encode(dataclasses.replace(message), {"round": 1})


@given(messages)
def test_the_blob_is_what_the_safetensors_library_writes_and_reads(message):
    blob = encode(message, {"round": 3})[SEALED:]
    held, header = load(blob), json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    assert save(held, metadata=header["__metadata__"]) == blob
    read = decode(seal(save(held, metadata=header["__metadata__"])), TYPES).message
    assert all(same(getattr(message, item.name), getattr(read, item.name)) for item in dataclasses.fields(message))


@pytest.mark.parametrize(
    "offsets", [[[0, 8], [0, 8]], [[0, 8], [16, 24]], [[8, 16], [0, 8]], [[0, 8], [4, 12]], [[0, 8], [8, 12]]]
)
def test_arrays_that_overlap_or_leave_gaps_are_refused(offsets):
    places = [{"dtype": "F32", "shape": [2], "data_offsets": place} for place in offsets]
    said = {"type": "Everything", "plain": {"weights": ["a", "b"], "count": 1, "name": "x"}}
    header = {"__metadata__": {"fedstill": json.dumps(said)}, "weights/a": places[0], "weights/b": places[1]}
    text = json.dumps(header).encode()
    raw = seal(len(text).to_bytes(8, "little") + text + bytes(16))
    if sorted(offsets) == [[0, 8], [8, 16]]:
        assert isinstance(decode(raw, TYPES).message, Everything)
        return
    with pytest.raises(BadMessage, match="not where it should be"):
        decode(raw, TYPES)


def test_the_order_of_a_mapping_does_not_change_its_bytes():
    parts = {"b": torch.ones(2), "a": torch.zeros(3)}
    one, other = (Everything(dict(items), 1, "x") for items in (parts.items(), reversed(parts.items())))
    assert encode(one) == encode(other)


def test_a_number_travels_as_float32():
    arrived = decode(encode(Done(loss=0.1)), TYPES).message
    assert arrived.loss == torch.tensor(0.1, dtype=torch.float32).item()
    assert arrived.loss != 0.1
    assert isinstance(arrived.loss, float)


def test_nothing_can_be_said_too():
    parcel = decode(encode(None, {"round": 3}), TYPES)
    assert parcel.message is None
    assert parcel.envelope == {"round": 3}


def test_a_part_of_an_array_and_the_array_can_travel_together():
    logits = torch.arange(12.0).reshape(4, 3)
    arrived = decode(encode(Opinion(logits, labelled_logits=logits[:2])), TYPES).message
    assert torch.equal(arrived.logits, logits)
    assert torch.equal(arrived.labelled_logits, logits[:2])


def test_what_learns_travels_without_its_gradient():
    arrived = decode(encode(Answer(torch.ones(2, 2, requires_grad=True))), TYPES).message
    assert not arrived.logits.requires_grad


@given(messages)
def test_sizes_are_the_bytes_of_floats_and_packed_bytes_of_integers_and_the_rest(message):
    raw = encode(message)
    sizes = Sizes.of(message, raw)
    values = [getattr(message, field.name) for field in dataclasses.fields(message)]
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else [value])]
    arrays = [part for part in parts if isinstance(part, Tensor)]
    points = [a.is_floating_point() or a.dtype == torch.uint8 for a in arrays]
    assert sizes.payload == sum(a.nbytes for a, point in zip(arrays, points, strict=True) if point) + 4 * sum(
        isinstance(part, float) for part in parts
    )
    assert sizes.indices == sum(a.nbytes for a, point in zip(arrays, points, strict=True) if not point)
    assert sizes.total == len(raw)


@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (7, 3), (100, 4)])
def test_an_opinion_pays_for_its_logits_and_its_loss(samples, classes):
    message = Opinion(torch.zeros(samples, classes), loss=0.3)
    sizes = Sizes.of(message, encode(message))
    assert sizes.payload == 4 * (samples * classes + 1)
    assert sizes.indices == 0
    assert sizes.header < 500


def test_sizes_add_up():
    assert Sizes(payload=5, indices=7, header=11).total == 23


def test_a_foreign_type_is_refused():
    with pytest.raises(BadMessage, match="a message of type 'Everything' where Opinion, Done is expected"):
        decode(encode(Everything({}, 1, "x")), {"Opinion": Opinion, "Done": Done})


def named(name, **values):
    """A message that only pretends to be of that type."""
    fields = [(field, type(value)) for field, value in values.items()]
    return dataclasses.make_dataclass(name, fields, bases=(Message,), frozen=True)(**values)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (named("Answer"), "Answer lacks a field.*logits"),
        (named("Hello", architecture="x"), "Hello lacks a field.*size"),
        (named("Answer", logits=torch.ones(2), extra=torch.ones(2)), "Answer has no field extra"),
        (named("Answer", logits=torch.ones(2), extra="text"), "Answer has no field extra"),
        (named("Done", loss=torch.ones(2)), "Done"),  # an array where a number belongs
    ],
)
def test_missing_extra_and_misshapen_fields_are_refused(message, complaint):
    with pytest.raises(BadMessage, match=complaint):
        decode(encode(message), TYPES)


def test_a_message_cut_short_is_refused_wherever_it_was_cut():
    raw = encode(opinion(), {"round": 1})
    for length in range(len(raw)):
        with pytest.raises(BadMessage, match=f"unreadable message of {length} bytes"):
            decode(raw[:length], TYPES)


def test_a_message_with_something_behind_it_is_refused():
    with pytest.raises(BadMessage):
        decode(encode(opinion()) + b"more", TYPES)


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw):
    with pytest.raises(BadMessage):
        decode(raw, TYPES)


@settings(max_examples=300)
@given(st.data())
def test_damage_is_refused_or_harmless_and_never_another_error(data):
    message = data.draw(st.sampled_from([opinion(), Everything({"w": torch.ones(2)}, 3, "n", share=0.5), Hello(5)]))
    raw = bytearray(encode(message, {"round": 1}))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadMessage):
        assert isinstance(decode(bytes(raw), TYPES).message, Message | None)


ONES = {"logits": torch.ones(2)}


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ("not json", {}),
        ("[]", {}),
        ('"text"', {}),
        ("null", {}),
        ("{}", {}),
        ('{"type": null}', {}),
        ('{"type": ["Answer"], "plain": {}}', ONES),
        ('{"type": {"a": 1}, "plain": {}}', ONES),
        ('{"type": 5, "plain": {}}', ONES),
        ('{"type": "Answer", "plain": null}', ONES),
        ('{"type": "Answer", "plain": []}', ONES),
        ('{"type": "Answer", "plain": "logits"}', ONES),
        ('{"type": "Everything", "plain": {"weights": ["w"], "count": 1, "name": "x"}}', {}),
        ('{"type": "Everything", "plain": {"weights": 7, "count": 1, "name": "x"}}', {}),
        ('{"type": "Everything", "plain": {"weights": [[1]], "count": 1, "name": "x"}}', {}),
        (
            '{"type": "Everything", "plain": {"weights": ["w", "w"], "count": 1, "name": "x"}}',
            {"weights/w": torch.ones(1)},
        ),
        ("[" * 100_000, {}),
    ],
)
def test_a_forged_header_is_refused(header, arrays):
    with pytest.raises(BadMessage):
        decode(seal(save(arrays, metadata={"fedstill": header})), TYPES)


def test_safetensors_of_somebody_else_are_refused():
    with pytest.raises(BadMessage, match="unreadable"):
        decode(seal(save({"logits": torch.ones(2)})), TYPES)


@pytest.mark.parametrize("place", [0, 5, 8, 20, -1])
def test_one_flipped_bit_is_noticed_before_anything_is_read(place):
    raw = bytearray(encode(opinion(), {"round": 1}))
    raw[place] ^= 1
    with pytest.raises(BadMessage, match=r"its checksum is wrong|not of this version"):
        decode(bytes(raw), TYPES)


def test_the_checksum_is_the_crc_of_what_follows():
    raw = encode(opinion())
    assert raw[:4] == b"FDS\x02"
    assert int.from_bytes(raw[4:8], "little") == binascii.crc32(raw[8:])


def test_a_message_of_an_earlier_version_is_read_once_it_is_sealed():
    raw = encode(opinion(), {"round": 1})
    with pytest.raises(BadMessage, match="not of this version of fedstill"):
        decode(raw[8:], TYPES)
    assert seal(raw) == seal(raw[8:]) == raw


@pytest.mark.parametrize(
    "odd", [torch.float8_e4m3fn, torch.complex64, torch.uint16, torch.float8_e5m2], ids=lambda dtype: str(dtype)
)
def test_numbers_of_other_types_cannot_be_sent(odd):
    values = torch.zeros(4, 3).to(odd)
    with pytest.raises(FedstillError, match="which cannot be sent"):
        encode(Answer(values))
    with pytest.raises(BadMessage, match="which cannot be sent"):
        decode(foreign(Answer(values)), TYPES)


def test_an_array_has_at_most_eight_dimensions():
    with pytest.raises(BadMessage, match="65 dimensions"):
        decode(encode(Answer(torch.zeros((1,) * 64)[None])), TYPES)
    with pytest.raises(BadMessage, match="9 dimensions"):
        decode(encode(Answer(torch.zeros((1,) * 9))), TYPES)


def test_the_header_is_readable_json():
    raw = encode(opinion(), {"round": 7})
    start = SEALED + 8
    size = int.from_bytes(raw[SEALED:start], "little")
    header = json.loads(json.loads(raw[start : start + size])["__metadata__"]["fedstill"])
    assert header == {"type": "Opinion", "plain": {}, "round": 7}
