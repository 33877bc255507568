"""A user's own rows, looked at before they are used: everything that is wrong with their labels is said at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedstill.common.errors import FedstillError
from fedstill.common.words import counted, listed
from fedstill.data.corpora.embedded import Source
from fedstill.data.corpora.files import ONE_LABEL, Row
from fedstill.data.corpora.spec import CorpusSpec

MISSING = ("", "nan", "<na>")
"""Labels that say that there is none, whatever their case."""
PERHAPS_MISSING = ("none", "null", "na", "n/a", "?", "-", "unknown")
MOST_NUMBERS = 20
"""More different numbers than this that are not whole are not classes."""
SELDOM = 100
"""A label of a single row is told of if there are so many rows."""


@dataclass
class Examined:
    """Rows whose labels can be used, and what there is to say about them."""

    source: Source
    faults: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[Row]:
        """All rows with a text; those without one are left out later, whatever their label."""
        return [row for row in (*self.source.rows, *(self.source.test_rows or ())) if row.has_text]

    def change(self, label: Callable[[str], str]) -> dict[str, str]:
        """Write labels in another way; which have changed, and into what."""
        new = {old: made for old in {row.label for row in self.rows} if (made := label(old)) != old}
        if new:
            self._each(lambda rows: [row._replace(label=new.get(row.label, row.label)) for row in rows])
        return new

    def drop(self, why: str, among: Iterable[Row]) -> None:
        """Leave rows out and count them."""
        out = {id(row) for row in among}
        if out:
            self.dropped[why] = len(out)
            self._each(lambda rows: [row for row in rows if id(row) not in out])

    def _each(self, change: Callable[[list[Row]], list[Row]]) -> None:
        test = self.source.test_rows
        self.source = self.source._replace(
            rows=change(self.source.rows), test_rows=None if test is None else change(test)
        )
        self.__dict__.pop("rows", None)


def examine(source: Source, spec: CorpusSpec, labels: Sequence[str] | None) -> tuple[Source, list[str]]:
    """The rows to use, their labels written in one way, and what the user should know; raises all faults at once."""
    read = len(source.rows) + len(source.test_rows or ())
    found = Examined(source)
    counts = Counter(row.label for row in found.rows)
    folded = found.change(_one_way(found.rows, labels, spec.fold_labels))
    if spec.fold_labels and folded:
        names = [f"{old!r} ({counts[old]:,}) is read as {new!r}" for old, new in sorted(folded.items())]
        found.notices.append(f"labels that differ in case or spacing are one: {listed(names, 8)}.")
    _missing(found, spec, labels)
    _unseen(found, spec, labels)
    _not_classes(found, spec, labels)
    _outside(found, labels)
    _spellings(found, labels)
    _domains(found)
    if found.dropped and not found.rows and not found.faults:
        found.faults.append(f"{source.name}: no row is left ({', '.join(found.dropped)}); check `label:`.")
    if len(found.faults) == 1 and not found.notices:
        raise FedstillError(found.faults[0])
    if found.faults:
        lines = [*found.faults, *(f"note: {notice}" for notice in found.notices)]
        raise FedstillError(
            f"{source.name} cannot be used as it is ({read:,} rows read):" + "".join(f"\n  - {line}" for line in lines)
        )
    return found.source._replace(counts={"rows read": read, **found.dropped}), found.notices


def written(label: str) -> str:
    """A label as all kinds of files write it: `1` for 1.0, `true` for True."""
    if label.casefold() in ("true", "false"):
        return label.casefold()
    whole = re.fullmatch(r"([+-]?\d+)\.0*", label)
    return whole[1] if whole else label


def _one_way(rows: Sequence[Row], labels: Sequence[str] | None, fold: bool) -> Callable[[str], str]:
    """What to make of a label: the spelling in `labels:`, or where there is none the common one."""

    def key(label: str) -> str:
        return " ".join(written(label).casefold().split()) if fold else written(label)

    if labels is not None:
        listed_by_key = {key(label): label for label in reversed(labels)}
        return lambda label: label if label in labels else listed_by_key.get(key(label), label)
    counts = Counter(row.label for row in rows if not _is_missing(row.label))
    if not fold:
        # 1.0 and True among other words are words, as a version's number is.
        are_numbers = all(_number(label) is not None for label in counts)
        return written if are_numbers or all(written(label) in ("true", "false") for label in counts) else str
    spellings: dict[str, str] = {}
    for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        spellings.setdefault(key(label), label)
    return lambda label: spellings.get(key(label), label)


def _missing(found: Examined, spec: CorpusSpec, labels: Sequence[str] | None) -> None:
    gone = [row for row in found.rows if _says_nothing(row.label, labels)]
    if not gone:
        return
    if spec.missing == "drop":
        found.notices.append(
            f"left out {len(gone):,} of {counted(len(found.rows), 'row')}, which have no label: {_places(gone)}."
        )
        found.drop("no label", gone)
    else:
        found.faults.append(
            f"{_place(gone)}: the label is missing{_also(gone, found)}; fill it in, or leave such rows out with "
            "`corpus: {missing: drop}`."
        )
        found.drop("no label", gone)  # so that other faults are not about them


def _unseen(found: Examined, spec: CorpusSpec, labels: Sequence[str] | None) -> None:
    """Labels of a separate test or validation that no training row has."""
    apart = [*(row for row in found.source.rows if row.validates), *(found.source.test_rows or ())]
    seen = {row.label for row in found.source.rows if row.has_text and not row.validates}
    new = [row for row in apart if row.has_text and row.label not in seen]
    if not new:
        return
    kind = "validation row" if new[0].validates else "test row"
    names = _counted_labels(new)
    if spec.unseen == "drop":
        found.notices.append(f"left out {counted(len(new), kind)} with labels that no training row has: {names}.")
        found.drop("label unseen in training", new)
        return
    if labels is not None and all(row.label in labels for row in new):
        found.notices.append(f"{kind}s have labels that no training row has: {names}; no model can learn them.")
        return
    if labels is None:
        found.faults.append(
            f"{_place(new)}: no training row has the label {new[0].label!r} ({counted(len(new), f'such {kind}')}: "
            f"{names}); correct it, leave such rows out with `corpus: {{unseen: drop}}`, or name all classes with "
            "`labels:`."
        )
        found.drop("label unseen in training", new)


def _not_classes(found: Examined, spec: CorpusSpec, labels: Sequence[str] | None) -> None:
    """Numbers and lists, of which a classifier learns nothing; and columns that are probably not the label."""
    names = sorted({row.label for row in found.rows})
    if not names or labels is not None:
        return
    numbers = [number for name in names if (number := _number(name)) is not None]
    lists = [name for name in names if re.fullmatch(r"\[.*\]|\(.*,.*\)|\{.*\}", name, re.DOTALL)]
    if len(numbers) == len(names) > MOST_NUMBERS and any(not number.is_integer() for number in numbers):
        found.faults.append(
            f"the column {spec.label!r} holds {len(names):,} different numbers, such as {names[len(names) // 2]}: that "
            "is regression, and fedstill learns classes; cut the numbers into a few classes first."
        )
    elif len(lists) > len(names) / 2:
        found.faults.append(f"the column {spec.label!r} holds lists, such as {lists[0][:60]}: {ONE_LABEL}.")
    elif len(names) > max(MOST_NUMBERS, len(found.rows) / 3):
        found.notices.append(
            f"the column {spec.label!r} holds {len(names):,} different labels in {len(found.rows):,} rows: check "
            "`corpus: {label: ...}`."
        )


def _outside(found: Examined, labels: Sequence[str] | None) -> None:
    """Labels that are not among those that the experiment names."""
    others = [row for row in found.rows if labels is not None and row.label not in labels]
    if others and labels is not None:
        more = f" ({len(others):,} rows with other labels: {_counted_labels(others)})" if len(others) > 1 else ""
        found.faults.append(
            f"{_place(others)}: the label {others[0].label!r} is none of {listed(labels, 12)}{more}; add it to "
            "`labels:` or remove the row."
        )
        found.drop("other label", others)


def _spellings(found: Examined, labels: Sequence[str] | None) -> None:
    """Labels that differ only in case, that may mean nothing, or that are probably slips of the pen."""
    if labels is not None:
        return
    counts = Counter(row.label for row in found.rows)
    for spellings, many in _alike(counts):
        found.notices.append(f"{spellings} are {many} labels; `corpus: {{fold_labels: true}}` makes them one.")
    for label in sorted(label for label in counts if label.casefold() in PERHAPS_MISSING):
        found.notices.append(
            f"{label!r} ({counted(counts[label], 'row')}) is a label like any other; if it means that there is none, "
            "name the others with `labels:`, and leave such rows out with `corpus: {missing: drop}`."
        )
    single = sorted(label for label, many in counts.items() if many == 1)
    if single and len(found.rows) >= SELDOM and len(counts) <= len(found.rows) / 3:
        found.notices.append(f"{listed([repr(label) for label in single])}: a single row; is the label right?")


def _domains(found: Examined) -> None:
    """Domains that differ only in case, which would be different clients."""
    counts = Counter(row.domain.strip() for row in found.rows if row.domain)
    for spellings, many in _alike(counts):
        found.notices.append(f"{spellings} are {many} domains; are they one? Then write them in one way.")


def _alike(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Words that differ only in case and spacing, with how often each occurs; and how many they are."""
    alike: dict[str, list[str]] = {}
    for word in sorted(counts):
        alike.setdefault(" ".join(word.casefold().split()), []).append(word)
    for words in alike.values():
        if len(words) > 1:
            yield ", ".join(f"{word!r} ({counts[word]:,})" for word in words), len(words)


def _is_missing(label: str) -> bool:
    return label.casefold() in MISSING


def _says_nothing(label: str, labels: Sequence[str] | None) -> bool:
    """Whether a label is missing; where all labels are known, other words for that count, too."""
    if labels is None:
        return _is_missing(label)
    return label not in labels and label.casefold() in (*MISSING, *PERHAPS_MISSING)


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _place(rows: Sequence[Row]) -> str:
    return f"{rows[0].file}, row {rows[0].line}"


def _places(rows: Sequence[Row]) -> str:
    """Where the first of these rows are."""
    return f"{rows[0].file}, row{'' if len(rows) == 1 else 's'} {listed([str(row.line) for row in rows], 6)}"


def _also(rows: Sequence[Row], found: Examined) -> str:
    """How many more there are, and where the next ones are."""
    if len(rows) == 1:
        return ""
    where = ", ".join(str(row.line) for row in rows[1:6])
    return f", as in {len(rows):,} of {len(found.rows):,} rows (also {where}{', ...' if len(rows) > 6 else ''})"


def _counted_labels(rows: Sequence[Row]) -> str:
    counts = Counter(row.label for row in rows)
    return listed([f"{label!r} {many:,}" for label, many in counts.most_common()], 8)
