"""The record: the files that a run writes, and reading them."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS, file_name, undamaged, write_whole
from fedstill.common.plugins import nearest
from fedstill.common.rows import Rows
from fedstill.common.version import VERSION
from fedstill.common.words import listed
from fedstill.data.corpora import CorpusSpec
from fedstill.learning.fast import Fast, accelerate
from fedstill.models import Model, load
from fedstill.plan.caution import Caution
from fedstill.plan.plan import Plan
from fedstill.results.chance import with_chances
from fedstill.results.members import ALONE, Member, causes, faults, members, verdict
from fedstill.results.privacy import in_words, spent
from fedstill.wire.ledger import condensed
from fedstill.wire.messages import SERVER, STAGES

Measurement = dict[str, Any]
ABOUT = ("round", "party", "stage", "split", "rows")
"""What a measurement says besides its scores."""


@dataclass(frozen=True, init=False)
class Record:
    """A run folder: experiment, metrics, ledger, models, predictions and summary.

    >>> record = fedstill.Record("runs/shops/seed-0")
    >>> record.f1("server"), record.gain()[0]["gain"]
    (0.81, 0.12)
    """

    folder: Path

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "folder", Path(folder))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The last round's scores, costs and names; it exists when the run is finished."""
        try:
            return json.loads((self.folder / "summary.json").read_text())  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise FedstillError(self._why_unfinished()) from error
        except ValueError as error:
            raise FedstillError(
                f"{self.folder / 'summary.json'} cannot be read ({error}). Remove it; then `fedstill run --resume "
                f"{self.folder}` writes it again, from the last checkpoint if there is one, else by training again."
            ) from error

    def _why_unfinished(self) -> str:
        if (self.folder / "experiment.yaml").exists():
            return f"{self.folder} holds no finished run; continue it with: fedstill run --resume {self.folder}"
        inside = sorted(str(path.parent) for path in self.folder.glob("*/experiment.yaml"))
        return (
            f"{self.folder} is no run folder; {f'give one of {listed(inside)}' if inside else 'there is none in it'}."
        )

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment as plain values, with everything that was left to a default."""
        path = self.folder / "experiment.yaml"
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        if not path.is_file():
            return {}
        try:
            settings = yaml.load(path.read_text(encoding="utf-8"), loader)
        except yaml.YAMLError:
            settings = None
        if not isinstance(settings, dict) or not settings.keys() >= {"clients", "train"}:
            raise FedstillError(f"{path} was cut short or changed: restore it from a copy, or run again with --force.")
        return settings

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return (self.folder / "summary.json").exists()

    @cached_property
    def so_far(self) -> dict[str, Any]:
        """The summary; while the run is not finished, one of the rounds until now, and empty before they begin."""
        return self.summary if self.is_finished else _so_far(self)

    @cached_property
    def metrics(self) -> list[Measurement]:
        """Every measurement: a line a round, party, stage and split; and the method's own observations."""
        return list(read_lines(self.folder / "metrics.jsonl"))

    @cached_property
    def ledger(self) -> list[dict[str, Any]]:
        """Bytes by round, direction and message."""
        return list(read_lines(self.folder / "ledger.jsonl"))

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """Remarks made during the run, and where the time went."""
        return list(read_lines(self.folder / "log.jsonl"))

    @property
    def notes(self) -> list[str]:
        """Remarks made during the run: fallbacks, failures."""
        return [line["note"] for line in self.log if "note" in line]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows of the corpus were read, and how many were left out, by reason."""
        told = [line["begun"].get("corpus", {}) for line in self.log if "begun" in line]
        return dict(told[-1]) if told else {}

    @property
    def cautions(self) -> list[str]:
        """What the user was warned of before the first round."""
        return [line["caution"] for line in self.log if "caution" in line]

    @property
    def members(self) -> list[Member]:
        """What every client had alone and has after the run; empty if nobody learnt from anybody."""
        return [Member.from_json(values) for values in self.summary.get("members", [])]

    @property
    def rounds_alone(self) -> int:
        """How many rounds of training `alone` means in `members`."""
        return int(self.summary.get("alone_rounds", 1))

    @property
    def verdict(self) -> str | None:
        """Whether the clients are better off than alone; if not, who is not, and why."""
        return self.summary.get("verdict")

    @property
    def privacy(self) -> str | None:
        """What the clients have spent of their epsilon, in a sentence; None if nothing was promised."""
        return None if (spent := self.summary.get("epsilon")) is None else in_words(spent)

    def f1(self, party: str = SERVER, split: str = "test") -> float:
        """Weighted F1 of a party after the last round."""
        return self.score("f1", party, split)

    def score(self, metric: str, party: str = SERVER, split: str = "test") -> float:
        """Any metric of a party after the last round, by its name."""
        scores = self.summary["scores"]
        found = scores.get(SERVER) if party == SERVER else scores["clients"].get(party)
        if not found or split not in found:
            raise FedstillError(f"{self.folder}: nothing was measured for {party} on {split}.")
        if metric not in found[split]:
            raise FedstillError(f"{self.folder}: {metric} was not measured; there are {', '.join(found[split])}.")
        return float(found[split][metric])

    def gain(self) -> Rows:
        """What every client had alone, has after the run, and gained: on its own test rows and on those of all.

        Empty if nobody learnt from anybody. `.gain().to_pandas()` is a DataFrame.
        """
        rows = Rows()
        for member in self.members:
            row: dict[str, Any] = {"client": member.name, "model": member.model}
            for score, where in ((member.own, ""), (member.every, "_on_all")):
                for what in ("alone", "after", "gain"):
                    row[what + where] = None if score is None else getattr(score, what)
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """All measurements, a row a round, party, stage and split, as a `pandas.DataFrame`."""
        return Rows(line for line in self.metrics if "split" in line).to_pandas()

    def model(self, party: str = SERVER, trust_code: bool = False) -> Model:
        """A party's model, ready to predict; a class of somebody's own needs `trust_code`.

        It reads as many tokens of a text as it did in the run, and computes as quickly.
        """
        self.check_model(party)
        with undamaged(self.model_folder(party)):
            model = load(self.model_folder(party), trust_code)
        if self.settings:
            clients = self.settings["clients"]
            own = clients.get(party) if isinstance(clients, dict) else None
            train = own["train"] if isinstance(own, dict) and "train" in own else self.settings["train"]
            model.max_length = train["max_length"]
            accelerate(model.module, Fast.model_validate(self.settings.get("fast", {})))
        return model

    @property
    def usual_party(self) -> str:
        """Whose model is meant if nobody is named: the server's; in a record of one model, as at a site, that one."""
        found = sorted(path.name for path in (self.folder / MODELS).glob("*"))
        clients = self.summary["clients"] if self.is_finished else []
        return clients[0] if len(clients) == 1 and found == [file_name(clients[0])] else SERVER

    def check_model(self, party: str) -> None:
        """Say in a sentence why there is no model of that party, where there is none."""
        folder = self.model_folder(party)
        if not folder.is_dir():
            parties = [path.name for path in folder.parent.glob("*")]
            gone = "it kept no models." if self.is_finished else self._why_unfinished()
            raise FedstillError(f"{self.folder} has no model of {party!r}; {nearest(party, parties) or gone}")

    def labels_of(self, task: str | None = None) -> list[str]:
        """The labels that a text may have: all, or, if the run has several tasks, those of the named task."""
        labels: list[str] = self.summary["labels"]
        is_of_tasks = CorpusSpec.model_validate(self.settings["corpus"]).is_of_tasks
        tasks = sorted({label.partition("/")[0] for label in labels}) if is_of_tasks else []
        if task is None and not tasks:
            return labels
        if task not in tasks:
            wanted = f"it has no task {task!r}" if task is not None else "name one of them"
            raise FedstillError(
                f"this run has {'the tasks ' + ', '.join(tasks) if tasks else 'one task only'}: {wanted}."
            )
        return [label for label in labels if label.partition("/")[0] == task]

    def model_folder(self, party: str = SERVER) -> Path:
        """The folder of a party's model."""
        return self.folder / MODELS / file_name(party)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSON lines file; an incomplete last line is skipped."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def write_summary(
    record: Record,
    plan: Plan,
    crossed: dict[str, int],
    seconds: float,
    cautions: Sequence[Caution] = (),
    own_models: Mapping[str, str] | None = None,
) -> None:
    """Condense the metrics into `summary.json`; its presence says that the run is finished.

    `cautions` says what was known, before the run, to do harm; `own_models` are models that are not the plan's.
    """
    known = about(plan)
    known["models"] |= own_models or {}
    measured = [line for line in record.metrics if "split" in line]
    alone = alone_beside(record, known)
    rounds_alone = 1 if alone is None else plan.experiment.rounds
    found = members(measured, known["models"], plan.metrics[0], alone)
    found = with_chances(found, record.folder, plan.partition.test, len(plan.labels), plan.metrics[0])
    rounds, log = plan.experiment.rounds, record.log
    why = causes(record.metrics, log, known["models"], cautions, found)
    failed = faults(record.metrics, log, rounds)
    noted = Counter(line["note"] for line in log if "note" in line and line["party"] != "corpus")
    summary = known | {
        "scores": _scores(measured, plan.clients, plan.experiment.method.has_server_model),
        "members": [asdict(member) for member in found],
        "alone_rounds": rounds_alone,
        "verdict": verdict(found, why, _than(rounds_alone, rounds), failed) if found else None,
        "faults": failed,
        "cautions": record.cautions,
        "best_on_validation": _best_on_validation(measured, plan.metrics[0]),
        "notes": [f"{note} ({times}x)" if times > 1 else note for note, times in noted.items()],
        "epsilon": spent(plan, record.metrics),
        "bytes": crossed,
        "wire": condensed(record.ledger),
        "seconds": round(seconds, 2),
    }
    write_whole(record.folder / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())


