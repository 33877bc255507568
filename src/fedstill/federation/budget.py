"""What left a site: a line in a file for every answer, and the budgets that the site counts from these lines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.units import size_text
from fedstill.common.words import counted
from fedstill.engines.seconds import Slip
from fedstill.federation.files import Limits
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.learning.private import PrivacySettings
from fedstill.wire import envelopes
from fedstill.wire.encoding import outline
from fedstill.wire.messages import BadMessage

SENT = "sent.jsonl"
"""The file, in a site's `runs`; it outlives the states and logs beside it."""
LONGEST_VERB = 60


class Spent:
    """What left in one experiment, counted line by line."""

    def __init__(self) -> None:
        self.calls = self.bytes = self.rounds = 0
        self.round: int | None = None
        """Of the last answer that was not a repetition."""
        self.known: dict[int, set[str]] = {}
        """The hashes of answers, by round."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.rounds += self.begins(line)
        if line["sha256"] not in self.known.setdefault(line["round"], set()):
            self.known[line["round"]].add(line["sha256"])
            self.round = line["round"]
        self.calls += 1
        self.bytes += line["bytes"]

    def begins(self, line: Mapping[str, Any]) -> bool:
        """Whether a round begins with this answer.

        One that is repeated with the same answers, as after an interruption, does not begin again: nothing new is said.
        The greeting before the first round and the call after the last one are no rounds the first time.
        """
        round, is_end = line["round"], line["round"] in (0, line["rounds"] + 1)
        if line["sha256"] in self.known.get(round, ()) or round == self.round:
            return False
        return not is_end or round in self.known


class Budget:
    """Refuses what a site's limits do not allow in one experiment; the counts are on disk and outlive the process."""

    def __init__(self, folder: Path, job: Job, limits: Limits) -> None:
        self.path, self.limits, self.rounds = folder / SENT, limits, int(job.experiment["rounds"])
        self.about: dict[str, Any] = {"experiment": job.id, "hash": job.hash, "rounds": self.rounds}
        self.spent = Spent()
        self.others: dict[str, float] = {}
        """The epsilon of every other experiment that was answered, by hash."""
        for line in read_sent(folder):
            if line["hash"] != job.hash:
                self.others[line["hash"]] = line.get("epsilon", 0.0)
            else:
                self.spent.add(line)

    def admit(self, round: int, call: bytes) -> str:
        """The verb that a call asks for; refuses a call for which nothing is left, before any work."""
        if not 0 <= round <= self.rounds + 1:
            raise Refusal(f"a call of round {round}, and the experiment has {self.rounds} rounds.")
        try:
            envelope = outline(call).envelope
        except BadMessage as error:
            raise Refusal(str(error)) from error
        if envelope.get("round") != round:
            raise Refusal(f"a call of round {round} that holds one of another round.")
        verb = envelope.get("verb")
        if not isinstance(verb, str) or not verb.isidentifier() or len(verb) > LONGEST_VERB:
            raise Refusal("a call without a verb.")
        is_new = round not in self.spent.known  # else its answer may be a repetition
        self._refuse_more(1, is_new and self.spent.begins({"round": round, "rounds": self.rounds, "sha256": ""}))
        return verb

    def send(self, round: int, verb: str, reply: bytes, received: int = 0) -> None:
        """Write down an answer to a call of so many bytes before it leaves; refuses one that does not fit."""
        raw, _ = Slip.take_off(reply)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **self.about,
            "round": round,
            "verb": verb,
            "bytes": len(reply),
            "received": received,
            **_described(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
        self._refuse_more(len(reply), self.spent.begins(line))
        append_line(self.path, line)
        self.spent.add(line)

    def open(self, privacy: PrivacySettings | None, has_noise: bool) -> None:
        """Refuse an experiment that may tell more about a row than the site allows in all experiments together.

        `has_noise`: the noise of earlier answers is still there, to be used again.
        """
        most, before = self.limits.epsilon, sum(self.others.values())
        if privacy is None:
            if most is not None:
                raise Refusal(f"its limits allow an epsilon of {most:g}, and the experiment has no `privacy`.")
            return
        if self.spent.rounds and not has_noise:
            raise Refusal("it has forgotten the noise of its answers, and draws no other: submit another experiment.")
        if most is not None and privacy.delta > self.limits.delta:
            raise Refusal(f"its limits allow a delta of {self.limits.delta:g}, not {privacy.delta:g}.")
        if most is not None and before + privacy.epsilon > most:
            raise Refusal(
                f"its limits allow an epsilon of {most:g} in all experiments: {before:g} of it is spent, and this one "
                f"has {privacy.epsilon:g}."
            )
        self.about["epsilon"] = privacy.epsilon

    def _refuse_more(self, bytes: int, begins: bool) -> None:
        limits, spent = self.limits, self.spent
        if limits.rounds is not None and spent.rounds + begins > limits.rounds:
            raise Refusal(f"its limit of {limits.rounds} rounds in one experiment is reached.")
        if limits.calls is not None and spent.calls + 1 > limits.calls:
            raise Refusal(f"its limit of {limits.calls} calls in one experiment is reached.")
        if limits.bytes is not None and spent.bytes + bytes > limits.bytes:
            raise Refusal(f"its limit of {size_text(limits.bytes)} in one experiment is reached.")


def left(spent: Spent, limits: Limits) -> str:
    """What may still leave, in words; empty if nothing is limited."""
    kinds = [(limits.rounds, spent.rounds, "round"), (limits.calls, spent.calls, "call")]
    parts = [counted(max(0, limit - used), what) for limit, used, what in kinds if limit is not None]
    return ", ".join(parts + ([] if limits.bytes is None else [size_text(max(0, limits.bytes - spent.bytes))]))


def read_sent(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of what left, oldest first; one that a crash has cut off is of an answer that did not leave."""
    try:
        text = (folder / SENT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for row in text.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(row)


def sent_by(place: Path) -> Path:
    """The folder with what left, given a site's kit or that folder itself."""
    for folder in (place / "runs", place):
        if (folder / SENT).is_file():
            return folder
    raise FedstillError(f"nothing has left from {place}: there is no {SENT} in it or in its runs.")


def measured_in(reply: bytes) -> list[dict[str, Any]]:
    """The measurements that accompany an answer."""
    return list(_envelope(Slip.take_off(reply)[0]).get("metrics", ()))


def _envelope(raw: bytes) -> dict[str, Any]:
    found = outline(raw).envelope
    return dict(envelopes.unpack(found["packed"]) if "packed" in found else found)


def _described(raw: bytes) -> dict[str, Any]:
    """The type of a message, its fields with type and shape, and how many measurements and notes came with it."""
    found, envelope = outline(raw), _envelope(raw)
    plain = {name: type(value).__name__ for name, value in found.plain.items() if not isinstance(value, list)}
    arrays = {name: f"{part.dtype} {list(part.shape)}" for name, part in found.arrays.items()}
    beside = {name: len(envelope.get(name, ())) for name in ("metrics", "notes")}
    return {"message": found.type, "held": plain | arrays, **beside}


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line that only the site's own user can read, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "rb+") as out:
        size = out.seek(0, os.SEEK_END)
        is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        out.write((b"\n" if is_cut else b"") + json.dumps(line).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())
