"""Whether a member's loss is more than the chance of its test rows: of 25 rows, one is four points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedstill.common.files import file_name
from fedstill.learning.metrics import METRICS, Integers
from fedstill.results.members import ALONE, Member
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
        own = tests[member.name] if member.own is not None else None
        alone, after = _said(run / ALONE, member.name, own), _said(run, member.giver, own)
        if alone is None or after is None or not np.array_equal(alone[:2], after[:2]):
            return member
        drawn = paired_bootstrap([alone[1]], [[after[2]]], [[alone[2]]], classes, measure=how.measure)
        return replace(member, p=drawn.p)

    return [judged(member) if member.is_worse_off else member for member in found]


def _said(run: Path, party: str, only: Integers | None) -> Integers | None:
    """Rows, their labels and a party's predictions for them, sorted by row; None if there are none."""
    try:
        stored = load_file(run / "predictions" / f"{file_name(party)}.safetensors")
        said = np.stack([stored["rows"], stored["labels"], stored["predicted"]])
    except (OSError, SafetensorError, KeyError):
        return None
    said = said if only is None else said[:, np.isin(said[0], only)]
    return said[:, np.argsort(said[0], kind="stable")] if said.shape[1] else None
