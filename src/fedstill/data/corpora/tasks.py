"""Several corpora as one: every task is a domain with its own labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.embedded import Embedded
from fedstill.data.corpus import Corpus, Ints

METRICS = ("accuracy", "f1")

CORPUS = Embedded(
    "several corpora as one, a domain a task: `tasks: {NAME: {name: ...}, ...}`",
    "each corpus's own",
    ("task/label of each",),
    frozenset({"tasks", "path"}),
)

HELD_OUT_OF = 10
"""If some tasks have a test file, every task without one holds out one of this many groups."""


def joined(name: str, parts: Mapping[str, Corpus]) -> Corpus:
    """One corpus whose domains are the tasks, sorted, and whose labels are called `task/label`.

    The two texts of a pair become one, with a space between, since other tasks may have single texts. A task's own
    domains are dropped. Groups stay within their task: a text that two tasks share counts as two texts.
    """
    tasks = dict(sorted(parts.items()))
    for task, part in tasks.items():
        if part.images is not None:
            raise FedstillError(f"tasks: {task} holds images; only corpora of texts can be joined.")
    counts = {"rows read": sum(part.counts.get("rows read", len(part)) for part in tasks.values())}
    for task, part in tasks.items():
        counts |= {f"{task}: {why}": count for why, count in part.counts.items() if why != "rows read"}
    if any(part.held_out is not None for part in tasks.values()):
        tasks = {task: _with_test_rows(task, part, counts) for task, part in tasks.items()}
    sizes = [len(part) for part in tasks.values()]
    label_names = tuple(f"{task}/{label}" for task, part in tasks.items() for label in part.label_names)
    many_labels = [len(part.label_names) for part in tasks.values()]
    held_out = [part.held_out for part in tasks.values() if part.held_out is not None]
    return Corpus(
        name=name,
        texts=[text for part in tasks.values() for text in _texts(part)],
        labels=_shifted([part.labels for part in tasks.values()], many_labels),
        label_names=label_names,
        domains=np.repeat(np.arange(len(tasks)), sizes),
        domain_names=tuple(tasks),
        groups=_shifted(
            [_groups(part) for part in tasks.values()], [_groups(part).max() + 1 for part in tasks.values()]
        ),
        held_out=np.concatenate(held_out) if held_out else None,
        validating=_validating(list(tasks.values())),
        label_tasks=np.repeat(np.arange(len(tasks)), many_labels) if label_names else None,
        metrics=METRICS,
        counts=counts,
        notices=tuple(f"{task}: {notice}" for task, part in tasks.items() for notice in part.notices),
    )


def _validating(parts: list[Corpus]) -> npt.NDArray[np.bool_] | None:
    if all(part.validating is None for part in parts):
        return None
    return np.concatenate([np.zeros(len(part), bool) if part.validating is None else part.validating for part in parts])


def _texts(part: Corpus) -> list[str]:
    if part.pairs is None:
        return part.texts
    return [f"{text} {pair}" for text, pair in zip(part.texts, part.pairs, strict=True)]


def _groups(part: Corpus) -> Ints:
    return np.arange(len(part)) if part.groups is None else part.groups


def _shifted(arrays: list[Ints], widths: list[int]) -> Ints:
    """The arrays concatenated, with numbers shifted so that no two arrays share one; -1, which is no number, stays."""
    starts = np.cumsum([0, *widths[:-1]])
    moved = [np.where(array < 0, array, array + start) for array, start in zip(arrays, starts, strict=True)]
    return np.concatenate(moved).astype(np.int64)


def _with_test_rows(task: str, part: Corpus, counts: dict[str, int]) -> Corpus:
    """The task with test rows: its own, or else a tenth of every label."""
    if part.held_out is not None:
        return part
    held_out = _a_tenth(part.labels, _groups(part))
    counts[f"{task}: held out, having no test file"] = int(np.count_nonzero(held_out))
    return replace(part, held_out=held_out)


def _a_tenth(labels: Ints, groups: Ints) -> npt.NDArray[np.bool_]:
    """Every tenth group of each label, with all its rows; a group's label is that of its first row."""
    _, first, of_row = np.unique(groups, return_index=True, return_inverse=True)
    chosen = np.zeros(len(first), np.bool_)
    in_order = np.argsort(first)
    for label in np.unique(labels):
        members = in_order[labels[first[in_order]] == label]
        # Starting in the middle of the first ten, so that the count is rounded to the nearest, not down.
        chosen[members[HELD_OUT_OF // 2 - 1 :: HELD_OUT_OF]] = True
    return chosen[of_row]
