"""A record as plain series and tables: the one place that knows what a run's files mean to a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedstill.data.corpora import load
from fedstill.data.partition import Partition
from fedstill.learning.metrics import METRICS
from fedstill.parties.private import EPSILON
from fedstill.results.members import Member
from fedstill.results.picture import holdings
from fedstill.results.record import Record
from fedstill.results.report import words
from fedstill.results.report.answers import Answers, Bin, Disagreement, answers, confusion, disagreements, reliability
from fedstill.results.report.material import Material, ReadCorpus
from fedstill.results.report.words import Remark
from fedstill.results.runs import POOLED, Run
from fedstill.wire.messages import SERVER, STAGES

MANY = 10
"""With more clients than this, a chart has their lowest, mean and highest instead of a line each."""

Curves = dict[str, dict[int, float]]
"""Name -> round -> value."""
Lines = Sequence[Mapping[str, Any]]
"""Of one of the record's files."""


@dataclass(frozen=True)
class Grid:
    """A table of numbers with names on both sides; None where nothing is known."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Party:
    """A client or the server: its model, and how many rows it has."""

    name: str
    model: str
    rows: tuple[int | None, int | None, int | None] = (None, None, None)
    """For training, validation and testing."""


@dataclass(frozen=True)
class RunSeries:
    """Everything that a page says about one run; scores are fractions."""

    run: Run
    rounds: int
    epsilon: float | None
    """The most that a client spent; None if nothing was promised."""
    facts: dict[str, str]
    parties: tuple[Party, ...]
    scores: Curves
    by_domain: Curves
    losses: Curves
    spent: Curves
    weights: Grid | None
    bytes: Curves
    seconds: Curves
    members: tuple[Member, ...]
    verdict: str | None
    server_by_domain: dict[str, float]
    remarks: tuple[Remark, ...]
    repeat: dict[str, str]
    experiment: str
    holdings: Grid | None = None
    confusion: Grid | None = None
    reliability: tuple[Bin, ...] = ()
    answered_by: str = ""
    disagreements: tuple[Disagreement, ...] = ()
    is_finished: bool = True
    missing: dict[str, str] = field(default_factory=dict)
    """Part of the page -> why it is not there."""

    @property
    def title(self) -> str:
        """The method, and the seed."""
        return f"{self.run.method}, seed {self.run.seed}"

    @property
    def caption(self) -> str:
        """What the scores are."""
        return METRICS[self.run.metric].caption

    @property
    def by_round(self) -> dict[int, float]:
        """The score that stands for the run: the server's, or the mean over clients if there is no server model."""
        return _headline(self.run, self.scores)


def series(run: Run, read: ReadCorpus = load, alone: Run | None = None, has_texts: bool = True) -> RunSeries:
    """A run, finished or so far; `alone` is the run of the same seed in which everybody works alone, if any."""
    record = Record(run.folder)
    material = Material.of(record, read)
    measured = [line for line in record.metrics if "split" in line and run.metric in line]
    found = {name: stored for name in (SERVER, *run.client_names) if (stored := answers(run.folder, name)) is not None}
    shown = [found[SERVER]] if SERVER in found else list(found.values())
    is_of_tasks = material.corpus is not None and material.corpus.label_tasks is not None
    return RunSeries(
        run=run,
        rounds=int(record.so_far.get("rounds", 0)),
        epsilon=max((record.so_far.get("epsilon") or {}).get("spent", {}).values(), default=None),
        facts=words.facts(run, record, material),
        parties=_parties(run, record.so_far.get("models", {}), material.parts),
        scores=_scores([line for line in measured if line["split"] == POOLED], run.metric),
        by_domain=by_domain(measured, run.metric, run.server is not None),
        losses=losses(record.metrics),
        spent=spent(record.metrics),
        weights=_weights(record),
        bytes=bytes_sent(record.ledger),
        seconds=seconds_spent(record.log),
        members=tuple(record.members) if record.is_finished else (),
        verdict=record.so_far.get("verdict"),
        server_by_domain=_server_by_domain(run),
        remarks=words.remarks(record, material),
        repeat=words.repeat(run, record, material),
        experiment=material.experiment,
        holdings=_holdings(material),
        confusion=_confusion(shown, run.labels),
        # With several tasks only some of the labels may be answered, which the stored logits do not say.
        reliability=() if is_of_tasks else tuple(reliability(shown)),
        answered_by=SERVER if SERVER in found else "all clients together",
        disagreements=_disagreements(found, alone, material, run) if has_texts else (),
        is_finished=record.is_finished,
        missing=_missing(material, has_answers=bool(found), has_texts=has_texts) if record.is_finished else {},
    )


