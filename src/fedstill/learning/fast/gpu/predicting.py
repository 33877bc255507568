"""Prediction of many rows by one model on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.learning.fast.anatomy import Anatomy
from fedstill.learning.fast.gpu.attention import Texts
from fedstill.learning.fast.gpu.kernels import NARROW
from fedstill.learning.fast.gpu.layers import EmbeddingParts, StackedLayer, embed
from fedstill.learning.fast.gpu.stack import layer_parts, matrices, numbers_of, tables, through_head, vectors


class PackedModel:
    """One client's model for prediction: no dropout, no backward pass, and no graph, since batches are large."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        weights = [torch.cat(slot).to(NARROW)[None] for slot in matrices(anatomy)]
        small = [torch.cat(slot)[None] for slot in vectors(anatomy)]
        self.numbers = numbers_of(anatomy).without_dropout()
        self.layers = [
            StackedLayer(layer_parts(weights, small, number), None, self.numbers, 0)
            for number in range(len(anatomy.layers))
        ]
        words, positions, *types = (table.weight for table in tables(anatomy))
        self.embedding = EmbeddingParts(words, positions, types[0] if types else None, small[0], small[1])
        self.head = small[2 + 8 * len(self.layers) :]
        self.seed = torch.zeros(1, dtype=torch.int32, device=words.device)

    def logits(self, longest: int, ids: Tensor, positions: Tensor, types: Tensor, starts: Tensor) -> Tensor:
        """The logits of these texts, [texts, classes]."""
        every = Texts(starts, starts, longest, longest, self.anatomy.heads)
        asking = torch.arange(len(starts), dtype=torch.int32, device=starts.device)
        x, _ = embed(self.embedding, ids, positions, types, self.numbers, self.seed, 1)
        for layer in self.layers[:-1]:
            x = layer.forward(x, every, self.seed)
        last = Texts(asking, starts, 1, longest, self.anatomy.heads)
        x = self.layers[-1].forward(x, last, self.seed, starts[:-1])
        return through_head(self.anatomy, x.float(), self.head, self.seed, drops=False)[0]
