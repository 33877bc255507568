"""Where inputs can be invented for a model: in pixel space, or in the space of word embeddings."""

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
from fedstill.models.build import Model

EMBEDDINGS = {"embeddings", "embedding", "shared", "embed_tokens", "embed_positions", "layernorm_embedding"}
EMBEDDINGS |= {"word_embedding", "wte", "wpe"}
"""What a parameter's dotted name holds that belongs to the embedding layer: positions, types and LayerNorm too."""


@dataclass(frozen=True)
class Space:
    """The shape of one input, the name that `forward` has for it, and how inputs lie in it."""

    name: str
    shape: tuple[int, ...]
    mean: Tensor
    deviation: Tensor

    def draw(self, many: int, random: torch.Generator) -> Tensor:
        """So many inputs from N(mean, deviation), drawn on the CPU so that every machine draws the same."""
        noise = torch.randn(many, *self.shape, generator=random)
        return noise.to(self.mean.device) * self.deviation + self.mean


def space_of(model: Model, length: int) -> Space:
    """Pixels with mean 0 and deviation 1, as images are normalised; or texts of so many word embeddings.

    Word embeddings have the mean and deviation of the model's own table, dimension by dimension.
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
    """The table that the model looks words up in; refuses a model that has none, or takes nothing in its place."""
    get = getattr(model.module, "get_input_embeddings", None)
    found = getattr(model.module, "embedding", None) if get is None else get()
    takes = signature(model.module.forward).parameters
    if not isinstance(found, nn.Embedding) or "inputs_embeds" not in takes:
        raise FedstillError(
            f"{model.spec} has no word embeddings to invent texts in: choose a transformer, textcnn or bigru."
        )
    return found


def special_positions(model: Model, length: int) -> tuple[Ints, Ints]:
    """Where the tokenizer puts special tokens in a text of so many tokens, and which ones."""
    assert model.tokenizer is not None
    around, _, _ = model.tokenizer.encode([""], None, length)
    text, _, _ = model.tokenizer.encode(["a " * length], None, length)
    # What stands around no text at all is special; its first part are those that any text begins with.
    before = next((n for n, (a, b) in enumerate(zip(around, text, strict=False)) if a != b), len(around))
    after = len(around) - before
    positions = np.concatenate([np.arange(before), np.arange(length - after, length)])
    return positions, around.astype(np.int64)


def starting_points(
    model: Model, samples: int, length: int, kind: Literal["words", "gaussian"], random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs to descend from, and where they may move (1) or not (0): special tokens stay at their places.

    Words are drawn evenly and looked up in the model's table; gaussian inputs have its mean and deviation, as pixels
    always do.
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
    """Token numbers that stand for words, none of the tokenizer's special ones, drawn evenly."""
    assert model.tokenizer is not None
    special = set(getattr(getattr(model.tokenizer, "inner", None), "all_special_ids", ()))
    # Of the tokenizer, not of the table: T5's has rows that no word ever had.
    ordinary = torch.tensor([number for number in range(model.tokenizer.vocabulary) if number not in special])
    return ordinary[torch.randint(len(ordinary), shape, generator=random)]


@contextmanager
def held_embeddings(module: nn.Module, are_held: bool = True) -> Iterator[None]:
    """The embedding layer as it is; a head that is tied to it is the same tensor, and stays with it."""
    held = [p for name, p in module.named_parameters() if are_held and EMBEDDINGS & set(name.split("."))]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)
