"""Learning only the embeddings of words that occur: most parameters of a small model are embeddings of other words.

Without weight decay the rows of other words cannot change, but an optimiser still reads all of them at every step. So
during a phase the model has an embedding table of only the words in the phase's data, with the data's ids renumbered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstill.data.corpus import Ints
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore

LARGEST = 0.5
"""The largest share of the words that may occur: with more there is little to gain."""


class Vocabulary:
    """A model's word embeddings while only some words (`words`, sorted) are in use."""

    def __init__(self, embedding: nn.Embedding, words: Ints) -> None:
        self.embedding = embedding
        self.all: nn.Parameter = embedding._parameters["weight"]  # type: ignore[assignment]
        self.words = torch.from_numpy(words).to(self.all.device)
        self.some = nn.Parameter(self.all.detach().index_select(0, self.words))

    @contextmanager
    def in_use(self, parameters: list[nn.Parameter], optimiser: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, the model, the list and the optimiser have the smaller table; afterwards the full one again.

        It is for a whole phase, after which the optimiser is not used again: it forgets its state of these words.
        """
        self.embedding.weight = self.some
        lists = [parameters, *(group["params"] for group in optimiser.param_groups)]
        for each in lists:
            _replace(each, self.all, self.some)
        try:
            yield
        finally:
            self._give_back()
            for each in lists:
                _replace(each, self.some, self.all)
            optimiser.state.pop(self.some, None)

    @contextmanager
    def laid_aside(self) -> Iterator[None]:
        """Inside, the model has its full table, so that it can be read or changed between two epochs."""
        self._give_back()
        try:
            yield
        finally:
            with torch.no_grad():
                self.some.copy_(self.all.index_select(0, self.words))
            self.embedding.weight = self.some

    def _give_back(self) -> None:
        with torch.no_grad():
            self.all.index_copy_(0, self.words, self.some)
        self.embedding.weight = self.all


def shrink(model: nn.Module, data: Examples) -> tuple[Vocabulary, Examples] | None:
    """A table of the data's words, and the data with renumbered ids; None where it is impossible or gains little."""
    embedding = _words_of(model)
    if embedding is None or not isinstance(data.store, TokenStore) or not len(data):
        return None
    store = data.store
    lengths = data.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(store.offsets[data.rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    ids = store.ids[places]
    occurs = np.zeros(embedding.num_embeddings, np.bool_)
    occurs[ids] = True
    # Models compare ids with some special ones (padding, to count positions; the end of a text): those must not change.
    occurs[: 1 + max(store.pad_id, embedding.padding_idx or 0, *_special(model))] = True
    words = occurs.nonzero()[0]
    if len(words) > LARGEST * len(occurs):
        return None
    number = np.cumsum(occurs, dtype=np.int32) - 1
    types = None if store.types is None else store.types[places]
    own = TokenStore(number[ids].astype(np.int32), offsets, types, store.pad_id, store.pads_left)
    return Vocabulary(embedding, words), Examples(own, np.arange(len(data)))


def _words_of(model: nn.Module) -> nn.Embedding | None:
    """The model's word embeddings, if they are learnt, not shared with another layer, and plain table lookups."""
    embedding: Any
    if getattr(model, "only_embeds_words", False):  # set by our small models
        embedding = model.embedding
    elif type(model).__module__.startswith("transformers."):
        try:
            embedding = model.get_input_embeddings()  # type: ignore[operator]
        except (NotImplementedError, AttributeError):
            return None
        if type(embedding) is not nn.Embedding or embedding.num_embeddings != model.config.vocab_size:  # type: ignore[union-attr]
            return None
    else:
        return None
    is_plain = embedding.max_norm is None and not embedding.sparse and not embedding.scale_grad_by_freq
    uses = sum(value is embedding.weight for _, value in model.named_parameters(remove_duplicate=False))
    return embedding if is_plain and uses == 1 and embedding.weight.requires_grad else None


def _special(model: nn.Module) -> list[int]:
    """The ids of the special tokens in the model's configuration."""
    config = getattr(model, "config", None)
    values = [] if config is None else [v for key, v in config.to_dict().items() if key.endswith("_token_id")]
    return [0, *(value for value in values if isinstance(value, int))]


def _replace(parameters: list[nn.Parameter], old: nn.Parameter, new: nn.Parameter) -> None:
    parameters[:] = [new if each is old else each for each in parameters]
