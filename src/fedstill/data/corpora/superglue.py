"""SuperGLUE's eight tasks in FedDRS's form (its appendix A.2): every row is one text, and every label one word."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.data.corpora import records
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Row, fault
from fedstill.data.corpora.records import RawRecord

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

HUB = "aps/super_glue"

METRICS = ("accuracy",)
"""Of rows, in every task: SuperGLUE's F1a and exact match for MultiRC and ReCoRD are not computed."""

PLACEHOLDER = "@placeholder"
_STAND_IN = "\ue000"
"""A private-use character of Unicode, which no published text contains."""


class Posed(NamedTuple):
    """A row to be made: its text, the passage it is about, and the published label, if there is one."""

    text: str
    passage: str | None
    label: object


@dataclass(frozen=True)
class SuperglueTask:
    """How a record becomes rows, the label word of each published label, and FedDRS's number of training rows."""

    pose: Callable[[RawRecord], Iterable[Posed]]
    words: Mapping[object, str]
    cut: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The label words, in order."""
        return tuple(dict.fromkeys(self.words.values()))


# Cached, because a passage is repeated with each of its answers.
@lru_cache(maxsize=64)
def cleaned(text: str) -> str:
    """A field as in FedDRS's examples: without punctuation and symbols, with single spaces, in its original case.

    The examples show that a mark is removed without a space in its place (`i.e.,` is `ie`, `so-called` is `socalled`,
    `Afghanistan's` is `Afghanistans`), also outside ASCII (`posteriori – These`), and also at the end of a field, where
    the full stop between fields follows (`later?` is `later.`); ReCoRD's `@placeholder` keeps its mark.
    """
    marked = text.replace(PLACEHOLDER, _STAND_IN).translate(_marks()).replace(_STAND_IN, PLACEHOLDER)
    return " ".join(marked.split())


@cache
def _marks() -> dict[int, None]:
    """A translation table that removes every punctuation character and symbol of Unicode."""
    return {code: None for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "PS"}


def processed(task: str, fields: Mapping[str, str], asks: str | None = None) -> str:
    """`task name: field. name: field`; the field named by `asks` ends in its question mark instead of a full stop.

    FedDRS's examples keep only the question mark of MultiRC's question.
    """
    parts = [
        f"{name}: {cleaned(field)}{'?' if name == asks and field.rstrip().endswith('?') else '.'}"
        for name, field in fields.items()
    ]
    return f"{task} {' '.join(parts)}".removesuffix(".")


def _boolq(record: RawRecord) -> Iterator[Posed]:
    fields = {name: record.text(name) for name in ("question", "passage")}
    yield Posed(processed("boolq", fields), fields["passage"], record.values.get("label"))


def _cb(record: RawRecord) -> Iterator[Posed]:
    yield _inferred("cb", record)


def _rte(record: RawRecord) -> Iterator[Posed]:
    yield _inferred("rte", record)


def _inferred(task: str, record: RawRecord) -> Posed:
    fields = {name: record.text(name) for name in ("hypothesis", "premise")}
    return Posed(processed(task, fields), fields["premise"], record.values.get("label"))


def _copa(record: RawRecord) -> Iterator[Posed]:
    fields = {name: record.text(name) for name in ("choice1", "choice2", "premise", "question")}
    yield Posed(processed("copa", fields), None, record.values.get("label"))


def _multirc(record: RawRecord) -> Iterator[Posed]:
    if "paragraph" in record.values:  # the Hub's form: a row an answer
        paragraph = record.text("paragraph")
        answers = [(record.text("question"), record.text("answer"), record)]
    else:
        passage = record.part("passage")
        paragraph = passage.text("text")
        answers = [
            (question.text("question"), answer.text("text"), answer)
            for question in passage.parts("questions")
            for answer in question.parts("answers")
        ]
    for question, answer, labelled in answers:
        fields = {"question": question, "answer": answer, "paragraph": paragraph}
        yield Posed(processed("multirc", fields, asks="question"), paragraph, labelled.values.get("label"))


def _record(record: RawRecord) -> Iterator[Posed]:
    """A row an entity, in the order of the file."""
    if "query" in record.values:  # the Hub's form: a record a query, with names in place of spans
        passage = record.text("passage")
        entities = record.texts("entities")
        queries = [(record.text("query"), record.texts("answers") if "answers" in record.values else None)]
    else:
        about = record.part("passage")
        passage = about.text("text")
        entities = [passage[span.number("start") : span.number("end") + 1] for span in about.parts("entities")]
        queries = [
            (
                asked.text("query"),
                [answer.text("text") for answer in asked.parts("answers")] if "answers" in asked.values else None,
            )
            for asked in record.parts("qas")
        ]
    # In FedDRS's example, highlights are sentences like the others.
    plain = passage.replace("@highlight", " ")
    for query, answers in queries:
        for entity in dict.fromkeys(entities):
            text = processed("record", {"answer": entity, "query": query, "passage": plain})
            yield Posed(text, passage, None if answers is None else entity in answers)


def _wic(record: RawRecord) -> Iterator[Posed]:
    fields = {name: record.text(name) for name in ("word", "sentence1", "sentence2")}
    yield Posed(processed("wic", fields), None, record.values.get("label"))


def _wsc(record: RawRecord) -> Iterator[Posed]:
    """The second span alone is marked, as in FedDRS's example, which does not say which first span is meant."""
    target = record.part("target") if "target" in record.values else record  # flat on the Hub
    words = record.text("text").split()
    start = target.number("span2_index")
    end = start + len(target.text("span2_text").split())
    if not 0 <= start < end <= len(words):
        raise record.fault(f"the second span is words {start} to {end - 1} of a text of {len(words)}.")
    before, span, after = (cleaned(" ".join(part)) for part in (words[:start], words[start:end], words[end:]))
    marked = " ".join(f"{before} * {span} * {after}".split())
    yield Posed(f"wsc: {marked}", record.text("text"), record.values.get("label"))


