"""A model card, written from a record: data, method, scores, gains, bytes, privacy, how to load and repeat it.

It holds no text of any row, no path of this machine, and of a real federation neither rows nor names of sites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.common.units import size_text
from fedstill.common.words import counted
from fedstill.data.artefacts import WHEELS
from fedstill.data.corpora import EMBEDDED
from fedstill.data.partition import Partition
from fedstill.results.hub.scores import OWN, Scored, over_seeds, scored, scored_by_itself, table
from fedstill.results.record import Record
from fedstill.results.report.material import SIMULATIONS, partition_of
from fedstill.results.report.words import facts_of_rows
from fedstill.results.runs import Run, load_runs
from fedstill.wire.messages import SERVER

HUB_METRICS = {
    "f1": ("f1", {"average": "weighted"}),
    "macro_f1": ("f1", {"average": "macro"}),
    "positive_f1": ("f1", {"average": "binary"}),
    "accuracy": ("accuracy", None),
    "matthews": ("matthews_correlation", None),
    "generated_accuracy": ("accuracy", None),
}
"""Our metrics as the Hub names them."""
EXPERIMENT = "experiment.yaml"


@dataclass(frozen=True)
class Subject:
    """The model that a card is about."""

    record: Record
    run: Run
    party: str
    repository: str
    language: str | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether everything that the record says was on one machine; otherwise it tells of others' rows."""
        return self.record.summary.get("engine", "") in SIMULATIONS

    @property
    def is_of_a_site(self) -> bool:
        """Whether it is the record that a site has of itself."""
        return not self.is_simulated and SERVER not in self.record.summary.get("models", {})

    @property
    def model(self) -> str:
        """The model's name; of a folder only its last part."""
        return bare(str(self.record.summary.get("models", {}).get(self.party, "unknown")))

    @property
    def is_of_transformers(self) -> bool:
        """Whether `AutoModelForSequenceClassification` loads it."""
        path = self.record.model_folder(self.party) / "config.json"
        kinds = json.loads(path.read_text(encoding="utf-8")).get("architectures") or [] if path.is_file() else []
        return any(str(kind).endswith("ForSequenceClassification") for kind in kinds)

    @property
    def reads_images(self) -> bool:
        """Whether it classifies images."""
        folder = self.record.model_folder(self.party)
        return not any(folder.glob("*token*")) and not (folder / "hashed_ngrams.json").exists()

    @property
    def corpus(self) -> Mapping[str, Any]:
        """The corpus of a simulation; a federation's experiment names one that nobody read."""
        return self.record.settings.get("corpus") or {} if self.is_simulated else {}

    @property
    def data_set(self) -> str:
        """A name for the rows: the corpus's, or its file's."""
        if not self.is_simulated:
            return "rows of a federation"
        name = str(self.corpus.get("name") or "")
        file = bare(str(self.corpus.get("path") or ""))
        own = "own rows" if file.startswith("rows-") else file  # a run's own copy of rows that a program held
        return f"{name} {self.corpus.get('task') or ''}".strip() if name else own


def bare(name: str) -> str:
    """A name as it is; of a path of this machine only the last part."""
    return Path(name).name if Path(name).is_absolute() else name


