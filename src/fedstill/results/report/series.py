"""A record as plain series and tables: the one place that knows what a run's files mean to a reader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

from fedstill.common.errors import FedstillError
from fedstill.common.units import size_text
from fedstill.data.corpora import CorpusSpec, load
from fedstill.data.corpus import Corpus
from fedstill.data.partition import Partition
from fedstill.learning.metrics import METRICS
from fedstill.results.members import Member
from fedstill.results.picture import holdings
from fedstill.results.record import Record
from fedstill.results.report.answers import Answers, Bin, Disagreement, answers, confusion, disagreements, reliability
from fedstill.results.runs import POOLED, Run
from fedstill.wire.messages import SERVER, STAGES

SIMULATIONS = ("local", "torchrun")
"""Engines whose texts are all on this machine; a page about any other has no texts and nothing from a corpus."""
MANY = 10
"""With more clients than this, a chart has their lowest, mean and highest instead of a line each."""
HASHED = ("experiment.yaml", "partition.safetensors", "metrics.jsonl", "ledger.jsonl")

Curves = dict[str, dict[int, float]]
"""Name -> round -> value."""
ReadCorpus = Callable[[CorpusSpec, Sequence[str] | None], Corpus]


@dataclass(frozen=True)
class Grid:
    """A table of numbers with names on both sides; None where nothing is known."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Remark:
    """Something that went wrong, or was known to: who said it, in which rounds, and what."""

    who: str
    rounds: str
    says: str


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
    engine: str
    rounds: int
    epsilon: float | None
    facts: dict[str, str]
    parties: tuple[Party, ...]
    scores: Curves
    by_domain: Curves
    losses: Curves
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
    """A finished run; `alone` is the run of the same seed in which nobody learns from anybody, if there is one."""
    record = Record(run.folder)
    summary, measured = record.summary, [line for line in record.metrics if "split" in line and run.metric in line]
    engine, settings = _engine(record), _settings(run.folder)
    is_simulated = engine in SIMULATIONS
    parts = _partition(run.folder) if is_simulated else None
    found = {name: stored for name in (SERVER, *run.client_names) if (stored := answers(run.folder, name)) is not None}
    shown = [found[SERVER]] if SERVER in found else list(found.values())
    whose = SERVER if SERVER in found else "all clients together"
    missing: dict[str, str] = {}
    if not found:
        missing["answers"] = "The run keeps no predictions, so there are no confusion matrix, reliability and texts."
    corpus, problem = _corpus(record, settings, read) if is_simulated else (None, "")
    if problem:
        missing["corpus"] = (
            f"The corpus cannot be read here, so there are no texts and no picture of who holds what: {problem}"
        )
    texts: list[Disagreement] = []
    if not is_simulated:
        missing["texts"] = "Only pages about simulations have texts, and by its record this run is not one."
    elif not has_texts:
        missing["texts"] = "Texts were left out on demand."
    elif corpus is not None and corpus.images is None and SERVER in found:
        texts = _disagreements(found, alone, parts, corpus, run)
    is_of_tasks = corpus is not None and corpus.label_tasks is not None
    return RunSeries(
        run=run,
        engine=engine,
        rounds=int(summary.get("rounds", 0)),
        epsilon=_epsilon(summary.get("epsilon")),
        facts=_facts(run, summary, settings, parts),
        parties=_parties(run, summary.get("models", {}), parts),
        scores=_scores([line for line in measured if line["split"] == POOLED], run.metric),
        by_domain=_by_domain(measured, run),
        losses=_losses(record),
        weights=_weights(record),
        bytes=_bytes(record),
        seconds=_seconds(record),
        members=tuple(record.members),
        verdict=record.verdict,
        server_by_domain=_server_by_domain(run),
        remarks=(*_dropped(corpus, parts), *_remarks(record)),
        repeat=_repeat(record, run),
        experiment=_read_text(run.folder / "experiment.yaml") if is_simulated else "",
        holdings=_holdings(corpus, parts),
        confusion=_confusion(shown, run.labels),
        # With several tasks only some of the labels may be answered, which the stored logits do not say.
        reliability=() if is_of_tasks else tuple(reliability(shown)),
        answered_by=whose,
        disagreements=tuple(texts),
        missing=missing,
    )


def score_by_round(run: Run) -> dict[int, float]:
    """The score that stands for a run after every round: the server's, or the clients' mean without a server model."""
    measured = [line for line in Record(run.folder).metrics if line.get("split") == POOLED and run.metric in line]
    return _headline(run, _scores(measured, run.metric))


