"""Small text models for weak clients, trained from scratch, with any tokenizer.

Each takes what Hugging Face classifiers take (`input_ids`, `attention_mask`, or `inputs_embeds`) and returns logits.
A user's own class has the same constructor: `Class(vocabulary, classes, pad_id, **options)`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn


class TextCNN(nn.Module):
    """Convolutions over word windows, the maximum of each filter, a linear head (Kim 2014)."""

    rate: ClassVar[float] = 4e-3
    only_embeds_words: ClassVar[bool] = True
    """Its `embedding` is used for nothing else, so a phase may learn only the rows of words that occur."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        pad_id: int,
        embedding: int = 128,
        filters: int = 100,
        widths: tuple[int, ...] = (2, 3, 4),
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=pad_id)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, width, padding=width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(filters * len(widths), classes)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        words = self.dropout(_embed(self.embedding, input_ids, attention_mask, inputs_embeds)).transpose(1, 2)
        # With padding by a whole window every text has a window of zeros, so its logits do not depend on longer texts
        # in the batch.
        peaks = [torch.relu(convolution(words)).amax(-1) for convolution in self.convolutions]
        return self.head(self.dropout(torch.cat(peaks, 1)))  # type: ignore[no-any-return]


class BiGRU(nn.Module):
    """A GRU in both directions, the mean and the maximum of its states, a linear head."""

    rate: ClassVar[float] = 5e-3
    only_embeds_words: ClassVar[bool] = True
    """Its `embedding` is used for nothing else, so a phase may learn only the rows of words that occur."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        pad_id: int,
        embedding: int = 128,
        hidden: int = 96,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=pad_id)
        self.forwards = nn.GRU(embedding, hidden, batch_first=True)
        self.backwards = nn.GRU(embedding, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * hidden, classes)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        words = self.dropout(_embed(self.embedding, input_ids, attention_mask, inputs_embeds))
        mask = torch.ones(words.shape[:2], device=words.device) if attention_mask is None else attention_mask
        mask = mask.unsqueeze(-1).to(words.dtype)
        # Reversing each text within its own length keeps padding at the end, so no packing is needed.
        lengths = mask.sum(1, dtype=torch.long)
        positions = torch.arange(words.shape[1], device=words.device)[None, :]
        mirror = torch.where(positions < lengths, lengths - 1 - positions, positions).unsqueeze(-1)
        ahead = self.forwards(words)[0]
        back = self.backwards(words.gather(1, mirror.expand_as(words)))[0]
        states = torch.cat([ahead, back], -1)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        peak = states.masked_fill(mask == 0, -2.0).amax(1)  # a GRU's states are in [-1, 1]
        return self.head(self.dropout(torch.cat([mean, peak], -1)))  # type: ignore[no-any-return]


class BagOfWords(nn.Module):
    """A linear model over hashed n-grams, for clients with very little computing power."""

    rate: ClassVar[float] = 5e-2
    is_linear: ClassVar[bool] = True
    """Methods may teach such a model in another way (AdaFD's `linear`)."""

    def __init__(self, vocabulary: int, classes: int, pad_id: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Embedding(vocabulary, classes)
        self.bias = nn.Parameter(torch.zeros(classes))
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.weight.weight)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.bias.dtype)
        # Whole n-grams are dropped: without that a linear model memorises its rows and looks like the best teacher.
        total: Tensor = (self.weight(input_ids) * self.dropout(mask)).sum(1)
        return total / mask.sum(1).clamp(min=1).sqrt() + self.bias


def _embed(embedding: nn.Embedding, ids: Tensor | None, mask: Tensor | None, given: Tensor | None) -> Tensor:
    words: Tensor = given if given is not None else embedding(ids)
    return words if mask is None else words * mask.unsqueeze(-1).to(words.dtype)


SMALL: dict[str, type[nn.Module]] = {"textcnn": TextCNN, "bigru": BiGRU, "bow": BagOfWords}
