"""The work that every peer does, as PyTorch's users write it: models, rows, batches, steps and measuring.

A script gets the folder that `measure` of this package made: the model, everybody's tokens, and how much to do. Batches
are padded to their longest, AdamW is torch's fused one. What a script says is read by `measure`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification

FOLDER = Path(sys.argv[1])
SETTINGS: dict[str, Any] = json.loads((FOLDER / "task.json").read_text())
ROUNDS, EPOCHS, BATCH, RATE, CORES = (SETTINGS[name] for name in ("rounds", "epochs", "batch", "rate", "cores"))
TEMPERATURE = 0.1
"""DS-FL's, which sharpens the mean of probabilities."""


class Texts(Dataset):  # type: ignore[type-arg]
    """Tokens of texts, each with a target: a label or probabilities; or without."""

    def __init__(self, ids: list[Tensor], targets: Tensor | None = None) -> None:
        self.ids, self.targets = ids, targets

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"ids": self.ids[row]} | ({} if self.targets is None else {"labels": self.targets[row]})


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch, padded to its longest text."""
    ids = [row["ids"] for row in rows]
    pad = nn.utils.rnn.pad_sequence
    batch = {
        "input_ids": pad(ids, batch_first=True, padding_value=SETTINGS["pad"]),
        "attention_mask": pad([torch.ones_like(own) for own in ids], batch_first=True),
    }
    return batch | ({"labels": torch.stack([row["labels"] for row in rows])} if "labels" in rows[0] else {})


_rows = torch.load(FOLDER / "rows.pt")
CLIENTS = [Texts(ids, labels) for ids, labels in _rows["clients"]]
PUBLIC = Texts(_rows["public"])
TEST = Texts(*_rows["test"])


def new_model() -> nn.Module:
    """The model that everybody begins with."""
    model: nn.Module = AutoModelForSequenceClassification.from_pretrained(FOLDER / "model")
    return model


def said(what: str) -> None:
    """Tell `measure`: `batch` after a step, `round` after a round."""
    print(what, flush=True)


def learn(model: nn.Module, texts: Texts, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> None:
    """The epochs of a phase."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    model.train()
    for epoch in range(EPOCHS):
        for number, batch in enumerate(DataLoader(texts, BATCH, shuffle=True, collate_fn=collate)):
            labels = batch.pop("labels")
            loss(model(**batch).logits, labels).backward()
            optimiser.step()
            optimiser.zero_grad()
            if epoch == number == 0:
                said("batch")


def kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """Distillation towards probabilities."""
    return F.kl_div(F.log_softmax(logits, -1), teacher, reduction="batchmean")


def predict(model: nn.Module, texts: Texts) -> Tensor:
    """The logits, in order."""
    model.eval()
    loader = DataLoader(Texts(texts.ids), BATCH, collate_fn=collate)
    with torch.no_grad():
        return torch.cat([model(**batch).logits for batch in loader])


def accuracy(model: nn.Module) -> float:
    """The share of the test rows that a model labels rightly."""
    return (predict(model, TEST).argmax(-1) == TEST.targets).float().mean().item()


def sharpened(opinions: list[Tensor]) -> Tensor:
    """DS-FL's entropy reduction: what everybody learns from."""
    return torch.softmax(torch.stack(opinions).mean(0) / TEMPERATURE, -1)