def card(subject: Subject) -> str:
    """README.md of the model: metadata for the Hub, then pages for people."""
    parts = partition_of(subject.record.folder) if subject.is_simulated else None
    found = (
        scored_by_itself(subject.record, subject.run, subject.party)
        if subject.is_of_a_site
        else scored(subject.record, subject.run, subject.party, parts)
    )
    sections = [
        f"# {subject.repository.partition('/')[2]}",
        _opening(subject),
        "## How to load it",
        _loading(subject),
        "## Data",
        *_data(subject, parts),
        "## Method",
        *_method(subject),
        "## Scores",
        *_scores(subject, found),
        *_gains(subject),
        "## What travelled, and what it may tell",
        *_travelled(subject),
        "## How to repeat it",
        _repeating(subject),
    ]
    return f"---\n{_metadata(subject, found)}\n---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _metadata(subject: Subject, found: list[Scored]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    task = "image-classification" if subject.reads_images else "text-classification"
    corpus = str(subject.corpus.get("name") or "")
    is_on_hub = "/" in corpus
    base = subject.model.partition("[")[0]
    results = [
        EvalResult(
            task_type=task,
            dataset_type=corpus if is_on_hub else "own",
            dataset_name=subject.data_set or "own",
            dataset_split="test",
            metric_type=HUB_METRICS[one.metric][0],
            metric_args=HUB_METRICS[one.metric][1],
            metric_name=one.metric,
            metric_value=round(one.value, 4),
        )
        for one in found
        if one.rows in ("of all", OWN)
    ]
    known = ModelCardData(
        language=subject.language or ("en" if corpus in EMBEDDED and not subject.reads_images else None),
        tags=["federated-learning", "knowledge-distillation", "fedstill", subject.run.algorithm.lower()],
        library_name="transformers" if subject.is_of_transformers else "fedstill",
        pipeline_tag=task,
        metrics=list(dict.fromkeys(HUB_METRICS[one.metric][0] for one in found)) or None,
        datasets=[corpus] if is_on_hub else None,
        base_model=base if base.count("/") == 1 else None,
        model_name=subject.repository.partition("/")[2],
        eval_results=results or None,
    )
    return str(known.to_yaml()).strip()


def _opening(subject: Subject) -> str:
    run, reads = subject.run, "image" if subject.reads_images else "text"
    many = counted(len(run.client_names), "client" if subject.is_simulated else "site")
    whose = {SERVER: "the server's model"}.get(
        subject.party, f"a {'client' if subject.is_simulated else 'site'}'s model"
    )
    sites = "sites" if subject.is_of_a_site else many  # a site knows of no other
    where = (
        f"simulated on one machine, with {many}" if subject.is_simulated else f"between {sites} on their own machines"
    )
    labels = ", ".join(f"`{label}`" for label in run.labels[:20]) + (" ..." if len(run.labels) > 20 else "")
    return (
        f"A {reads} classifier (`{subject.model}`) for the labels {labels}: {whose} of a federation {where}, after "
        f"{counted(int(subject.record.summary.get('rounds', 0)), 'round')} of {run.method}. Made with fedstill."
    )


def _loading(subject: Subject) -> str:
    length = int((subject.record.settings.get("train") or {}).get("max_length") or 128)
    if subject.is_of_transformers:
        return (
            "```python\nfrom transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline\n\n"
            f'model = AutoModelForSequenceClassification.from_pretrained("{subject.repository}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{subject.repository}")\n'
            'classify = pipeline("text-classification", model=model, tokenizer=tokenizer)\n'
            f'print(classify("...", truncation=True, max_length={length}))\n```\n\n'
            f"It was trained on the first {length} tokens of each text."
        )
    last = "model.module  # a torch.nn.Module" if subject.reads_images else 'print(model.predict(["..."]).labels)'
    return (
        "It is no model of transformers; `pip install fedstill` loads it:\n\n"
        "```python\nfrom huggingface_hub import snapshot_download\n\nimport fedstill\n\n"
        f'model = fedstill.load_model(snapshot_download("{subject.repository}"))\n{last}\n```'
    )


