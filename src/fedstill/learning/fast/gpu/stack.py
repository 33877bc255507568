"""A stack: the parameters of several clients of one architecture on a GPU, and captured steps on them.

A step (forward, backward, optimiser, losses) is captured as a CUDA graph, once for every possible number of tokens, and
then replayed. `Stack` is for whole phases; `OpenStack` (open.py) for phases that are taken step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.learning.fast.anatomy import Anatomy
from fedstill.learning.fast.gpu.attention import Texts
from fedstill.learning.fast.gpu.inputs import Inputs, Room, sizes_of
from fedstill.learning.fast.gpu.kernels import NARROW, adamw, dropout_mask
from fedstill.learning.fast.gpu.layers import (
    EmbeddingParts,
    LayerParts,
    Numbers,
    StackedLayer,
    embed,
    embed_backward,
)

LARGE = 20_000_000
"""A model with more numbers in its matrices keeps the card busy by itself: its clients are not stacked but run side by
side, each on its own stream, where their batches need not have the same size."""

Slot = tuple[Tensor, ...]
"""Parameters that are concatenated and stored as one."""


def matrices(anatomy: Anatomy) -> list[Slot]:
    """The parameters that are multiplied in bf16."""
    return [
        slot
        for layer in anatomy.layers
        for slot in (
            (layer.query.weight, layer.key.weight, layer.value.weight),
            (layer.mix.weight,),
            (layer.up.weight,),
            (layer.down.weight,),
        )
    ]


def vectors(anatomy: Anatomy) -> list[Slot]:
    """The biases, the norms and the whole head: small, kept in fp32."""
    found: list[Slot] = [(anatomy.norm.weight,), (anatomy.norm.bias,)]
    for layer in anatomy.layers:
        found.append((layer.query.bias, layer.key.bias, layer.value.bias))
        norms = (layer.mix_norm, layer.down_norm)
        for part, norm in zip(((layer.mix,), (layer.up, layer.down)), norms, strict=True):
            found += [(each.bias,) for each in part]
            found += [(norm.weight,), (norm.bias,)]
    return found + [
        slot for part in anatomy.head if isinstance(part, nn.Linear) for slot in ((part.weight,), (part.bias,))
    ]


def tables(anatomy: Anatomy) -> list[nn.Embedding]:
    """The embeddings of words, positions and types."""
    return [table for table in (anatomy.words, anatomy.positions, anatomy.types) if table is not None]


def parameters(anatomy: Anatomy) -> list[Tensor]:
    """All parameters of the model."""
    slots = [part for slot in (*matrices(anatomy), *vectors(anatomy)) for part in slot]
    return slots + [table.weight for table in tables(anatomy)]


def shape_of(slot: Slot) -> tuple[int, ...]:
    """The shape of the slot's parameters concatenated."""
    return (sum(len(part) for part in slot), *slot[0].shape[1:])


