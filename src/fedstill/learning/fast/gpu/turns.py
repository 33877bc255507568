"""Steps and questions of several phases that are open on a GPU: which stack takes them, and in which company."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.learning.fast.anatomy import dissect
from fedstill.learning.fast.card import WIDEST
from fedstill.learning.fast.gpu.inputs import Room
from fedstill.learning.fast.gpu.open import OpenStack, Turn, is_home
from fedstill.learning.fast.gpu.schedule import architecture
from fedstill.learning.fast.gpu.stack import LARGE, STACKS, kept, matrices, tables

if TYPE_CHECKING:
    from fedstill.learning.phases import Phase


@dataclass(frozen=True)
class Question:
    """What a model on an open stack says to these texts: in eval mode, or with dropout."""

    phase: Phase
    data: Examples
    train_mode: bool


KINDS: WeakKeyDictionary[Phase, Any] = WeakKeyDictionary()


def take_all(turns: Sequence[Turn]) -> list[Tensor | Exception]:
    """A step of every phase, those of one architecture together."""
    found: dict[int, Tensor | Exception] = {}
    for numbers in _groups([turn.phase for turn in turns]):
        own = [turns[number] for number in numbers]
        stack = home([turn.phase for turn in own], max(sum(map(len, turn.parts)) for turn in own))
        found |= zip(numbers, stack.take(own), strict=True)
    return [found[number] for number in range(len(turns))]


def answer_all(questions: Sequence[Question]) -> list[Tensor]:
    """What every model says, those of one stack together."""
    found: dict[int, Tensor] = {}
    for train_mode in (False, True):
        numbers = [number for number, question in enumerate(questions) if question.train_mode == train_mode]
        away = [number for number in numbers if train_mode and is_home(questions[number].phase) is None]
        for group in _groups([questions[number].phase for number in away]):
            phases = [questions[away[number]].phase for number in group]
            home(phases, max(phase.settings.batch for phase in phases))
        stacks: dict[int, dict[int, int]] = {}
        homes = {number: place(questions[number].phase) for number in numbers}
        for number, (stack, client) in homes.items():
            stacks.setdefault(id(stack), {})[client] = number
        for places in stacks.values():
            stack = homes[next(iter(places.values()))][0]
            said = stack.answer({client: questions[number].data for client, number in places.items()}, train_mode)
            found |= {number: said[client] for client, number in places.items()}
    return [found[number] for number in range(len(questions))]


def place(phase: Phase) -> tuple[OpenStack, int]:
    """Where a phase is open that must be open."""
    found = is_home(phase)
    assert found is not None
    return found


def home(phases: Sequence[Phase], rows: int) -> OpenStack:
    """The stack where just these phases are open, with room for so many rows."""
    known = is_home(phases[0])
    if known is not None and known[0].has(phases) and rows <= known[0].room.rows:
        return known[0]
    room = _room(phases, rows)
    anatomy, device = dissect(phases[0].model), phases[0].device
    assert anatomy is not None
    keys = (("open", KINDS[phases[0]], room, number) for number in itertools.count())
    free = next(key for key in keys if key not in STACKS or STACKS[key].is_free)
    stack = kept(free, device, lambda: OpenStack(anatomy, room, device))
    stack.adopt(phases)
    return stack


def _room(phases: Sequence[Phase], rows: int) -> Room:
    first = phases[0]
    anatomy = dissect(first.model)
    assert anatomy is not None
    longest = max(int(np.max(phase.data.store.lengths, initial=1)) for phase in phases)  # of all texts of the store
    last = [part for part in anatomy.head if isinstance(part, nn.Linear)][-1]
    return Room(
        clients=len(phases),
        rows=rows,
        tables=tuple(len(table.weight) for table in tables(anatomy)),
        longest=-(-longest // 64) * 64,
        classes=last.out_features,
        decay=first.settings.weight_decay,
        clip=first.settings.clip,
    )


def _groups(phases: Sequence[Phase]) -> Iterator[list[int]]:
    """The numbers of phases that can be in one stack."""
    kinds: dict[Any, list[int]] = {}
    for number, phase in enumerate(phases):
        if phase not in KINDS:
            settings = phase.settings
            KINDS[phase] = architecture(phase.model), phase.device, settings.weight_decay, settings.clip
        kinds.setdefault(KINDS[phase], []).append(number)
    for alike in kinds.values():
        anatomy = dissect(phases[alike[0]].model)
        assert anatomy is not None
        large = sum(part.numel() for slot in matrices(anatomy) for part in slot) > LARGE
        widest = 1 if large else WIDEST
        yield from (alike[start : start + widest] for start in range(0, len(alike), widest))
