"""Whole phases on a GPU ("the card"), of one client or of several together: the host only chooses the rows.

Nothing is read back until a phase ends. Clients of one architecture learn in one stack, each with its own data, order,
rate and dropout, and for exactly as many steps as alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.learning.fast.anatomy import dissect
from fedstill.learning.fast.card import WIDEST, Losses, heed_stop
from fedstill.learning.fast.gpu.inputs import rounded, step_inputs
from fedstill.learning.fast.gpu.packing import Packed
from fedstill.learning.fast.gpu.predicting import PackedModel
from fedstill.learning.fast.gpu.schedule import Job, Schedule
from fedstill.learning.fast.gpu.stack import (
    LARGE,
    Group,
    Shape,
    Slot,
    Stack,
    kept,
    lane,
    loss_key,
    matrices,
    parameters,
    tables,
    vectors,
)

AT_ONCE = 32
"""The most steps whose inputs are sent to the card together; the first chunks are smaller, so that it starts early."""
LANES = 6
"""The most stacks that run at the same time."""


def can_stack(module: nn.Module) -> bool:
    """Whether our kernels support the module: an encoder of a known kind, with all parameters learning."""
    anatomy = dissect(module)
    if anatomy is None or anatomy.activation_name not in ("gelu", "relu"):
        return False
    head = anatomy.words.embedding_dim // anatomy.heads
    known = {id(p) for p in parameters(anatomy)}
    return head in (16, 32, 64, 128) and all(
        id(p) in known and p.requires_grad and p.dtype == torch.float32 for p in module.parameters()
    )


def run_all(jobs: Sequence[Job], width: int | None = None) -> list[Losses]:
    """Run phases of any kinds: up to `width` of one kind in a stack, and several stacks side by side.

    Returns the mean losses of each phase by epoch, and by epoch and class.
    """
    found: dict[int, Losses] = {}
    groups = _groups(jobs, width)
    device = jobs[0].phase.device
    with torch.cuda.device(device), torch.no_grad():
        for start in range(0, len(groups), LANES):
            wave = groups[start : start + LANES]
            runs = [make_run([jobs[number] for number in group], number) for number, group in enumerate(wave)]
            for group, losses in zip(wave, _side_by_side(runs, device), strict=True):
                found |= zip(group, losses, strict=True)
    return [found[number] for number in range(len(jobs))]


def _groups(jobs: Sequence[Job], width: int | None) -> list[list[int]]:
    """The jobs of each stack, by number; the longest stack first."""
    kinds: dict[Any, list[int]] = {}
    for number, job in enumerate(jobs):
        kinds.setdefault(job.kind, []).append(number)
    groups = []
    for alike in kinds.values():
        anatomy = jobs[alike[0]].anatomy
        large = sum(part.numel() for slot in matrices(anatomy) for part in slot) > LARGE
        widest = width or (1 if large else WIDEST)
        left = sorted(alike, key=lambda number: -jobs[number].phase.steps)
        while left:
            # A stack takes as many steps as its longest phase: a phase of less than half as many goes into another one.
            most = jobs[left[0]].phase.steps
            group = [number for number in left if 2 * jobs[number].phase.steps >= most][:widest]
            groups.append(group)
            left = [number for number in left if number not in group]
    return sorted(groups, key=lambda group: -jobs[group[0]].phase.steps)


def _side_by_side(runs: Sequence[Run], device: torch.device) -> list[list[Losses]]:
    """Take the steps of all runs in turn, each run on the stream that its graphs were captured on."""
    streams = [lane(device, run.stack.lane) for run in runs]
    here = torch.cuda.current_stream()
    for run, stream in zip(runs, streams, strict=True):
        run.begin()
        stream.wait_stream(here)
    for step in range(max(run.steps for run in runs)):
        for run, stream in zip(runs, streams, strict=True):
            if step < run.steps:
                with torch.cuda.stream(stream):
                    run.take(step)
    for stream in streams:
        here.wait_stream(stream)
    return [run.end() for run in runs]


def make_run(jobs: Sequence[Job], number: int = 0) -> Run:
    """A run of these phases on the stack of their shape; runs at the same time need different `number`s, for lanes."""
    packs = [Packed.of(job.phase.data, job.anatomy) for job in jobs]
    schedules: list[Schedule] = []
    for job, packed in zip(jobs, packs, strict=True):
        schedules.append(Schedule.of(job, packed, schedules[0] if schedules else None))
    shape, device = _shape(jobs, packs), jobs[0].phase.device
    key = (shape, jobs[0].architecture, device, number)
    stack = kept(key, device, lambda: Stack(jobs[0].anatomy, shape, device, number))
    return Run(stack, jobs, packs, schedules)


def _shape(jobs: Sequence[Job], packs: Sequence[Packed]) -> Shape:
    first, settings = jobs[0], jobs[0].phase.settings
    words = -(-max(len(packed.words) for packed in packs) // 1024) * 1024
    others = [len(table.weight) for table in tables(first.anatomy)[1:]]
    last = [part for part in first.anatomy.head if isinstance(part, nn.Linear)][-1]
    return Shape(
        clients=len(jobs),
        rows=settings.batch,
        tables=(words, *others),
        longest=-(-max(int(packed.lengths.max()) for packed in packs) // 64) * 64,
        classes=last.out_features,
        epochs=max(job.phase.settings.epochs for job in jobs),
        target=tuple(first.targets.shape[1:]),
        is_class=first.targets.ndim == 1,
        decay=settings.weight_decay,
        clip=settings.clip,
    )


class Run:
    """One run of a stack over the schedules of its clients."""

    def __init__(
        self, stack: Stack, jobs: Sequence[Job], packs: Sequence[Packed], schedules: Sequence[Schedule]
    ) -> None:
        self.stack, self.jobs, self.packs, self.schedules, self.shape = stack, jobs, packs, schedules, stack.shape
        self.steps = max(len(schedule.rows) for schedule in schedules)
        for schedule in schedules:
            schedule.extend(self.steps)
        self.sizes = rounded(np.stack([schedule.tokens for schedule in schedules]).max(0), self.shape)
        self.targets = torch.cat([job.targets for job in jobs]).to(stack.device)
        offsets = np.cumsum([0, *(len(job.targets) for job in jobs)])[:-1]
        self.rows = np.stack([s.rows + start for s, start in zip(schedules, offsets, strict=True)], 1).astype(np.int32)
        self.ends = np.stack([np.cumsum(s.lengths, 1) for s in schedules], 1)
        self.seeds = np.random.default_rng(jobs[0].phase.order.initial_seed()).integers(0, 2**31, self.steps)

    def begin(self) -> None:
        """Load the clients' parameters and capture the graphs that are missing."""
        stack, loss = self.stack, self.jobs[0].loss
        self.key = loss_key(loss)
        self._load()
        for tokens in sorted({*self.sizes.tolist()}, reverse=True):  # smaller graphs reuse the memory of larger ones
            if (tokens, self.key) not in stack.graphs:
                step = int(np.argmax(self.sizes == tokens))
                stack.graph(tokens, loss, torch.from_numpy(self._inputs(step)).to(stack.device))
        for group in stack.groups:
            group.begin()
        stack.total.zero_()
        stack.by_class.zero_()
        self.floats = _send(self._floats(), stack.device)
        self.ints: deque[Tensor] = deque()

    def take(self, step: int) -> None:
        """One step: a few copies on the card and a replay."""
        stack = self.stack
        if not self.ints:
            chunk = [self._inputs(number) for number in range(step, min(self.steps, step + min(AT_ONCE, 2 + step)))]
            parts = torch.split(_send(np.concatenate(chunk), stack.device), [len(part) for part in chunk])
            self.ints = deque(parts)
        given, replay, _ = stack.graphs[int(self.sizes[step]), self.key]
        given.ints.copy_(self.ints.popleft())
        stack.floats.copy_(self.floats[step])
        torch.index_select(self.targets, 0, given.rows, out=stack.wanted)
        replay()

    def end(self) -> list[Losses]:
        """Store the parameters in the clients' models; the mean losses of each by epoch, and by epoch and class."""
        self._store()
        return self._losses()

    def _parts(self) -> Iterator[tuple[Group, int, Sequence[Slot]]]:
        """Every client's parameters except word embeddings, and the group of the stack that they go to."""
        stack = self.stack
        for client, job in enumerate(self.jobs):
            yield stack.matrices, client, matrices(job.anatomy)
            yield stack.vectors, client, vectors(job.anatomy)
            for group, table in zip(stack.tables[1:], tables(job.anatomy)[1:], strict=True):
                yield group, client, [(table.weight,)]

    def _words(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Every client's word embeddings, and the words that occur in its data."""
        for client, (job, packed) in enumerate(zip(self.jobs, self.packs, strict=True)):
            yield client, job.anatomy.words.weight, torch.from_numpy(packed.words).to(self.stack.device)

    def _load(self) -> None:
        for group, client, slots in self._parts():
            group.load(client, slots)
        for client, table, used in self._words():
            self.stack.tables[0].load(client, [(table[used],)])

    def _store(self) -> None:
        for group, client, slots in self._parts():
            group.store(client, slots)
        words = self.stack.tables[0]
        for client, table, used in self._words():
            if self.shape.decay:  # weight decay also applies to words that do not occur
                table *= float(np.prod(1.0 - self.schedules[client].rates * self.shape.decay))
            table[used] = words.views(words.master)[0][client, : len(used)]

    def _floats(self) -> npt.NDArray[np.float32]:
        """[steps, clients, 4 + batch]: AdamW's `hyper`, and the rows' weights."""
        floats = np.ones((self.steps, self.shape.clients, 4 + self.shape.rows), np.float32)
        taken = np.arange(1, self.steps + 1)
        for client, schedule in enumerate(self.schedules):
            floats[:, client, 0] = schedule.rates
            floats[:, client, 1] = 1.0 - 0.9**taken
            floats[:, client, 2] = np.sqrt(1.0 - 0.999**taken)
            floats[:, client, 4:] = schedule.weights
        return floats

    def _inputs(self, step: int) -> npt.NDArray[np.int32]:
        """The integers of a step's `Inputs`."""
        batches = [
            packed.pick(schedule.rows[step, : schedule.present[step]])
            for schedule, packed in zip(self.schedules, self.packs, strict=True)
        ]
        epochs = [number * self.shape.epochs + schedule.epoch[step] for number, schedule in enumerate(self.schedules)]
        return step_inputs(
            self.shape, int(self.sizes[step]), batches, self.ends[step], self.rows[step], epochs, self.seeds[step]
        )

    def _losses(self) -> list[Losses]:
        shape = self.shape
        totals = self.stack.total.view(shape.clients, shape.epochs).tolist()
        by_class = self.stack.by_class.view(shape.clients, shape.epochs, shape.classes, 2)
        means = (by_class[..., 0] / by_class[..., 1]).tolist()
        found = []
        for number, job in enumerate(self.jobs):
            epochs = job.phase.settings.epochs
            mean = [total / len(job.targets) for total in totals[number][:epochs]]
            found.append((mean, means[number][:epochs] if shape.is_class else []))
        return found


def _send(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy to the card without waiting for it."""
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)


def predict_packed(module: nn.Module, data: Examples, most_tokens: int = 16_384) -> Tensor:
    """The logits of the data in eval mode, computed without padding; in the data's order, on the CPU."""
    anatomy = dissect(module)
    assert anatomy is not None
    packed = Packed.of(data, anatomy, compact=False)
    order = np.argsort(-packed.lengths, kind="stable")
    ends = np.cumsum(packed.lengths[order])
    device = anatomy.words.weight.device
    with torch.cuda.device(device), torch.inference_mode():
        model, pieces = PackedModel(anatomy), []
        for rows in np.split(order, np.searchsorted(ends, np.arange(most_tokens, ends[-1], most_tokens), "right")):
            heed_stop()
            if len(rows):
                starts = np.concatenate([[0], np.cumsum(packed.lengths[rows])]).astype(np.int32)
                given = [torch.from_numpy(array).to(device) for array in (*packed.pick(rows), starts)]
                pieces.append(model.logits(int(packed.lengths[rows].max()), *given))
        found = torch.cat(pieces).float().cpu()
    logits = torch.empty_like(found)
    logits[torch.from_numpy(order)] = found
    return logits
