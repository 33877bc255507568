"""Whether a member's loss is more than the chance of its test rows: of 25 rows, one is four points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedstill.learning.metrics import METRICS, Integers
from fedstill.results.members import ALONE, Member
from fedstill.results.report.answers import answers
from fedstill.results.significance import paired_bootstrap


def with_chances(
    found: Sequence[Member], run: Path, tests: Mapping[str, Integers], classes: int, metric: str
) -> list[Member]:
    """The members, those that are worse off with p: of the paired bootstrap over the rows that the loss is about.

    `tests` are the clients' own rows. There is no p where nobody worked alone beside the run, or predictions are
    missing.
    """
    how = METRICS[metric]
    if not how.is_of_classes or not (run / ALONE).is_dir():  # a federation's centre does not know who has which rows
        return list(found)

    def judged(member: Member) -> Member:
        alone, after = answers(run / ALONE, member.name), answers(run, member.giver)
        if alone is None or after is None or not np.array_equal(alone.rows, after.rows):
            return member
        own = np.isin(alone.rows, tests[member.name]) if member.own is not None else np.ones(len(alone.rows), bool)
        now, before = [[after.predicted[own]]], [[alone.predicted[own]]]
        return replace(member, p=paired_bootstrap([alone.labels[own]], now, before, classes, measure=how.measure).p)

    return [judged(member) if member.is_worse_off else member for member in found]