# True equals 1 and False equals 0 in Python; so these words serve both the files (booleans) and the Hub (numbers).
TASKS = {
    "BoolQ": SuperglueTask(_boolq, {True: "Yes", False: "No"}, cut=9427),
    "CB": SuperglueTask(
        _cb,
        {
            "entailment": "Entailment",
            "contradiction": "Contradiction",
            "neutral": "Neutral",
            0: "Entailment",
            1: "Contradiction",
            2: "Neutral",
        },
        cut=250,
    ),
    "COPA": SuperglueTask(_copa, {0: "Choice_one", 1: "Choice_two"}, cut=400),
    "MultiRC": SuperglueTask(_multirc, {True: "True", False: "False"}, cut=963),
    "ReCoRD": SuperglueTask(_record, {True: "Correct", False: "Wrong"}, cut=9000),
    "RTE": SuperglueTask(
        _rte,
        {"entailment": "Entailment", "not_entailment": "Not_entailment", 0: "Entailment", 1: "Not_entailment"},
        cut=2500,
    ),
    "WiC": SuperglueTask(_wic, {True: "Match", False: "Mismatch"}, cut=6000),
    "WSC": SuperglueTask(_wsc, {True: "Same", False: "Difference"}, cut=554),
}
"""In the order of FedDRS's Table 4, whose column "Cut Train" is `cut`."""


def spelled(task: str) -> str:
    """SuperGLUE's own spelling of a task: boolq is BoolQ."""
    known = {name.lower(): name for name in TASKS}
    if task.lower() in known:
        return known[task.lower()]
    raise ValueError(f"there is no SuperGLUE task called {task!r}; {nearest(task, TASKS).rstrip('.')}")


def _source(spec: CorpusSpec, is_public: bool) -> Source:
    """Training and development rows of a task; a public task gives its training texts alone.

    If `is_cut`, only the first training rows are kept, as many as FedDRS uses; a row is an answer or an entity, not a
    question.
    """
    name = str(spec.task)
    splits = ("train",) if is_public else ("train", "val")
    # Before anything is read, so that a missing file is told at once.
    sources = [_records(name, spec.folder, split) for split in splits]
    counts = {"rows read": 0}
    limit = TASKS[name].cut if spec.cut else None
    train, *rest = [
        _posed(name, source, is_public, limit if split == "train" else None, counts)
        for split, source in zip(splits, sources, strict=True)
    ]
    test = None if is_public else [row for part in rest for row in part]
    return Source(name, train, test, counts, TASKS[name].labels, METRICS)


