"""Only the rows that changed, or were sent too long ago (SCARLET's cache)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.entropy import Coder
from fedstill.wire.codecs.packing import as_probabilities, check_size, join, refuse_unfinite, split
from fedstill.wire.codecs.quantised import Quantised
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

OWN = "cache/"
"""Begins the names of what this codec remembers; the other names are the inner codec's."""
INNER = Quantised(up=2, down=2)


@dataclass(frozen=True)
class Cached(Codec):
    """Sends a sample's row if it changed, or `duration` rounds after the last time; else the old one counts.

    A row has changed if its class probabilities are further than `threshold` (total variation) from those last sent.
    `threshold: 1` is SCARLET's rule, by which only time counts; it needs a method that asks about the same samples
    every round. The codec `inner` encodes the rows that are sent.
    """

    name: ClassVar[str] = "cached"

    duration: Annotated[int, Field(ge=1)] = 3
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.05
    inner: Codec = INNER

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        if value.ndim != 2 or not value.numel():
            return None
        refuse_unfinite(value, self.name)
        value = value.detach().cpu().float()
        mine, inner = _apart(history)
        held = int(mine.get("number", torch.tensor(0)))
        said, has_last = mine.get("said"), all(f"to/{name}" in history for name in passage.receivers)
        is_known = said is not None and said.shape == value.shape and has_last
        if said is None or not is_known:
            goes, inner = torch.ones(len(value), dtype=torch.bool), {}
            said, sent = value, torch.zeros(len(value), dtype=torch.long)
        else:
            moved, sent = (as_probabilities(value) - as_probabilities(said)).abs().sum(1) / 2, mine["sent"]
            goes = (moved > self.threshold) | (passage.round - sent >= self.duration)
        parts: Parts = {}
        if bool(goes.any()):
            some = _some(inner, goes)
            coded = self.inner.encode(value[goes], passage, some)
            parts = {"rows": value[goes]} if coded is None else {f"inner.{name}": part for name, part in coded.items()}
            inner = _merged(inner, some, goes)
        about = held + 1, held if is_known else 0, *value.shape
        parts = {"which": join(about, _pack(goes)), **parts}
        arrives = self._whole(parts, passage, dict(history))
        history.clear()
        history |= inner | {f"to/{name}": torch.tensor(True) for name in passage.receivers}
        history |= {f"{OWN}said": torch.where(goes[:, None], value, said), f"{OWN}rows": arrives}
        history |= {f"{OWN}sent": torch.where(goes, passage.round, sent), f"{OWN}number": torch.tensor(held + 1)}
        return parts

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        return self._whole(parts, passage, history).clone()

    def _whole(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        """All rows: those that were sent, and the old ones."""
        (number, since, rows, classes), packed = split(parts, "which", 4)
        check_size((rows, classes), passage.largest)
        mine, inner = _apart(history)
        held, before = int(mine.get("number", torch.tensor(0))), mine.get("rows")
        if since and (since != held or before is None or before.shape != (rows, classes)):
            raise BadMessage(f"{passage.sender} sends rows beside its number {since}, but number {held} came last.")
        goes = _unpack(packed, rows)
        whole = torch.zeros(rows, classes) if before is None or not since else before.clone()
        if not since:
            inner = {}
            if not bool(goes.all()):
                raise BadMessage(f"{passage.sender} leaves out rows that it never sent.")
        if bool(goes.any()):
            some = _some(inner, goes)
            whole[goes] = self._rows(parts, passage, some, (int(goes.sum()), classes))
            inner = _merged(inner, some, goes)
        history.clear()
        history |= inner | {f"{OWN}rows": whole, f"{OWN}number": torch.tensor(number)}
        return whole

    def _rows(self, parts: Parts, passage: Passage, history: History, shape: tuple[int, int]) -> Tensor:
        """The rows that were sent."""
        coded = {name.removeprefix("inner."): part for name, part in parts.items() if name.startswith("inner.")}
        rows = self.inner.decode(coded, passage, history) if coded else parts.get("rows")
        if rows is None or rows.shape != shape or not rows.is_floating_point():
            raise BadMessage(f"{passage.sender} sends other rows than it announces.")
        return rows.float()


def _apart(history: History) -> tuple[History, History]:
    """What this codec remembers, and what the inner one does."""
    mine = {name.removeprefix(OWN): value for name, value in history.items() if name.startswith(OWN)}
    return mine, {name: value for name, value in history.items() if not name.startswith(OWN)}


def _some(history: Mapping[str, Tensor], goes: Tensor) -> History:
    """The inner codec's memory of some rows: of arrays with a line for each row, these lines."""
    return {name: value[goes] if _is_of_rows(value, goes) else value for name, value in history.items()}


def _merged(history: History, some: History, goes: Tensor) -> History:
    """Its memory of all rows, after some of them were encoded or decoded."""
    return {name: _put(history.get(name), value, goes) for name, value in some.items()}


def _put(whole: Tensor | None, value: Tensor, goes: Tensor) -> Tensor:
    if whole is None or not _is_of_rows(whole, goes):
        return value
    whole = whole.clone()
    whole[goes] = value
    return whole


def _is_of_rows(value: Tensor, goes: Tensor) -> bool:
    return value.ndim > 0 and len(value) == len(goes)


def _pack(goes: Tensor) -> bytes:
    coder = Coder()
    for yes in goes.tolist():
        coder.decide(0, yes)
    return coder.close()


def _unpack(packed: bytes, rows: int) -> Tensor:
    coder = Coder(packed)
    goes = torch.tensor([coder.decide(0, False) for _ in range(rows)], dtype=torch.bool)
    coder.close()
    return goes