def alone_beside(record: Record, known: Mapping[str, Any]) -> list[Measurement] | None:
    """What was measured in the folder's run in which everybody works alone for as long; None if there is none."""
    alone = Record(record.folder / ALONE)
    same = ("seed", "rounds", "clients", "metrics", "test_fingerprint")
    if not alone.is_finished or any(alone.summary[key] != known[key] for key in same):
        return None
    return [line for line in alone.metrics if "split" in line]


def _than(rounds_alone: int, rounds: int) -> str:
    """What members are compared with."""
    if rounds == 1:
        return "alone"
    return "alone for as long" if rounds_alone == rounds else "after one round alone"


def about(plan: Plan) -> dict[str, Any]:
    """The part of a summary that is known before the first round."""
    experiment, algorithm = plan.experiment, plan.experiment.method
    return {
        "name": experiment.name,
        "engine": experiment.engine,
        "method": algorithm.title,
        "algorithm": type(algorithm).__name__,
        "role": algorithm.role,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "labels": list(plan.labels),
        "metrics": list(plan.metrics),
        "clients": sorted(plan.clients),
        "models": {name: str(spec.model) for name, spec in {SERVER: plan.server, **plan.clients}.items()},
        "test_fingerprint": plan.test_fingerprint,
        "versions": versions(),
    }