def _posed(
    name: str, source: Iterable[RawRecord], is_public: bool, limit: int | None, counts: dict[str, int]
) -> list[Row]:
    task = TASKS[name]
    found: list[Row] = []
    beyond = 0
    for record in source:
        for text, passage, label in task.pose(record):
            word = "" if is_public else _word(record, name, label)
            counts["rows read"] += 1
            if limit is not None and len(found) >= limit:
                beyond += 1
                continue
            # Questions about one passage stay together, but only within a published split.
            group = None if passage is None else f"{record.file}: {passage}"
            found.append(Row(record.file, record.line, text, None, word, group=group))
    if beyond:
        counts["training rows cut off"] = beyond
    return found


def _word(record: RawRecord, name: str, label: object) -> str:
    words = TASKS[name].words
    if label is None:
        raise record.fault(f"the label is missing; {name} needs one in every row.")
    if not isinstance(label, str | int) or label not in words:
        raise record.fault(f"the label is {label!r}; {name} has {', '.join(map(repr, words))}.")
    return words[label]


def _records(name: str, folder: Path | None, split: str) -> Iterable[RawRecord]:
    """The records of a split, not yet read."""
    if folder is None:
        return records.dataset(HUB, name.lower(), {"train": "train", "val": "validation"}[split])
    home = _home(name, folder)
    if name == "WiC" and (data := _wic_data(home, {"train": "train", "val": "dev"}[split])):
        return _wic_records(data)
    file = home / f"{split}.jsonl"
    if not file.is_file():
        raise FedstillError(
            f"{file} is missing; {name} needs train.jsonl and val.jsonl as SuperGLUE publishes them, or no `path:` to "
            "take them from the Hugging Face Hub."
        )
    return records.json_lines(file)


def _home(name: str, folder: Path) -> Path:
    """The task's folder; upper and lower case do not matter."""
    wanted = {name.lower(), f"{name.lower()}_dataset"}  # WiC's own publisher calls it WiC_dataset
    if not folder.is_dir():
        raise FedstillError(
            f"{folder} is not a folder; set `path:` to the one that holds {name}/train.jsonl, or leave it out to take "
            "SuperGLUE from the Hugging Face Hub."
        )
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in inside:
        if path.name.lower() in wanted:
            return path
    if (folder / "train.jsonl").is_file() or _wic_data(folder, "train"):
        raise FedstillError(f"{folder} is one task's folder; set `path:` to the folder above, {folder.parent}.")
    there = [task for task in TASKS if task.lower() in {path.name.lower() for path in inside}]
    hint = f"; of SuperGLUE's it has {', '.join(there)}" if there else ""
    raise FedstillError(
        f"{folder} holds no folder {name}{hint}: set `path:` to the folder with {name}/train.jsonl, or leave {name} "
        "out with `tasks: [...]`."
    )


def _wic_data(home: Path, split: str) -> Path | None:
    """The file of WiC's sentences in its original publisher's form, if it is there."""
    files = (home / f"{split}.data.txt", home / split / f"{split}.data.txt")
    return next((file for file in files if file.is_file()), None)


def _wic_records(data: Path) -> Iterator[RawRecord]:
    gold = data.with_name(data.name.replace(".data.", ".gold."))
    if not gold.is_file():
        raise FedstillError(f"{gold} is missing; it has WiC's labels, one for each line of {data.name}.")
    sentences, labels = list(records.lines(data)), list(records.lines(gold))
    if len(sentences) != len(labels):
        raise FedstillError(
            f"{data} has {len(sentences)} lines and {gold} has {len(labels)}; they must match line by line."
        )
    for (line, text), (gold_line, label) in zip(sentences, labels, strict=True):
        fields = text.split("	")
        if len(fields) != 5:
            raise fault(data, line, f"expected 5 fields separated by tabs and found {len(fields)}.")
        if label.strip() not in ("T", "F"):
            raise fault(gold, gold_line, f"the label is {label.strip()!r}; it must be T or F.")
        word, _, _, first, second = fields
        values = {"word": word, "sentence1": first, "sentence2": second, "label": label.strip() == "T"}
        yield RawRecord(str(data), line, values)


CORPUS = Embedded(
    f"SuperGLUE as FedDRS poses it; `task:` ({', '.join(TASKS)}), or a domain a task of all or of `tasks: [...]`; "
    "`path:` or the Hub",
    "each task's own",
    ("each task's own",),
    frozenset({"task", "tasks", "path", "cut"}),
    _source,
)