def score_by_round(run: Run) -> dict[int, float]:
    """The score that stands for a run after every round: the server's, or the clients' mean without a server model."""
    measured = [line for line in Record(run.folder).metrics if line.get("split") == POOLED and run.metric in line]
    return _headline(run, _scores(measured, run.metric))


def mean_of(curves: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """The mean of curves in the rounds that all of them have."""
    every = list(curves)
    shared = sorted(set.intersection(*map(set, every))) if every else []
    return {number: fmean(curve[number] for curve in every) for number in shared}


def fewer(curves: Curves, kept: Sequence[str] = (SERVER,)) -> Curves:
    """The curves; of many only the kept ones, and the lowest, mean and highest of the others in every round."""
    others = {name: curve for name, curve in curves.items() if name not in kept}
    if len(others) <= MANY:
        return curves
    rounds = sorted({number for curve in others.values() for number in curve})
    values = {number: [curve[number] for curve in others.values() if number in curve] for number in rounds}
    few = {
        f"{what} of {len(others)}": {number: float(of(values[number])) for number in rounds}
        for what, of in (("highest", max), ("mean", fmean), ("lowest", min))
    }
    return {name: curve for name, curve in curves.items() if name in kept} | few


def spent(metrics: Lines) -> Curves:
    """The epsilon that every client had spent after each round."""
    curves: Curves = {}
    for line in metrics:
        if line.get("observation") == EPSILON:
            curves.setdefault(line["party"], {})[line["round"]] = float(line["values"]["spent"])
    return curves


def _holdings(material: Material) -> Grid | None:
    corpus, parts = material.corpus, material.parts
    if corpus is None or parts is None or not parts.clients:
        return None
    counts, names = holdings(corpus, parts)
    return Grid(names, parts.clients, tuple(tuple(row) for row in counts.tolist()))


def _missing(material: Material, has_answers: bool, has_texts: bool) -> dict[str, str]:
    missing = {}
    if not has_answers:
        missing["answers"] = "The run keeps no predictions, so there are no confusion matrix, reliability and texts."
    if material.problem:
        missing["corpus"] = f"No texts and no picture of who holds what: the corpus cannot be read. {material.problem}"
    if not material.is_simulated:
        missing["texts"] = "Only pages about simulations have texts, and by its record this run is not one."
    elif not has_texts:
        missing["texts"] = "Texts were left out on demand."
    return missing


def _disagreements(
    found: Mapping[str, Answers], alone: Run | None, material: Material, run: Run
) -> tuple[Disagreement, ...]:
    corpus, parts = material.corpus, material.parts
    if corpus is None or corpus.images is not None or SERVER not in found:
        return ()
    before = {} if alone is None else {name: answers(alone.folder, name) for name in run.client_names}
    texts = corpus.texts
    if corpus.pairs is not None:
        texts = [f"{text} / {pair}" for text, pair in zip(texts, corpus.pairs, strict=True)]
    return tuple(
        disagreements(
            found[SERVER],
            {name: stored for name, stored in found.items() if name != SERVER},
            {name: stored for name, stored in before.items() if stored is not None},
            {} if parts is None else {name: rows for name, rows in parts.test.items() if len(rows)},
            texts,
            run.labels,
        )
    )


def _confusion(shown: Sequence[Answers], labels: tuple[str, ...]) -> Grid | None:
    if not shown:
        return None
    counts = confusion(shown, len(labels))
    return Grid(labels, labels, tuple(tuple(row) for row in counts.tolist()))


def _parties(run: Run, models: Mapping[str, str], parts: Partition | None) -> tuple[Party, ...]:
    rows: dict[str, tuple[int | None, int | None, int | None]] = {}
    if parts is not None:
        for name in parts.clients:
            each = (part.get(name) for part in (parts.train, parts.validation, parts.test))
            rows[name] = tuple(None if one is None else len(one) for one in each)  # type: ignore[assignment]
    names = (*([SERVER] if run.server is not None else []), *run.client_names)
    return tuple(Party(name, models.get(name, ""), rows.get(name, (None, None, None))) for name in names)


def _headline(run: Run, scores: Curves) -> dict[int, float]:
    return scores.get(SERVER, {}) if run.server is not None else mean_of(scores.values())


def _scores(measured: Lines, metric: str) -> Curves:
    """Every party's score at the end of each round in which it was measured, the server first."""
    return last_stage(measured, metric, lambda line: str(line["party"]))


def by_domain(measured: Lines, metric: str, has_server: bool) -> Curves:
    """The server's score on every domain; without a server model, each client's on its own."""

    def is_shown(line: Mapping[str, Any]) -> bool:
        kind, _, domain = str(line["split"]).partition("/")
        return kind == POOLED and bool(domain) and str(line["party"]) == (SERVER if has_server else domain)

    shown = [line for line in measured if is_shown(line)]
    return last_stage(shown, metric, lambda line: line["split"].partition("/")[2])


def last_stage(lines: Lines, metric: str, name: Callable[[Mapping[str, Any]], str]) -> Curves:
    """Scores by name, at the end of each round; the server first."""
    curves: Curves = {}
    for line in sorted(lines, key=lambda line: (line["round"], STAGES.index(line["stage"]))):
        curves.setdefault(name(line), {})[line["round"]] = float(line[metric])
    return {key: curves[key] for key in sorted(curves, key=lambda key: (key != SERVER, key))}


def losses(metrics: Lines) -> Curves:
    """What the method observed of losses: the clients' (AdaFD), or teacher's and student's."""
    curves: Curves = {}
    for line in metrics:
        if line.get("observation") == "losses":
            for name, value in line["values"].items():
                curves.setdefault(name, {})[line["round"]] = float(value)
        elif line.get("observation") == "mutual":
            for name, value in line["values"].items():
                curves.setdefault(f"{line['party']}: {name.replace('_', ' ')}", {})[line["round"]] = float(value)
    return curves


def _weights(record: Record) -> Grid | None:
    """Every teacher's weight in every round."""
    seen = {line["round"]: line["values"] for line in record.metrics if line.get("observation") == "weights"}
    if not seen:
        return None
    teachers = tuple(sorted({name for values in seen.values() for name in values}))
    rounds = sorted(seen)
    return Grid(
        teachers,
        tuple(str(number) for number in rounds),
        tuple(tuple(seen[number].get(name) for number in rounds) for name in teachers),
    )


def bytes_sent(ledger: Lines) -> Curves:
    """Bytes on the wire by direction and message, for all recipients."""
    curves: Curves = {}
    for line in ledger:
        message = "requests" if line["message"] == "NoneType" else line["message"]
        curve = curves.setdefault(f"{line['direction']}: {message}", {})
        curve[line["round"]] = curve.get(line["round"], 0.0) + line["encoded"] * line["recipients"]
    return curves


PARTS = {"phases": "training and predicting", "state": "models to and from memory", "rest": "everything else"}


def seconds_spent(log: Lines) -> Curves:
    """Where the time of a round went."""
    timed = {line["round"]: line["seconds"] for line in log if "seconds" in line}
    return {
        meaning: {number: float(spent[part]) for number, spent in timed.items() if part in spent}
        for part, meaning in PARTS.items()
        if timed
    }


def _server_by_domain(run: Run) -> dict[str, float]:
    domains = run.domains() if run.server is not None else set()
    return {name: value for name in sorted(domains) if (value := run.domain(name)) is not None}
