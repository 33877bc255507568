"""DS-FL in the shape of the papers' loops: padded to the most tokens, a fresh AdamW and schedule an epoch."""

from collections.abc import Callable

import task
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

Batch = dict[str, Tensor]


def padded(texts: task.Texts) -> Batch:
    """All texts as a tokenizer with `padding="max_length"` gives them."""
    batch = task.collate([{"ids": ids} for ids in texts.ids])
    more = task.SETTINGS["max_length"] - batch["input_ids"].shape[1]
    return {
        "input_ids": F.pad(batch["input_ids"], (0, more), value=task.SETTINGS["pad"]),
        "attention_mask": F.pad(batch["attention_mask"], (0, more)),
    }


def learn(model: nn.Module, rows: Batch, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model.train()
    for epoch in range(task.EPOCHS):
        optimiser = torch.optim.AdamW(model.parameters(), lr=task.RATE, weight_decay=0.0)
        schedule = get_linear_schedule_with_warmup(optimiser, 0, -(-len(targets) // task.BATCH))
        for number, picked in enumerate(torch.randperm(len(targets)).split(task.BATCH)):
            loss(model(**{key: own[picked] for key, own in rows.items()}).logits, targets[picked]).backward()
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            if epoch == number == 0:
                task.said("batch")


def predict(model: nn.Module, rows: Batch) -> Tensor:
    model.eval()
    with torch.no_grad():
        parts = torch.arange(len(rows["input_ids"])).split(task.BATCH)
        return torch.cat([model(**{key: own[picked] for key, own in rows.items()}).logits for picked in parts])


def main() -> None:
    public, test = padded(task.PUBLIC), padded(task.TEST)
    private = [padded(texts) for texts in task.CLIENTS]
    server, clients = task.new_model(), [task.new_model() for _ in task.CLIENTS]
    teacher = None
    for _ in range(task.ROUNDS):
        opinions = []
        for model, rows, texts in zip(clients, private, task.CLIENTS, strict=True):
            if teacher is not None:
                learn(model, public, teacher, task.kl)
            learn(model, rows, texts.targets, F.cross_entropy)
            predict(model, test)
            opinions.append(predict(model, public).softmax(-1))
        teacher = task.sharpened(opinions)
        learn(server, public, teacher, task.kl)
        predict(server, test)
        task.said("round")


if __name__ == "__main__":
    main()
