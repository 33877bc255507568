"""What a recorder on the wire of a real federation sees: no private text, no label, no error that quotes one."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedstill.federation import kits
from fedstill.federation.data import read_public
from fedstill.federation.joining import centre_of
from fedstill.federation.rehearsal import rehearsing
from fedstill.federation.simulated import Simulated
from tests.conftest import write_reviews
from tests.federation.stage import PREFACE, edit, point_at, quiet, three_shops

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]


class Recorder:
    """Stands between a site and the centre, and keeps what goes up and down."""

    def __init__(self, port: int) -> None:
        self.centre = port
        self.up: list[bytearray] = []
        self.down: list[bytearray] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._let_in, daemon=True).start()

    def _let_in(self) -> None:
        while True:
            try:
                site, _ = self.door.accept()
                centre = socket.create_connection(("127.0.0.1", self.centre))
            except OSError:
                return  # the door is closed
            for source, sink, kept in ((site, centre, self.up), (centre, site, self.down)):
                kept.append(bytearray())
                threading.Thread(target=self._carry, args=(source, sink, kept[-1]), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.door.close()


def bodies(raw: bytes) -> bytes:
    """What streams of HTTP/2 carry, without the frames that would cut through a text."""
    streams: dict[bytes, bytearray] = {}
    place = len(PREFACE) if raw.startswith(PREFACE) else 0
    while place + 9 <= len(raw):
        size, kind, stream = int.from_bytes(raw[place : place + 3]), raw[place + 3], raw[place + 5 : place + 9]
        if kind == 0:
            streams.setdefault(stream, bytearray()).extend(raw[place + 9 : place + 9 + size])
        place += 9 + size
    return b"\0".join(streams.values())


def inflated(raw: bytes) -> Iterator[bytes]:
    """What was compressed in it, as far as it can be read."""
    for found in re.finditer(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08", raw):
        with contextlib.suppress(zlib.error):
            yield zlib.decompressobj(47).decompress(raw[found.start() :])


def seen_in(connections: list[bytearray]) -> bytes:
    """All that somebody who listens could read."""
    whole = [part for raw in connections for part in (bytes(raw), bodies(bytes(raw)))]
    return b"\0".join([*whole, *(part for raw in whole for part in inflated(raw))])


def forms(text: str) -> Iterator[bytes]:
    """A text as it could travel."""
    yield from (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"), json.dumps(text)[1:-1].encode())
    for shift in range(3):  # wherever it begins in what is written as base64, but for its ends
        yield base64.b64encode(bytes(shift) + text.encode())[4:-4]


def leaked(seen: bytes, texts: set[str]) -> list[str]:
    """The texts that can be read in it."""
    return sorted(text for text in texts if any(form in seen for form in forms(text)))


def label_patterns(labels: list[int]) -> Iterator[bytes]:
    """The first labels in order, as they could travel."""
    for kind in (np.int64, np.int32, np.uint8):
        yield np.array(labels[:48], kind).tobytes()
    for between in (",", ", "):
        yield between.join(map(str, labels[:24])).encode()


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_recorder_would_see_a_text_however_it_is_wrapped() -> None:
    text = "shovel awful refund order 7"
    data = json.dumps({"x": text}).encode()
    frames = b"".join(len(part).to_bytes(3) + bytes(5) + b"\1" + part for part in (data[:20], data[20:]))
    assert text.encode() not in frames
    assert leaked(seen_in([bytearray(PREFACE + frames)]), {text, "not there"}) == [text]
    for wrapped in (zlib.compress(data), text.encode("utf-16-le"), base64.b64encode(b"ab" + text.encode() + b"c")):
        assert leaked(seen_in([bytearray(b"...." + wrapped)]), {text}) == [text]


SECRET = "told in confidence by Agnes Miller"
"""A label that the experiment does not have: the error that it raises quotes it."""


def test_no_private_text_or_label_leaves_a_site_and_no_error_that_quotes_one(tmp_path: Path) -> None:
    """In clear text for this once, so that the recorder can read along."""
    reviews = write_reviews(tmp_path / "reviews.csv")
    experiment = three_shops(reviews, algorithm="AdaFD", rounds=2, quorum=0.5)
    recorders: dict[str, Recorder] = {}

    def prepared(simulated: Simulated, made: kits.Kits) -> None:
        edit(made.centre / "startup" / "fed_server.json", lambda v: v["servers"][0].update(connection_security="clear"))
        edit(made.admin / "startup" / "fed_admin.json", lambda v: v["admin"].update(connection_security="clear"))
        for name, kit in made.sites.items():
            recorder = recorders[name] = Recorder(centre_of(kit)[1])
            point_at(kit, recorder.port)
            edit(kit / "startup" / "fed_client.json", lambda v: v["client"].update(connection_security="clear"))
        with (simulated.sites["garden"].parent / "train.jsonl").open("a") as rows:
            rows.write(json.dumps({"text": "shovel and seeds for a friend", "label": SECRET}) + "\n")

    with rehearsing(experiment, tmp_path / "stage", quiet, prepared) as stage:
        record = stage.submit(quiet)
        log = next(stage.centre.kits.sites["garden"].glob("runs/*/worker.log")).read_text()
    for recorder in recorders.values():
        recorder.close()

    answered = {line["party"] for line in record.metrics if line.get("stage") == "trained"}
    assert answered == {"books", "toys"}
    assert SECRET in log, "the site's own log says what was wrong"
    public = read_public(stage.centre.has)
    for name, recorder in recorders.items():
        up, down = seen_in(recorder.up), seen_in(recorder.down)
        folder = stage.simulated.sites[name].parent
        parts = {part: rows_of(folder / f"{part}.jsonl") for part in ("train", "validation", "test")}
        private = {row["text"] for part in parts.values() for row in part if len(row["text"]) >= 12}
        private = private - set(public.texts) | {SECRET}
        assert len(private) > 48
        # It reads along: what is known to travel is there.
        assert public.pack() in down
        assert leaked(down, set(public.texts)) == sorted(set(public.texts))
        assert (b'\\"type\\": \\"Opinion\\"' in up and b'"logits"' in up) is (name != "garden")
        assert b"the site's own worker.log says more" in up or name != "garden"
        # And what must not travel is not.
        assert leaked(up, private) == []
        names = stage.simulated.experiment.labels or []
        labels = [names.index(row["label"]) for row in parts["train"] if row["label"] in names]
        assert len(labels) >= 48
        assert not any(pattern in up for pattern in label_patterns(labels))
