"""Where inputs can be invented for a model: in pixel space, or in the space of word embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.data.corpus import Ints
from fedstill.errors import FedstillError
from fedstill.models.build import Model


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
