"""Labelling new texts with a model of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS
from fedstill.common.plugins import nearest
from fedstill.common.trust import trusts_all
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.data.corpora import files
from fedstill.data.corpora.files import Columns
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import accelerate
from fedstill.learning.predict import predict
from fedstill.models import Model, load
from fedstill.results.record import Record


def label_file(
    run: Path, file: Path, party: str, text: Sequence[str] | None, encoding: str = "utf-8", task: str | None = None
) -> Iterator[list[str]]:
    """A header, then for every text of the file: the text, its label, and the probability of that label."""
    record = Record(run)
    if not (run / "experiment.yaml").exists():
        raise FedstillError(f"{run} is not a run folder: give one such as runs/<name>/seed-0.")
    folder = record.model_folder(party)
    if not folder.is_dir():
        parties = [path.name for path in (run / MODELS).glob("*")]
        gone = "it keeps its models with `reproduce --models`." if record.is_finished else "the run is not finished."
        raise FedstillError(f"{run} has no model of {party!r}; {nearest(party, parties) or gone}")
    experiment = load_experiment(run / "experiment.yaml")
    columns = list(
        text or ([experiment.corpus.text] if isinstance(experiment.corpus.text, str) else experiment.corpus.text)
    )
    if len(columns) > 2:
        raise FedstillError("--text is given once, or twice for a pair of texts.")
    rows = list(files.read(file, Columns(columns[0], columns[1] if len(columns) == 2 else None, None), encoding))
    model = load(folder, trust_code=trusts_all())
    accelerate(model.module, experiment.fast)
    if model.tokenizer is None:
        raise FedstillError(f"{run}: the models of this run read images, and `fedstill predict` labels texts.")
    clients = record.summary["clients"]
    spec = experiment.client_specs(clients)[party] if party in clients else experiment.server_spec()
    pairs = [row.pair or "" for row in rows] if len(columns) == 2 else None
    encoded = model.tokenizer.encode([row.text for row in rows], pairs, spec.train.max_length)
    store = TokenStore(*encoded, pad_id=model.tokenizer.pad_id, pads_left=model.pads_left)
    logits = predict(model.module, Examples(store, np.arange(len(rows))))
    probabilities = logits.masked_fill(~_answers(model, experiment, task), -torch.inf).softmax(-1)
    best = probabilities.max(-1)
    yield [*columns, "label", "probability"]
    for row, number, value in zip(rows, best.indices.tolist(), best.values.tolist(), strict=True):
        yield [row.text, *([row.pair or ""] if pairs is not None else []), model.labels[number], f"{value:.4f}"]


def _answers(model: Model, experiment: Experiment, task: str | None) -> torch.Tensor:
    """Which labels are allowed: all, or with several tasks those of the named task."""
    tasks = sorted({label.partition("/")[0] for label in model.labels}) if experiment.corpus.is_of_tasks else []
    if task is None and not tasks:
        return torch.ones(len(model.labels), dtype=torch.bool)
    if task not in tasks:
        wanted = f"it has no task {task!r}" if task is not None else "name one of them with --task"
        raise FedstillError(f"this run has {'the tasks ' + ', '.join(tasks) if tasks else 'one task only'}: {wanted}.")
    return torch.tensor([label.partition("/")[0] == task for label in model.labels])
