"""The spaces in which inputs can be made up for a model: pixels, or word embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.data.corpus import Ints
from fedstill.models.model import Model

EMBEDDINGS = {"embeddings", "embedding", "shared", "embed_tokens", "embed_positions", "layernorm_embedding"}
EMBEDDINGS |= {"word_embedding", "wte", "wpe"}
"""Parts of the dotted names of the embedding layer's parameters: words, positions, types and LayerNorm."""


@dataclass(frozen=True)
class Space:
    """The shape of one input, its name in the model's `forward`, and the inputs' mean and standard deviation."""

    name: str
    shape: tuple[int, ...]
    mean: Tensor
    deviation: Tensor

    def draw(self, many: int, random: torch.Generator) -> Tensor:
        """`many` inputs from N(mean, deviation), drawn on the CPU so that every machine draws the same."""
        noise = torch.randn(many, *self.shape, generator=random)
        return noise.to(self.mean.device) * self.deviation + self.mean


def space_of(model: Model, length: int) -> Space:
    """Pixels with mean 0 and deviation 1, as images are normalised; or texts of `length` word embeddings.

    Each dimension of the word embeddings has its mean and deviation in the model's own table.
    """
    if model.shape is not None:
        device = next(model.module.parameters()).device
        return Space("pixels", model.shape, torch.zeros((), device=device), torch.ones((), device=device))
    table = word_embeddings(model).weight.detach()
    if model.longest is not None and length > model.longest:
        raise FedstillError(
            f"{model.spec} reads {model.longest} tokens at most, not {length}: choose a smaller `length`."
        )
    return Space("inputs_embeds", (length, table.shape[1]), table.mean(0), table.std(0))


def word_embeddings(model: Model) -> nn.Embedding:
    """The model's word embeddings; refuses a model that has none, or that does not take `inputs_embeds`."""
    get = getattr(model.module, "get_input_embeddings", None)
    found = getattr(model.module, "embedding", None) if get is None else get()
    takes = signature(model.module.forward).parameters
    if not isinstance(found, nn.Embedding) or "inputs_embeds" not in takes:
        raise FedstillError(
            f"{model.spec} has no word embeddings to invent texts in: choose a transformer, textcnn or bigru."
        )
    return found


def special_positions(model: Model, length: int) -> tuple[Ints, Ints]:
    """The positions of special tokens in a text of `length` tokens, and their ids."""
    assert model.tokenizer is not None
    around, _, _ = model.tokenizer.encode([""], None, length)
    text, _, _ = model.tokenizer.encode(["a " * length], None, length)
    # An empty text has only special tokens; those that a real text begins with too come before it, the rest after it.
    before = next((n for n, (a, b) in enumerate(zip(around, text, strict=False)) if a != b), len(around))
    after = len(around) - before
    positions = np.concatenate([np.arange(before), np.arange(length - after, length)])
    return positions, around.astype(np.int64)


def starting_points(
    model: Model, samples: int, length: int, kind: Literal["words", "gaussian"], random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs to start a descent from, and where they may change (1) or not (0): special tokens do not change.

    `words` are drawn uniformly and replaced by their embeddings; `gaussian` inputs, and pixels always, are drawn from
    the space's mean and deviation.
    """
    space = space_of(model, length)
    if space.name == "pixels":
        drawn = space.draw(samples, random)
        return drawn, torch.ones_like(drawn)
    table = word_embeddings(model).weight.detach()
    places, ids = special_positions(model, length)
    if kind == "words":
        inputs = table[_words(model, (samples, length), random).to(table.device)]
    else:
        inputs = space.draw(samples, random)
    inputs[:, places] = table[torch.from_numpy(ids).to(table.device)]
    moves = torch.ones(length, 1, device=table.device)
    moves[places] = 0.0
    return inputs, moves


def _words(model: Model, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Token ids drawn uniformly, without the tokenizer's special tokens."""
    assert model.tokenizer is not None
    special = set(getattr(getattr(model.tokenizer, "inner", None), "all_special_ids", ()))
    # The tokenizer's ids, not the table's rows: T5's table has rows without a word.
    ordinary = torch.tensor([number for number in range(model.tokenizer.vocabulary) if number not in special])
    return ordinary[torch.randint(len(ordinary), shape, generator=random)]


@contextmanager
def held_embeddings(module: nn.Module, are_held: bool = True) -> Iterator[None]:
    """Inside, the embedding layer does not learn; nor does a head that shares its tensor."""
    held = [
        p for name, p in module.named_parameters() if are_held and p.requires_grad and EMBEDDINGS & set(name.split("."))
    ]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)
