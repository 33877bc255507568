"""The papers' kind of loop, which everything is measured against.

As their code does it: texts padded to 128 once and for all, batches of 32 in an order drawn anew every epoch, the
Hugging Face model's own forward, fp32, torch's AdamW and transformers' linear schedule, a fresh optimiser a phase;
prediction in the given order, 32 at a time. Nothing of fedstill's learning is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from fedstill.data.examples import Examples, Labelled

BATCH, WIDTH = 32, 128

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) to a scalar."""


@dataclass(frozen=True)
class Padded:
    """Tokenised texts as a tokenizer with `padding="max_length"` gives them."""

    ids: Tensor
    mask: Tensor
    labels: Tensor | None = None

    @classmethod
    def of(cls, data: Examples, width: int = WIDTH) -> Padded:
        """Those texts at that width."""
        batch = data.batch(torch.arange(len(data)), torch.device("cpu"))
        pad = data.store.pad_id  # type: ignore[attr-defined]
        more = width - batch["input_ids"].shape[1]
        labels = data.labels if isinstance(data, Labelled) else None
        return cls(F.pad(batch["input_ids"], (0, more), value=pad), F.pad(batch["attention_mask"], (0, more)), labels)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, picked: Tensor) -> dict[str, Tensor]:
        """The model's input for those rows."""
        return {"input_ids": self.ids[picked], "attention_mask": self.mask[picked]}


def kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """Distillation towards a teacher's logits."""
    return F.kl_div(F.log_softmax(logits, -1), F.softmax(teacher, -1), reduction="batchmean")


def learn(module: nn.Module, data: Padded, targets: Tensor, loss: Loss, epochs: int, rate: float) -> list[float]:
    """A phase; the mean loss of every epoch."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimiser, 0, epochs * -(-len(data) // BATCH))
    module.train()
    means = []
    for _ in range(epochs):
        total = 0.0
        for picked in torch.split(torch.randperm(len(data)), BATCH):
            value = loss(module(**data.rows(picked)).logits, targets[picked])
            value.backward()
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            total += value.item() * len(picked)
        means.append(total / len(data))
    return means


def predict(module: nn.Module, data: Padded) -> Tensor:
    """The logits, in order."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(**data.rows(picked)).logits for picked in torch.split(torch.arange(len(data)), BATCH)])


def f1(module: nn.Module, data: Padded) -> float:
    """The weighted F1 of a model."""
    return float(f1_score(data.labels, predict(module, data).argmax(-1), average="weighted"))


@dataclass(frozen=True)
class Client:
    """A client's model and its rows."""

    module: nn.Module
    train: Padded


def adafd_round(
    clients: Mapping[str, Client], server: nn.Module, public: Padded, test: Padded, epochs: int, rate: float
) -> dict[str, float]:
    """A round of AdaFD with ENWC (beta 5), evaluations included: every model after each of its phases."""
    scores: dict[str, float] = {}
    losses, opinions = [], []
    for name, client in clients.items():
        assert client.train.labels is not None
        means = learn(client.module, client.train, client.train.labels, F.cross_entropy, epochs, rate)
        losses.append(min(means))
        opinions.append(predict(client.module, public))
        scores[f"{name} trained"] = f1(client.module, test)
    weights = torch.softmax(-5.0 * torch.tensor(losses), 0)
    blend = (weights[:, None, None] * torch.stack(opinions)).sum(0)
    learn(server, public, blend, F.mse_loss, epochs, rate)
    scores["server distilled"] = f1(server, test)
    answer = predict(server, public)
    for name, client in clients.items():
        learn(client.module, public, answer, kl, epochs, rate)
        scores[f"{name} distilled"] = f1(client.module, test)
    return scores
