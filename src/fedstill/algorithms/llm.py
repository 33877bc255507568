"""What AdaFD's LLMWC asks a language model (Appendix A of the paper), and how its answer is read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedstill.common.chat import Unusable

NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

SYSTEM = (
    "You are an expert in federated learning and federated distillation. Analyze and compute the optimal weight "
    "allocation for all clients based on the following data in a federated distillation scenario. Return only the "
    "numerical values separated by commas, without any explanation or calculation process."
)
QUESTION = (
    "Based on these factors, please compute and normalize the weight for each client to maximize the global model "
    "performance. Assign weights to each client and return the values separated by commas. Do not include any "
    "additional text or calculation details."
)


@dataclass(frozen=True)
class Statistics:
    """All that the language model is told about one client."""

    client: str
    loss: float
    f1: float
    logit_mean: tuple[float, ...]
    logit_std: tuple[float, ...]
    entropy: float


def statistics(client: str, loss: float, f1: float, logits: torch.Tensor) -> Statistics:
    """Sums up logits [N, C] by class mean, class standard deviation and mean entropy of the softmax in nats."""
    # Moved before widening: not every accelerator has float64.
    values = logits.detach().cpu().double()
    entropy = torch.special.entr(values.softmax(dim=1)).sum(dim=1).mean()
    return Statistics(
        client=client,
        loss=loss,
        f1=f1,
        logit_mean=tuple(values.mean(dim=0).tolist()),
        # The population's deviation, so that a single sample gives 0 and not NaN.
        logit_std=tuple(values.std(dim=0, correction=0).tolist()),
        entropy=entropy.item(),
    )


def prompt(clients: Sequence[Statistics]) -> list[dict[str, str]]:
    """The appendix's messages, with one line per client in the order given."""
    query = "\n".join(_line(client) for client in clients)
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Input:\n{query}\n{QUESTION}"},
    ]


def _line(client: Statistics) -> str:
    return (
        f"Client {client.client}: training loss {client.loss:.4g}, F1 score {client.f1:.4g}, "
        f"logits mean {_row(client.logit_mean)}, logits standard deviation {_row(client.logit_std)}, "
        f"logits entropy {client.entropy:.4g}"
    )


def _row(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"


def parse(reply: str, count: int) -> list[float]:
    """The reply's weights, summing to 1; anything but `count` usable numbers raises Unusable."""
    fields = _bare(reply).split(",")
    if len(fields) != count:
        raise Unusable(f"{len(fields)} values instead of {count}")
    values = [_weight(field.strip()) for field in fields]
    largest = max(values)
    if largest == 0:
        raise Unusable("every weight is zero")
    # Scaled by the largest first, because the sum of huge weights would overflow.
    scaled = [value / largest for value in values]
    total = math.fsum(scaled)
    return [value / total for value in scaled]


def _bare(reply: str) -> str:
    text = reply.strip().removesuffix(".").rstrip()
    return text[1:-1] if (text[:1], text[-1:]) in {("[", "]"), ("(", ")")} else text


def _weight(text: str) -> float:
    # float() alone would also take "nan", "inf" and "1_000".
    if NUMBER.fullmatch(text) is None:
        raise Unusable(f"{text[:20]!r} is not a number")
    value = float(text)
    if value < 0:
        raise Unusable(f"{text[:20]} is negative")
    if math.isinf(value):
        raise Unusable(f"{text[:20]} is too large")
    return value
