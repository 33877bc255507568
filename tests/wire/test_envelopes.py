import base64
import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill.wire import envelopes
from fedstill.wire.messages import BadMessage

LINE = {"round": 2, "stage": "trained", "split": "test", "f1": 0.4909909909909909, "rows": 37}


def test_measurements_and_notes_come_back_in_fewer_bytes():
    metrics, notes = [LINE | {"split": f"test/{name}"} for name in ("books", "films", "")], ["it fell over"]
    envelope = {"round": 2, "metrics": metrics, "notes": notes}
    packed = envelopes.pack(envelope)
    assert envelopes.unpack(packed) == envelope
    assert len(packed) < len(str(metrics)) / 2
    assert not set(packed) & {'"', "\\"}


def _bomb():
    packer = zlib.compressobj(9, zdict=envelopes.USUAL)
    return base64.b85encode(packer.compress(b" " * (2 << 20)) + packer.flush()).decode()


@pytest.mark.parametrize("text", [None, 3, "", "ä", '"', "abc", envelopes.pack({})[:-5], _bomb()])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(BadMessage, match="an envelope that cannot be read"):
        envelopes.unpack(text)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(BadMessage):
        envelopes.unpack(text)
