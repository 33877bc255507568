"""Phases on a GPU that are taken step by step: conversations, and losses that cannot be captured.

While a phase is open, the parameters of its model are views of a stack. A step replays three graphs: forward, up to the
logits; backward, from the logits' gradient, which the loss computes in between with torch's own code; and AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.learning.fast.anatomy import Anatomy, dissect
from fedstill.learning.fast.gpu.inputs import Inputs, Room, rounded, step_inputs
from fedstill.learning.fast.gpu.packing import Packed
from fedstill.learning.fast.gpu.stack import Slot, Stacked, lane, matrices, tables, through_head, vectors

if TYPE_CHECKING:
    from fedstill.learning.phases import Phase

Batches = Sequence[Sequence[Examples]]
"""For every client the parts of its batch."""


@dataclass(frozen=True)
class Turn:
    """One step of a phase: the parts of its batch, and a loss of their logits."""

    phase: Phase
    parts: Sequence[Examples]
    loss: Callable[..., Tensor]


class OpenStack(Stacked):
    """Clients that learn step by step together."""

    def __init__(self, anatomy: Anatomy, room: Room, device: torch.device) -> None:
        super().__init__(anatomy, room, device)
        shape = (room.clients, room.rows, room.classes)
        self.logits, self.dlogits = (torch.zeros(shape, device=device) for _ in range(2))
        self.hyper = torch.zeros(room.clients, 4, device=device)
        self.graphs: dict[int, tuple[Inputs, Callable[[], object], Callable[[], object]]] = {}
        self.quiet: dict[int, tuple[Inputs, Callable[[], object]]] = {}
        self.descending: Callable[[], object] | None = None
        self.members: list[ref[Phase] | None] = []
        self.guests: list[ref[nn.Module]] = []
        """The models whose parameters may still be views of the stack."""

    # Who is here

    def has(self, phases: Sequence[Phase]) -> bool:
        """Whether just these phases are open here, and nobody has moved their models since."""
        found = [member() if member is not None else None for member in self.members]
        return len(found) == len(phases) and all(
            mine is phase and self.has_model(client, phase.model)
            for client, (mine, phase) in enumerate(zip(found, phases, strict=True))
        )

    @property
    def is_free(self) -> bool:
        """Whether no phase is open here."""
        return all(member is None or member() is None for member in self.members)

    def has_model(self, client: int, module: nn.Module) -> bool:
        """Whether this model's parameters are views of a member's."""
        anatomy = dissect(module)
        return anatomy is not None and anatomy.words.weight.data_ptr() == self.tables[0].master[client].data_ptr()

    def adopt(self, phases: Sequence[Phase]) -> None:
        """Open these phases here, and make their models' parameters views; moments come along from where they were."""
        moments = [_moments(phase) for phase in phases]
        for client, guest in enumerate(self.guests):
            if (module := guest()) is not None and self.has_model(client, module):
                for parameter in module.parameters():
                    parameter.data = parameter.data.clone()
        self.members, self.guests = [ref(phase) for phase in phases], [ref(phase.model) for phase in phases]
        self.random = np.random.default_rng(phases[0].order.initial_seed())
        for client, phase in enumerate(phases):
            anatomy = dissect(phase.model)
            assert anatomy is not None
            for group, slots in zip(self.groups, _slots(anatomy), strict=True):
                group.load(client, slots)
                for view, slot in zip(group.views(group.master), slots, strict=True):
                    for part, row in zip(slot, torch.split(view[client], [len(part) for part in slot]), strict=True):
                        part.data = row
            HOMES[phase.model] = ref(self), client
        for group in self.groups:
            group.begin()
        for client, known in enumerate(moments):
            for group, (first, second) in zip(self.groups, known, strict=False):
                group.first[client], group.second[client] = first, second

    def leave(self, client: int) -> list[tuple[Tensor, Tensor]]:
        """The moments of a member that goes elsewhere."""
        self.members[client] = None
        return [(group.first[client].clone(), group.second[client].clone()) for group in self.groups]

    # What they do

    def take(self, turns: Sequence[Turn]) -> list[Tensor | Exception]:
        """A step of every member; what each loss was, or what went wrong with it."""
        with self._on_lane():
            self.hyper.copy_(self._hyper(turns))
            tokens = self._give([turn.parts for turn in turns], self.graphs, self._capture_steps)
            self.graphs[tokens][1]()
            found = self._slopes(turns, tokens)
            self.graphs[tokens][2]()
            if self.descending is not None:
                self.descending()
        return found

    def answer(self, asked: Mapping[int, Examples], train_mode: bool) -> dict[int, Tensor]:
        """The logits of some members' texts, on the CPU."""
        pieces: dict[int, list[Tensor]] = {client: [] for client in asked}
        rows = self.room.rows
        graphs: Mapping[int, Any] = self.graphs if train_mode else self.quiet
        capture = self._capture_steps if train_mode else self._capture_quiet
        with self._on_lane():
            for start in range(0, max(map(len, asked.values())), rows):
                parts = {
                    client: data.pick(np.arange(len(data))[start : start + rows]) for client, data in asked.items()
                }
                batches = [[parts[client]] if client in parts else [] for client in range(self.room.clients)]
                graphs[self._give(batches, graphs, capture)][1]()
                said = self.logits.to("cpu", copy=True)
                for client, part in parts.items():
                    pieces[client].append(said[client, : len(part)])
        return {client: torch.cat(own) for client, own in pieces.items()}

    def gradient_norm(self, client: int, value: Tensor) -> float:
        """Inside a step's loss: the norm of the gradient of this value with respect to a member's parameters."""
        leaf, tokens = self.now
        (slope,) = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)
        if slope is None:
            return 0.0
        self.dlogits.copy_(slope)
        _, forward, backward = self.graphs[tokens]
        backward()
        norms = [torch.linalg.vector_norm(group.gradient[client], dtype=torch.float32) for group in self.groups]
        forward()  # what it kept for the backward pass is used up
        return float(torch.stack(norms).norm())

    def _hyper(self, turns: Sequence[Turn]) -> Tensor:
        """AdamW's numbers of this step; a member whose optimiser restarts forgets its moments."""
        rows = []
        for client, phase in enumerate(turn.phase for turn in turns):
            taken = int(phase.taken % phase.lasts)
            if taken == 0:
                for group in self.groups:
                    group.first[client].zero_()
                    group.second[client].zero_()
            rows.append([phase.current_rate, 1 - 0.9 ** (taken + 1), (1 - 0.999 ** (taken + 1)) ** 0.5, 1.0])
        return torch.tensor(rows)

    def _slopes(self, turns: Sequence[Turn], tokens: int) -> list[Tensor | Exception]:
        """Fill in the gradient of the sum of all losses with respect to the logits."""
        leaf = self.logits.clone().requires_grad_()
        self.now, found = (leaf, tokens), list[Tensor | Exception]()
        with torch.enable_grad():
            for own, turn in zip(leaf, turns, strict=True):
                many = [len(part) for part in turn.parts]
                try:
                    found.append(turn.loss(*torch.split(own[: sum(many)], many)))
                except Exception as error:
                    found.append(error)
            values = [value for value in found if isinstance(value, Tensor)]
            (slope,) = torch.autograd.grad(torch.stack([*values, 0 * leaf.sum()]).sum(), leaf)
        self.dlogits.copy_(slope)
        return [value.detach() if isinstance(value, Tensor) else value for value in found]

    # Graphs

    def _give(self, batches: Batches, graphs: Mapping[int, Any], capture: Callable[[int, Tensor], None]) -> int:
        """Hand over the tokens of a step, and capture its graphs if they are missing; the number of tokens."""
        room, anatomy = self.room, self.anatomy
        packs = [[Packed.of(part, anatomy, compact=False) for part in parts] for parts in batches]
        lengths = np.ones((room.clients, room.rows), np.int64)
        for own, packed in zip(lengths, packs, strict=True):
            known = np.concatenate([np.zeros(0, np.int64), *(each.lengths for each in packed)])
            own[: len(known)] = known
        ends = lengths.cumsum(1)
        tokens = int(rounded(ends[:, -1], room).max())
        texts = [_joined(packed) for packed in packs]
        rows, epochs = np.zeros((room.clients, room.rows), np.int32), [0] * room.clients
        ints = torch.from_numpy(step_inputs(room, tokens, texts, ends, rows, epochs, int(self.random.integers(2**31))))
        if tokens not in graphs:
            capture(tokens, ints)
        graphs[tokens][0].ints.copy_(ints.pin_memory() if self.device.type == "cuda" else ints, non_blocking=True)
        return tokens

    def _capture_steps(self, tokens: int, ints: Tensor) -> None:
        given = self.inputs(tokens)
        given.ints.copy_(ints)
        steps = partial(self._forward, given), partial(self._backward, given)
        for step in steps:
            step()  # compiles kernels and fills caches, which is not possible during a capture
        forward, backward = self.capture(*steps)
        self.graphs[tokens] = given, forward, backward
        if self.descending is None:
            before = [(group.first.clone(), group.second.clone()) for group in self.groups]
            hyper = self.hyper.clone()
            self.hyper.fill_(1.0)
            self.hyper[:, 0] = 0.0  # a rate of zero
            self.descend(self.hyper)
            (self.descending,) = self.capture(partial(self.descend, self.hyper))
            self.hyper.copy_(hyper)
            for group, (first, second) in zip(self.groups, before, strict=True):
                group.first.copy_(first)
                group.second.copy_(second)

    def _capture_quiet(self, tokens: int, ints: Tensor) -> None:
        given = self.inputs(tokens)
        given.ints.copy_(ints)
        self._speak(given)
        (speak,) = self.capture(partial(self._speak, given))
        self.quiet[tokens] = given, speak

    def _forward(self, given: Inputs) -> None:
        with torch.no_grad():
            states = self.states(given)
        with torch.enable_grad():
            self.state = states.detach().requires_grad_()
            self.said = through_head(self.anatomy, self.state, self.head, given.seed, drops=True)
        self.logits.copy_(self.said.detach())

    def _backward(self, given: Inputs) -> None:
        dstate, *dhead = torch.autograd.grad(self.said, [self.state, *self.head], self.dlogits)
        del self.said, self.state
        with torch.no_grad():
            self.back(given, dstate, dhead)

    def _speak(self, given: Inputs) -> None:
        with torch.no_grad():
            states = self.states(given, learns=False)
            self.logits.copy_(through_head(self.anatomy, states, self.head, given.seed, drops=False))

    @contextmanager
    def _on_lane(self) -> Iterator[None]:
        """Everything on the stream that graphs are captured on, in the order of the caller's work."""
        if self.device.type != "cuda":
            yield
            return
        with torch.cuda.device(self.device):
            here, side = torch.cuda.current_stream(), lane(self.device, self.lane)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                yield
            here.wait_stream(side)