class Group:
    """Parameters of all clients, [clients, numbers], with their gradients and optimiser states."""

    def __init__(self, clients: int, shapes: Sequence[tuple[int, ...]], narrow: bool, device: torch.device) -> None:
        self.shapes = list(shapes)
        sizes = [int(np.prod(shape)) for shape in shapes]
        # Parts start at multiples of 64, where products are fast; a single table has no gaps between clients' rows.
        padded = [-(-size // 64) * 64 for size in sizes] if len(sizes) > 1 else sizes
        self.starts = np.concatenate([[0], np.cumsum(padded)]).tolist()
        self.sizes = sizes
        self.master, self.first, self.second = (torch.zeros(clients, self.starts[-1], device=device) for _ in range(3))
        self.gradient = torch.zeros_like(self.master, dtype=NARROW if narrow else torch.float32)
        self.narrow = torch.zeros_like(self.master, dtype=NARROW) if narrow else None

    def views(self, of: Tensor) -> list[Tensor]:
        """The parts of one of the group's arrays, each [clients, ...]."""
        clients = len(of)
        return [
            of[:, start : start + size].view(clients, *shape)
            for start, size, shape in zip(self.starts, self.sizes, self.shapes, strict=False)
        ]

    def load(self, client: int, slots: Sequence[Sequence[Tensor]]) -> None:
        """Copy a client's parameters into the stack."""
        for view, slot in zip(self.views(self.master), slots, strict=True):
            row = 0
            for part in slot:
                view[client, row : row + len(part)] = part.detach()
                row += len(part)

    def begin(self) -> None:
        """Reset the optimiser state."""
        self.first.zero_()
        self.second.zero_()
        if self.narrow is not None:
            self.narrow.copy_(self.master)

    def store(self, client: int, slots: Sequence[Sequence[Tensor]]) -> None:
        """Copy a client's parameters back out of the stack."""
        for view, slot in zip(self.views(self.master), slots, strict=True):
            row = 0
            for part in slot:
                part.detach().copy_(view[client, row : row + len(part)])
                row += len(part)

    def step(self, hyper: Tensor, decay: float) -> None:
        """One step of AdamW."""
        adamw(self.master, self.first, self.second, self.gradient, self.narrow, hyper, decay)


def layer_parts(matrices: Sequence[Tensor], vectors: Sequence[Tensor], number: int) -> LayerParts:
    """One layer's parts, taken from those of all layers in the order of `matrices` and `vectors` above."""
    qkv, mix, up, down = matrices[4 * number : 4 * number + 4]
    qkv_bias, mix_bias, mix_gamma, mix_beta, up_bias, down_bias, down_gamma, down_beta = vectors[
        2 + 8 * number : 10 + 8 * number
    ]
    return LayerParts(
        qkv, qkv_bias, mix, mix_bias, mix_gamma, mix_beta, up, up_bias, down, down_bias, down_gamma, down_beta
    )


def numbers_of(anatomy: Anatomy) -> Numbers:
    """The settings that the kernels need."""
    return Numbers(
        anatomy.norm.eps, anatomy.activation_name, anatomy.dropout, anatomy.mix_dropout, anatomy.attention_dropout
    )


def through_head(anatomy: Anatomy, x: Tensor, leaves: Sequence[Tensor], seed: Tensor, drops: bool) -> Tensor:
    """Logits [clients, rows, classes] of the first positions' states; `leaves` are the linear layers' parameters."""
    left = list(leaves)
    for number, part in enumerate(anatomy.head):
        if isinstance(part, nn.Linear):
            weight, bias = left.pop(0), left.pop(0)
            x = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
        elif isinstance(part, nn.Dropout):
            if drops and part.p > 0:
                x = x * dropout_mask(x.shape, seed, 1_000 + number, part.p)
        else:
            x = part(x)
    return x


@dataclass(frozen=True)
class Shape(Room):
    """Everything that the graphs of whole phases depend on, except the number of tokens and the loss."""

    epochs: int
    target: tuple[int, ...]
    is_class: bool


@dataclass
class Costs:
    """How many graphs were captured, and how long that took; for reports."""

    graphs: int = 0
    seconds: float = 0.0


COSTS = Costs()
MOST_GRAPHS = 128
"""The most graphs that a stack keeps: enough for at least four phases."""


class Stacked:
    """The parameters of several clients, and their forward and backward passes."""

    def __init__(self, anatomy: Anatomy, room: Room, device: torch.device, lane: int = 0) -> None:
        self.anatomy, self.room, self.device, self.lane = anatomy, room, device, lane
        clients, width = room.clients, anatomy.words.embedding_dim
        self.numbers = numbers_of(anatomy)
        self.matrices = Group(clients, [shape_of(slot) for slot in matrices(anatomy)], True, device)
        self.vectors = Group(clients, [shape_of(slot) for slot in vectors(anatomy)], False, device)
        self.tables = [Group(clients, [(many, width)], False, device) for many in room.tables]
        self.groups = [self.matrices, self.vectors, *self.tables]
        assert self.matrices.narrow is not None
        weights, biases = self.matrices.views(self.matrices.narrow), self.vectors.views(self.vectors.master)
        dweights, self.dbiases = self.matrices.views(self.matrices.gradient), self.vectors.views(self.vectors.gradient)
        self.layers, self.quiet_layers = (
            [
                StackedLayer(
                    layer_parts(weights, biases, number),
                    layer_parts(dweights, self.dbiases, number) if learns else None,
                    self.numbers if learns else self.numbers.without_dropout(),
                    site=1 + 3 * number,
                )
                for number in range(len(anatomy.layers))
            ]
            for learns in (True, False)
        )
        self.embedding = self._embedding([group.master for group in self.tables], biases)
        self.dembedding = self._embedding([group.gradient for group in self.tables], self.dbiases)
        self.head = [view.detach().requires_grad_() for view in biases[2 + 8 * len(self.layers) :]]
        self.pool: Any = None

    def _embedding(self, tables: Sequence[Tensor], vectors: Sequence[Tensor]) -> EmbeddingParts:
        width = self.anatomy.words.embedding_dim
        words, positions, *types = (table.view(-1, width) for table in tables)
        return EmbeddingParts(words, positions, types[0] if types else None, vectors[0], vectors[1])

    def inputs(self, tokens: int) -> Inputs:
        """Empty inputs for a step with this number of tokens per client."""
        sizes = sizes_of(self.room, tokens)
        ints = torch.zeros(sum(sizes), dtype=torch.int32, device=self.device)
        return Inputs(ints, *torch.split(ints, sizes))

    def texts(self, given: Inputs, last: bool) -> Texts:
        """Where the texts are; in the last layer only their first positions have queries."""
        longest, heads, clients = self.room.longest, self.anatomy.heads, self.room.clients
        if last:
            return Texts(given.query_starts, given.key_starts, 1, longest, heads, clients)
        return Texts(given.key_starts, given.key_starts, longest, longest, heads, clients)

    def states(self, given: Inputs, learns: bool = True) -> Tensor:
        """What the head reads, [clients, rows, width]; with `learns`, dropout is on and `back` can follow."""
        layers, numbers = (self.layers, self.numbers) if learns else (self.quiet_layers, self.quiet_layers[0].numbers)
        every, last = self.texts(given, False), self.texts(given, True)
        x, kept = embed(self.embedding, given.ids, given.positions, given.types, numbers, given.seed, self.room.clients)
        if learns:
            self.kept = kept
        for layer in layers[:-1]:
            x = layer.forward(x, every, given.seed)
        return layers[-1].forward(x, last, given.seed, given.first).float()

    def back(self, given: Inputs, dstate: Tensor, dhead: Sequence[Tensor]) -> None:
        """Write the gradients of all parameters, from those of the states and of the head."""
        every, last = self.texts(given, False), self.texts(given, True)
        for gradient, view in zip(dhead, self.dbiases[2 + 8 * len(self.layers) :], strict=True):
            view.copy_(gradient)
        dx = self.layers[-1].backward(dstate.to(NARROW), last, given.seed, given.first)
        for layer in reversed(self.layers[:-1]):
            dx = layer.backward(dx, every, given.seed)
        indices = (given.ids, given.positions, given.types)
        embed_backward(dx, self.kept, self.embedding, self.dembedding, indices, self.numbers, given.seed)
        del self.kept
        for group, table in zip(self.tables, tables(self.anatomy), strict=True):
            if table.padding_idx is not None:  # never learnt
                group.views(group.gradient)[0][:, table.padding_idx] = 0.0

    def descend(self, hyper: Tensor) -> None:
        """A step of AdamW along the gradients; `hyper` is [clients, 4], as `adamw` reads it."""
        if self.room.clip is not None:
            norms = [torch.linalg.vector_norm(group.gradient, dim=1, dtype=torch.float32) for group in self.groups]
            hyper[:, 3] = (self.room.clip / (torch.stack(norms).norm(dim=0) + 1e-6)).clamp(max=1.0)
        for group in self.groups:
            group.step(hyper, self.room.decay)

    def capture(self, *functions: Callable[[], object]) -> list[Callable[[], object]]:
        """What replays these functions, one after the other; all were called before, which compiled their kernels."""
        replays, side = list[Callable[[], object]](), lane(self.device, self.lane)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for function in functions:
                graph = torch.cuda.CUDAGraph()
                # Not `torch.cuda.graph`, which collects garbage and empties the allocator's cache every time.
                graph.capture_begin(*([] if self.pool is None else [self.pool]))
                function()
                graph.capture_end()
                self.pool = self.pool or graph.pool()
                replays.append(graph.replay)
        torch.cuda.current_stream().wait_stream(side)
        return replays

    @property
    def is_free(self) -> bool:
        """Whether nobody is in the middle of something here."""
        return True


STACKS: dict[Any, Stacked] = {}
"""Kept from phase to phase, so that graphs are captured only once for each shape; the one used last comes last."""
SPARE = 0.3
"""The share of the card's memory that must be free before another stack is made."""
S = TypeVar("S", bound=Stacked)


def kept(key: Any, device: torch.device, make: Callable[[], S]) -> S:
    """The stack that is kept under this key, made if there is none.

    While the card is nearly full, the free stack that has not been used for the longest time is deleted before.
    """
    stack: S | None = STACKS.pop(key, None)  # type: ignore[assignment]
    if stack is None:
        while _is_full(device) and (spare := next((key for key, each in STACKS.items() if each.is_free), None)):
            del STACKS[spare]
            torch.cuda.empty_cache()
        stack = make()
    STACKS[key] = stack
    return stack


def _is_full(device: torch.device) -> bool:
    free, whole = torch.cuda.mem_get_info(device)
    return free < SPARE * whole


class Stack(Stacked):
    """The graphs of whole phases' steps."""

    def __init__(self, anatomy: Anatomy, shape: Shape, device: torch.device, lane: int = 0) -> None:
        super().__init__(anatomy, shape, device, lane)
        self.shape, clients = shape, shape.clients
        self.floats = torch.zeros(clients, 4 + shape.rows, device=device)
        self.wanted = torch.zeros(
            clients * shape.rows, *shape.target, dtype=torch.int64 if shape.is_class else torch.float32, device=device
        )
        self.total = torch.zeros(clients * shape.epochs, dtype=torch.float64, device=device)
        self.by_class = torch.zeros(clients * shape.epochs, shape.classes, 2, dtype=torch.float64, device=device)
        self.graphs: dict[tuple[int, Hashable], tuple[Inputs, Callable[[], object], object]] = {}
        """By number of tokens and loss; a graph reads tensors that the loss holds, so the loss is kept with it."""

    def step(self, given: Inputs, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """One step, as it is captured."""
        clients, rows = self.shape.clients, self.shape.rows
        x = self.states(given)
        with torch.enable_grad():
            state = x.detach().requires_grad_()
            logits = through_head(self.anatomy, state, self.head, given.seed, drops=True)
            each = loss(logits.view(clients * rows, -1), self.wanted).view(clients, rows)
            weights = self.floats[:, 4:]
            value = (each * weights).sum(1) / weights.sum(1).clamp(min=1e-30)
            dstate, *dhead = torch.autograd.grad(value.sum(), [state, *self.head])
        self.back(given, dstate, dhead)
        self.descend(self.floats[:, :4])
        self._count(given, each.detach(), value.detach(), weights)

    def _count(self, given: Inputs, each: Tensor, value: Tensor, weights: Tensor) -> None:
        real = (weights > 0).double()
        self.total.index_add_(0, given.epoch, value.double() * real.sum(1))
        if self.shape.is_class:
            wanted = self.wanted.view_as(each)
            classes = torch.arange(self.shape.classes, device=self.device)
            chosen = (wanted[:, None, :] == classes[None, :, None]).double() * real[:, None, :]
            both = torch.stack([each.double(), torch.ones_like(each, dtype=torch.float64)], -1)
            self.by_class.index_add_(0, given.epoch, chosen @ both)

    def graph(self, tokens: int, loss: Callable[[Tensor, Tensor], Tensor], example: Tensor) -> None:
        """Make sure that there is a graph for this number of tokens; keeps the parameters, not the optimiser state."""
        key = (tokens, loss_key(loss))
        if key in self.graphs:
            return
        started = time.perf_counter()
        given = self.inputs(tokens)
        given.ints.copy_(example)
        self.floats.fill_(1.0)
        self.floats[:, 0] = 0.0  # a rate of zero
        side = lane(self.device, self.lane)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(given, loss)  # compiles kernels and fills caches, which is not possible during a capture
        (replay,) = self.capture(partial(self.step, given, loss))
        while len(self.graphs) >= MOST_GRAPHS:  # graphs of a loss that is new in every phase are never used again
            del self.graphs[next(iter(self.graphs))]
        self.graphs[key] = given, replay, loss
        COSTS.graphs += 1
        COSTS.seconds += time.perf_counter() - started


@cache
def lane(device: torch.device, number: int) -> torch.cuda.Stream:
    """A stream for captures and their replays, because torch keeps memory and workspaces of products by stream.

    Two graphs captured on one stream must not run at the same time: they share a workspace.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def loss_key(part: Any) -> Hashable:
    """Equal for losses that compute the same: one function with equal arguments, where tensors compare by value."""
    if isinstance(part, partial):
        arguments = (*part.args, *(item for pair in sorted(part.keywords.items()) for item in pair))
        return part.func, *map(loss_key, arguments)
    if isinstance(part, Tensor):
        return tuple(part.shape), *part.flatten().tolist()
    return part  # type: ignore[no-any-return]