def reading_once(read: ReadCorpus = load) -> ReadCorpus:
    """Reads every corpus once, for runs that share it; a corpus that cannot be read raises the same error again."""
    kept: dict[str, Corpus | FedstillError | OSError] = {}

    def kept_or_read(spec: CorpusSpec, labels: Sequence[str] | None) -> Corpus:
        key = f"{spec!r} {labels!r}"
        if key not in kept:
            try:
                kept[key] = read(spec, labels)
            except (FedstillError, OSError) as error:
                kept[key] = error
        found = kept[key]
        if isinstance(found, Exception):
            raise found
        return found

    return kept_or_read


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
        f"{what} of {len(others)} clients": {number: float(of(values[number])) for number in rounds}
        for what, of in (("highest", max), ("mean", fmean), ("lowest", min))
    }
    return {name: curve for name, curve in curves.items() if name in kept} | few


def _engine(record: Record) -> str:
    """The engine that the record names; without a name nothing is assumed."""
    return str(record.summary.get("engine", "unknown"))


def _epsilon(value: Any) -> float | None:
    """The privacy spent: a number, or the largest of several parties'."""
    if isinstance(value, Mapping):
        known = [one for each in value.values() if (one := _epsilon(each)) is not None]
        return max(known, default=None)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _settings(folder: Path) -> dict[str, Any]:
    """The experiment as plain values: it was checked before the run, and checking it again takes long."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(_read_text(folder / "experiment.yaml"), loader) or {}


def _partition(folder: Path) -> Partition | None:
    path = folder / "partition.safetensors"
    return Partition.from_arrays(load_file(path)) if path.is_file() else None


def _corpus(record: Record, settings: Mapping[str, Any], read: ReadCorpus) -> tuple[Corpus | None, str]:
    """The run's corpus as it is now, if it still is what the run was tested on; otherwise why not."""
    if "corpus" not in settings:
        return None, "the run has no experiment.yaml."
    try:
        corpus = read(CorpusSpec.model_validate(settings["corpus"]), settings.get("labels"))
    except (FedstillError, OSError, ValueError, ImportError) as error:
        return None, str(error)
    tested = next((one for name in (SERVER, *record.summary["clients"]) if (one := answers(record.folder, name))), None)
    is_same = tested is None or (
        tested.rows.max(initial=-1) < len(corpus) and np.array_equal(corpus.labels[tested.rows], tested.labels)
    )
    return (corpus, "") if is_same else (None, "it has changed since the run.")


def _holdings(corpus: Corpus | None, parts: Partition | None) -> Grid | None:
    if corpus is None or parts is None or not parts.clients:
        return None
    counts, names = holdings(corpus, parts)
    return Grid(names, parts.clients, tuple(tuple(row) for row in counts.tolist()))


def _disagreements(
    found: Mapping[str, Answers], alone: Run | None, parts: Partition | None, corpus: Corpus, run: Run
) -> list[Disagreement]:
    before = {} if alone is None else {name: answers(alone.folder, name) for name in run.client_names}
    own = {} if parts is None else {name: rows for name, rows in parts.test.items() if len(rows)}
    texts = corpus.texts
    if corpus.pairs is not None:
        texts = [f"{text} / {pair}" for text, pair in zip(texts, corpus.pairs, strict=True)]
    return disagreements(
        found[SERVER],
        {name: stored for name, stored in found.items() if name != SERVER},
        {name: stored for name, stored in before.items() if stored is not None},
        own,
        texts,
        run.labels,
    )


def _confusion(shown: Sequence[Answers], labels: tuple[str, ...]) -> Grid | None:
    if not shown:
        return None
    counts = confusion(shown, len(labels))
    return Grid(labels, labels, tuple(tuple(row) for row in counts.tolist()))


def _facts(
    run: Run, summary: Mapping[str, Any], settings: Mapping[str, Any], parts: Partition | None
) -> dict[str, str]:
    engine = summary.get("engine") or "unknown"
    facts = {
        "Experiment": run.name,
        "Method": run.method + (f" ({run.role})" if run.role != "method" else ""),
        "Labels": ", ".join(run.labels) if len(run.labels) <= 14 else f"{len(run.labels)}",
        "Clients": f"{len(run.client_names)}",
        "Models": ", ".join(dict.fromkeys(summary.get("models", {}).values())),
        "Rounds": str(summary.get("rounds", "")),
        "Engine": f"{engine}{'' if engine in SIMULATIONS else ': not a simulation'}",
    }
    if engine in SIMULATIONS:
        corpus = settings.get("corpus") or {}
        facts["Corpus"] = str(corpus.get("name") or Path(corpus.get("path") or "").name)
        facts["Partition"] = str((settings.get("partition") or {}).get("kind", ""))
    if parts is not None:
        train, test = (sum(map(len, each.values())) for each in (parts.train, parts.test))
        facts["Rows"] = f"{train:,} private for training, {len(parts.public):,} public, {test:,} for testing"
    return {name: value for name, value in facts.items() if value}


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