def _data(subject: Subject, parts: Partition | None) -> list[str]:
    if subject.is_of_a_site:
        return [
            "The rows of this site never left it, and nothing is known here of the others'. This card names no site. "
            "Scores below are on the site's own test rows."
        ]
    if not subject.is_simulated:
        return [
            "The sites' rows never left them: neither their texts nor their labels are known here, and this card does "
            "not name the sites. Scores below are on the centre's own test rows."
        ]
    name, partition = str(subject.corpus.get("name") or ""), subject.record.settings.get("partition") or {}
    known = {
        "Corpus": subject.data_set,
        "Its licence": EMBEDDED[name].licence if name in EMBEDDED else "",
        "Divided among clients by": str(partition.get("kind") or ""),
        "Rows": facts_of_rows(parts) if parts is not None else "",
        "The model began as": _origin(subject.model),
    }
    return ["\n".join(["| | |", "|---|---|", *(f"| {what} | {said} |" for what, said in known.items() if said)])]


def _origin(model: str) -> str:
    wheel = WHEELS.get(model.partition("[")[0])
    return f"`{model}`" + (f" ({wheel.what}; {wheel.licence})" if wheel is not None else "")


def _method(subject: Subject) -> list[str]:
    known = algorithms.known(Algorithm).get(subject.run.algorithm)
    paper = f", from {known.paper}" if known is not None and known.paper else ""
    settings = subject.record.settings
    blend = f" Replies were combined by `blend: {settings['blend']}`." if settings.get("blend") else ""
    return [f"{subject.run.method}{paper}, {counted(int(subject.record.summary['rounds']), 'round')}.{blend}"]


def _scores(subject: Subject, found: list[Scored]) -> list[str]:
    if not found:
        return ["This model was not measured on test rows."]
    said = ["\n".join(table(found))]
    if any(one.interval for one in found):
        said.append("Intervals are over resampled test rows (10,000 resamples).")
    try:
        twins = load_runs([subject.record.folder.resolve().parent]) if subject.party == SERVER else []
    except FedstillError:  # a neighbour that cannot be read is not part of this model's card
        twins = []
    alike = [run for run in twins if (run.name, run.method) == (subject.run.name, subject.run.method)]
    return [*said, over_seeds(alike, subject.run.metric)]


def _gains(subject: Subject) -> list[str]:
    """What the clients had alone and have now; a federation's sites are numbered."""
    found = subject.record.members
    if not any(member.score for member in found):
        return []
    who = "client" if subject.is_simulated else "site"
    lines = [f"| {who} | model | alone | after | gain |", "|---|---|---|---|---|"]
    for number, member in enumerate(found, 1):
        name = member.name if subject.is_simulated else "this site" if subject.is_of_a_site else f"{who} {number}"
        score = member.score
        cells = (
            ["not told"] * 3 if score is None else [f"{100 * n:.1f}" for n in (score.alone, score.after, score.gain)]
        )
        lines.append(f"| {name} | {bare(member.model)} | {' | '.join(cells)} |")
    verdict = subject.record.verdict if subject.is_simulated else ""
    return ["## What clients gained", "\n".join(lines), verdict or ""]


def _travelled(subject: Subject) -> list[str]:
    run, wire = subject.run, subject.record.settings.get("wire") or {}
    masks = "hid single replies from the server" if wire.get("mask") else "were not used: the server saw every reply"
    private = (subject.record.privacy or "").removeprefix("privacy: ")
    promise = private or "none was promised (no differential privacy)"
    ways = ("left this site", "reached it") if subject.is_of_a_site else ("up", "down")
    return [
        f"- Bytes: {size_text(run.bytes_up)} {ways[0]} and {size_text(run.bytes_down)} {ways[1]}, over the whole run.\n"
        f"- Privacy: {promise}.\n- Masks {masks}.\n"
        "- A model may repeat something of the rows that it was trained on."
    ]


def _repeating(subject: Subject) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in subject.record.summary.get("versions", {}).items())
    made = f"Seed {subject.run.seed}; {versions or 'versions not recorded'}."
    if not subject.is_simulated:
        return f"{made} Only the sites have the rows, so only they together can repeat it."
    own = "" if subject.corpus.get("name") else " Put the path of the rows into `corpus: path:` first."
    return f"`fedstill run {EXPERIMENT}` with the file beside this card.{own} {made}"