def _so_far(record: Record) -> dict[str, Any]:
    """What the log says of the run, with the last scores of every party, and costs until now."""
    begun = [line["begun"] for line in record.log if "begun" in line]
    if not begun:
        return {}
    measured = [line for line in record.metrics if "split" in line]
    has_server = any(line["party"] == SERVER for line in measured)
    crossed = Counter({"up": 0, "down": 0})
    for line in record.ledger:
        crossed[line["direction"]] += line["encoded"] * line["recipients"]
    return dict(begun[-1]) | {
        "scores": _scores(measured, begun[-1]["clients"], has_server),
        "bytes": dict(crossed),
        "seconds": sum(line["seconds"].get("total", 0.0) for line in record.log if "seconds" in line),
    }


def _scores(measured: list[Measurement], clients: Iterable[str], has_server: bool) -> dict[str, Any]:
    return {
        **({SERVER: last_scores(measured, SERVER)} if has_server else {}),
        "clients": {name: last_scores(measured, name) for name in sorted(clients)},
    }


def versions() -> dict[str, str]:
    """What decides the numbers of a run besides its experiment."""
    return {"fedstill": VERSION, "python": platform.python_version()} | {
        name: metadata.version(name) for name in ("torch", "transformers", "numpy")
    }


def last_scores(measured: list[Measurement], party: str) -> dict[str, dict[str, float]]:
    """The scores of a party's last round by split, of the last stage; where it was processed, `before/` that too."""
    before = [line for line in measured if line["stage"] != "processed"]
    if any(line["party"] == party for line in measured if line["stage"] == "processed"):
        earlier = {f"before/{split}": scores for split, scores in _newest(before, party).items()}
        return _newest(measured, party) | earlier
    return _newest(before, party)


def _newest(measured: list[Measurement], party: str) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {}
    when: dict[str, tuple[int, int]] = {}
    for line in measured:
        moment = (line["round"], STAGES.index(line["stage"]))
        if line["party"] == party and moment >= when.get(line["split"], (-1, 0)):
            when[line["split"]] = moment
            scores[line["split"]] = {name: value for name, value in line.items() if name not in ABOUT}
    return scores


def _best_on_validation(measured: list[Measurement], metric: str) -> dict[str, Any] | None:
    """The round that validation would have chosen: simulation only, where the server can see the clients' rows."""
    validation, test = (
        {line["round"]: line[metric] for line in measured if line["party"] == SERVER and line["split"] == split}
        for split in ("validation", "test")
    )
    if not validation:
        return None
    best = max(validation, key=lambda number: (validation[number], -number))
    return {
        "round": best,
        "metric": metric,
        "validation": validation[best],
        "test": test.get(best),
        "note": "simulation only",
    }
