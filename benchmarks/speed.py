"""Training, predicting and distilling tweets: ours, the plain loop and transformers' Trainer, taking turns.

And what each technique of the fast path is worth: all but one of them, and one of them alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import plain
import torch
import torch.nn.functional as F
from plain import BATCH, Padded
from torch import Tensor, nn
from turns import TURNS, Results, Seconds, Values, Work, in_turns, spread, times

from fedstill.data import corpora
from fedstill.data.corpora import CorpusSpec
from fedstill.data.examples import Labelled
from fedstill.data.tokens import TokenStore, store_tokens
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.losses import Loss, ce, kl
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.predict import predict
from fedstill.models import ModelSpec, build
from fedstill.models.build import party_tokenizer

ROWS = {"bert-tiny": 320, "minilm": 64}
RATE = 1e-4
NONE = Fast.model_validate(False)

WITHOUT = {
    "encoder": {"encoder": False},
    "last_layer": {"last_layer": False},
    "masks": {"masks": False},
    "vocabulary": {"vocabulary": False},
    "optimiser": {"optimiser": False},
}
ALONE = {
    "encoder": {"encoder": True},
    "last_layer": {"encoder": True, "last_layer": True},
    "masks": {"encoder": True, "masks": True},
    "vocabulary": {"vocabulary": True},
    "optimiser": {"optimiser": True},
}
"""Two of them are parts of the encoder: beside it, alone."""


@dataclass(frozen=True)
class Case:
    """A model, texts with labels, and a teacher's opinion of them."""

    module: nn.Module
    data: Labelled
    padded: Padded
    teacher: Tensor

    @classmethod
    def of(
        cls, name: str, rows: int, corpus: str = "tweets", width: int = plain.WIDTH, classes: int | None = None
    ) -> Case:
        """So many rows of a corpus, in any order, cut to that many tokens; with more classes, labels are invented."""
        texts = corpora.load(CorpusSpec(name=corpus))
        spec = ModelSpec(name=name)
        store = TokenStore.read(
            store_tokens(party_tokenizer(spec, name), texts.texts, None, width, texts.fingerprint())
        )
        random = np.random.default_rng(0)
        chosen = random.permutation(len(texts))[:rows]
        names = texts.label_names if classes is None else tuple(f"label {number}" for number in range(classes))
        labels = texts.labels[chosen] if classes is None else random.integers(classes, size=rows)
        data = Labelled(store, chosen, torch.from_numpy(labels))
        teacher = torch.randn(rows, len(names), generator=torch.Generator().manual_seed(0))
        return cls(build(spec, names, name, 0).module, data, Padded.of(data, width), teacher)

    def fresh(self, fast: Fast) -> nn.Module:
        """The model in its first state."""
        module = deepcopy(self.module)
        accelerate(module, fast)
        return module

    def ours(self, what: str, fast: Fast = Fast()) -> Callable[[], Work]:  # noqa: B008 - it is frozen
        """Our way."""

        def learn(targets: Tensor, loss: Loss) -> Work:
            module = self.fresh(fast)
            settings = PhaseSettings(epochs=1, batch=BATCH)
            return lambda: Phase(module, self.data, settings, RATE, 0).run(targets, loss)

        def make() -> Work:
            if what == "predict":
                module = self.fresh(fast)
                return lambda: predict(module, self.data)
            return learn(self.data.labels, ce) if what == "train" else learn(self.teacher, kl)

        return make

    def plain(self, what: str) -> Callable[[], Work]:
        """The papers' way."""

        def make() -> Work:
            module = self.fresh(NONE)
            if what == "predict":
                return lambda: plain.predict(module, self.padded)
            targets, loss = (self.data.labels, F.cross_entropy) if what == "train" else (self.teacher, plain.kl)
            return lambda: plain.learn(module, self.padded, targets, loss, 1, RATE)  # type: ignore[arg-type]

        return make

    def with_trainer(self, what: str, scratch: str) -> Callable[[], Work]:
        """transformers' way, as it comes: batches padded to their longest, a fused AdamW, gradients clipped."""
        from transformers import PrinterCallback, Trainer, TrainingArguments

        key, targets = ("teacher", self.teacher) if what == "distil" else ("labels", self.data.labels)
        assert targets is not None
        lengths = self.data.lengths.tolist()
        rows = [
            {"input_ids": ids[:length]} | ({} if what == "predict" else {key: target})
            for ids, length, target in zip(self.padded.ids, lengths, targets, strict=True)
        ]

        class Distiller(Trainer):  # type: ignore[misc]
            def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
                teacher = inputs.pop("teacher")
                return plain.kl(model(**inputs).logits, teacher)

        arguments = TrainingArguments(
            output_dir=scratch, use_cpu=True, per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH,
            num_train_epochs=1, learning_rate=RATE, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip

        def make() -> Work:
            kind = Distiller if what == "distil" else Trainer
            trainer = kind(self.fresh(NONE), arguments, train_dataset=rows, data_collator=collate)
            trainer.remove_callback(PrinterCallback)
            return (lambda: trainer.predict(rows)) if what == "predict" else trainer.train

        return make


def collate(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch, padded to its longest."""
    ids = [row["input_ids"] for row in rows]
    batch = {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(own) for own in ids], batch_first=True),
    }
    return batch | {key: torch.stack([row[key] for row in rows]) for key in rows[0] if key != "input_ids"}


def measure(models: Sequence[str] = tuple(ROWS)) -> Results:
    """Three works, three ways, two models."""
    torch.set_num_threads(1)
    found: Results = {}
    for name in models:
        case = Case.of(name, ROWS[name])
        for what in ("train", "predict", "distil"):
            with tempfile.TemporaryDirectory() as scratch:
                seconds = in_turns(
                    {
                        "plain": case.plain(what),
                        "ours": case.ours(what),
                        "Trainer": case.with_trainer(what, scratch),
                    },
                    TURNS[name],
                )
            found[f"{what} {name}, against plain"] = about(case, seconds["plain"], seconds["ours"])
            found[f"{what} {name}, against Trainer"] = about(case, seconds["Trainer"], seconds["ours"])
            found[f"{what} {name}, Trainer against plain"] = about(case, seconds["plain"], seconds["Trainer"])
    return found


def about(case: Case, base: Sequence[Seconds], own: Sequence[Seconds]) -> Values:
    """A ratio with what it was measured on."""
    values = times(base, own)
    return values | {"rows": len(case.data), "rows_per_s": len(case.data) / values["cpu_s"]}


def techniques(models: Sequence[str] = tuple(ROWS)) -> Results:
    """Times as long without one technique, and times as fast with it alone."""
    torch.set_num_threads(1)
    found: Results = {}
    for name in models:
        case = Case.of(name, ROWS[name])
        for what in ("train", "predict"):
            chosen = WITHOUT if what == "train" else ("encoder", "last_layer")
            ways = {"all": Fast(), "none": NONE}
            ways |= {f"without {t}": Fast.model_validate(WITHOUT[t]) for t in chosen}
            ways |= {
                f"alone {t}": Fast.model_validate(dict.fromkeys(Fast.model_fields, False) | ALONE[t]) for t in chosen
            }
            seconds = in_turns({way: case.ours(what, fast) for way, fast in ways.items()}, TURNS[name])
            found[f"{what} {name}, all"] = times(seconds["none"], seconds["all"])
            for way in ways:
                if way.startswith("without"):
                    found[f"{what} {name}, {way}"] = times(seconds[way], seconds["all"])
                elif way.startswith("alone"):
                    found[f"{what} {name}, {way}"] = times(seconds["none"], seconds[way])
    return found


def lines(found: dict[str, Results]) -> list[str]:
    """This part of the page."""
    speeds, worth = found.get("speed", {}), found.get("techniques", {})
    works = [(what, name) for name in ROWS for what in ("train", "predict", "distil")]
    return [
        "| what | against the plain loop | against Trainer | Trainer against the plain loop | rows a CPU second |",
        "|---|---|---|---|---|",
        *(
            f"| {what} {name} | {' | '.join(spread(speeds.get(f'{what} {name}, {way}')) for way in WAYS)} "
            f"| {speeds[f'{what} {name}, against plain']['rows_per_s']:.0f} |"
            for what, name in works
            if f"{what} {name}, against plain" in speeds
        ),
        "",
        "### Each technique switched alone",
        "",
        "Without: times as long without it, all others on. Alone: times as fast with it, all others off; `last_layer`",
        "and `masks` are parts of the encoder, so that theirs is with the encoder.",
        "",
        *(line for name in ROWS for line in _techniques(worth, name)),
    ]


WAYS = ("against plain", "against Trainer", "Trainer against plain")


def _techniques(worth: Results, model: str) -> list[str]:
    columns = [(what, way) for what in ("train", "predict") for way in ("without", "alone")]
    rows = {
        technique: [spread(worth.get(f"{what} {model}, {way} {technique}")) for what, way in columns]
        for technique in WITHOUT
    }
    rows["all of them"] = ["", spread(worth.get(f"train {model}, all")), "", spread(worth.get(f"predict {model}, all"))]
    return [
        f"| {model} | {' | '.join(f'{what}: {way}' for what, way in columns)} |",
        "|---|" + "---|" * len(columns),
        *(f"| {technique} | {' | '.join(cells)} |" for technique, cells in rows.items()),
        "",
    ]