def _scores(measured: Sequence[Mapping[str, Any]], metric: str) -> Curves:
    """Every party's score at the end of each round in which it was measured, the server first."""
    return _last_stage(measured, metric, lambda line: str(line["party"]))


def _by_domain(measured: Sequence[Mapping[str, Any]], run: Run) -> Curves:
    """The server's score on every domain; without a server model, each client's on its own."""

    def is_shown(line: Mapping[str, Any]) -> bool:
        kind, _, domain = str(line["split"]).partition("/")
        return kind == POOLED and bool(domain) and str(line["party"]) == (SERVER if run.server is not None else domain)

    shown = [line for line in measured if is_shown(line)]
    return _last_stage(shown, run.metric, lambda line: line["split"].partition("/")[2])


def _last_stage(lines: Sequence[Mapping[str, Any]], metric: str, name: Callable[[Mapping[str, Any]], str]) -> Curves:
    curves: Curves = {}
    for line in sorted(lines, key=lambda line: (line["round"], STAGES.index(line["stage"]))):
        curves.setdefault(name(line), {})[line["round"]] = float(line[metric])
    return {key: curves[key] for key in sorted(curves, key=lambda key: (key != SERVER, key))}


def _losses(record: Record) -> Curves:
    """What the method observed of losses: the clients' (AdaFD), or teacher's and student's."""
    curves: Curves = {}
    for line in record.metrics:
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


def _bytes(record: Record) -> Curves:
    """Bytes on the wire by direction and message, for all recipients."""
    curves: Curves = {}
    for line in record.ledger:
        message = "requests" if line["message"] == "NoneType" else line["message"]
        curve = curves.setdefault(f"{line['direction']}: {message}", {})
        curve[line["round"]] = curve.get(line["round"], 0.0) + line["encoded"] * line["recipients"]
    return curves


PARTS = {"phases": "training and predicting", "state": "models to and from memory", "rest": "everything else"}


def _seconds(record: Record) -> Curves:
    """Where the time of a round went."""
    timed = {line["round"]: line["seconds"] for line in record.log if "seconds" in line}
    return {
        words: {number: float(spent[part]) for number, spent in timed.items() if part in spent}
        for part, words in PARTS.items()
        if timed
    }


def _server_by_domain(run: Run) -> dict[str, float]:
    domains = run.domains() if run.server is not None else set()
    return {name: value for name in sorted(domains) if (value := run.domain(name)) is not None}


def _remarks(record: Record) -> list[Remark]:
    """Cautions before the run, then what was noted during it, each once with its rounds."""
    cautions = record.cautions or record.summary.get("cautions", [])
    remarks = [Remark("before the run", "", caution) for caution in cautions]
    seen: dict[tuple[str, str], list[int]] = {}
    for line in record.log:
        if "note" in line:
            seen.setdefault((line["party"], line["note"]), []).append(line["round"])
    if not record.log:
        remarks += [Remark("run", "", note) for note in record.summary.get("notes", [])]
    return remarks + [Remark(who, spans(rounds), says) for (who, says), rounds in seen.items()]


def _dropped(corpus: Corpus | None, parts: Partition | None) -> list[Remark]:
    """Rows that were read and not used, by reason."""
    counts = {} if corpus is None else {why: many for why, many in corpus.counts.items() if why != "rows read"}
    unused = {} if parts is None else parts.counts
    says = ", ".join(f"{why}: {many:,}" for why, many in {**counts, **unused}.items() if many)
    total = "" if corpus is None or "rows read" not in corpus.counts else f" of {corpus.counts['rows read']:,} read"
    return [Remark("corpus", "", f"Rows not used{total}. {says}.")] if says else []


def spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1–3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in parts)


def _repeat(record: Record, run: Run) -> dict[str, str]:
    summary = record.summary
    is_simulated = _engine(record) in SIMULATIONS
    facts = {
        "Command": f"fedstill run {run.folder / 'experiment.yaml'} --out again" if is_simulated else "",
        "Seed": str(run.seed),
        "Versions": ", ".join(f"{name} {version}" for name, version in summary.get("versions", {}).items())
        or "not in this record",
        "Test rows (sha256)": run.test_fingerprint,
    }
    for name in HASHED:
        if (path := record.folder / name).is_file():
            facts[f"{name} (sha256)"] = hashlib.sha256(path.read_bytes()).hexdigest()
    facts["Bytes"] = f"{size_text(run.bytes_up)} up, {size_text(run.bytes_down)} down"
    facts["Seconds"] = f"{run.seconds:.1f}"
    return {name: value for name, value in facts.items() if value}


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