HOMES: WeakKeyDictionary[nn.Module, tuple[ref[OpenStack], int]] = WeakKeyDictionary()
"""Where a model's phase was opened last, and its place there."""


def place_of(module: nn.Module) -> tuple[OpenStack, int, Phase] | None:
    """The stack where a phase of this model is open, its place there, and the phase."""
    found = HOMES.get(module)
    stack = found[0]() if found is not None else None
    if found is None or stack is None:
        return None
    member = stack.members[found[1]] if found[1] < len(stack.members) else None
    phase = member() if member is not None else None
    return (stack, found[1], phase) if phase is not None and stack.has_model(found[1], module) else None


def is_home(phase: Phase) -> tuple[OpenStack, int] | None:
    """The stack where a phase is open, and its place there."""
    found = place_of(phase.model)
    return found[:2] if found is not None and found[2] is phase else None


def phase_of(module: nn.Module) -> Phase | None:
    """The phase that is open for this model."""
    found = place_of(module)
    return None if found is None else found[2]


def _moments(phase: Phase) -> list[tuple[Tensor, Tensor]]:
    """What a phase's optimiser remembers elsewhere, which it leaves."""
    found = is_home(phase)
    return [] if found is None else found[0].leave(found[1])


def _slots(anatomy: Anatomy) -> list[list[Slot]]:
    """The parameters of each of a stack's groups."""
    own: list[list[Slot]] = [[(table.weight,)] for table in tables(anatomy)]
    return [matrices(anatomy), vectors(anatomy), *own]


def _joined(packs: Sequence[Packed]) -> tuple[Any, Any, Any]:
    """The tokens of all parts of a batch, one after the other."""
    nothing = np.zeros(0, np.int32)
    return tuple(
        np.concatenate([nothing, *(getattr(packed, name) for packed in packs)])
        for name in ("ids", "positions", "types")
    )  # type: ignore[return-value]
