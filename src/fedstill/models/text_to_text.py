"""A text-to-text model (T5) as a classifier: it chooses the label whose text it would most likely write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.common.errors import FedstillError

T5 = ("t5", "mt5", "umt5")


class TextToText(nn.Module):
    """A Hugging Face encoder-decoder, and the text of every label as token ids, each with an end token.

    Its logits are log-likelihoods, so the loss on labelled rows is `likelihood`. Its state is the inner model's, with
    every tied parameter only once.
    """

    words: Tensor
    lengths: Tensor
    word_of: Tensor
    distinct: Tensor

    def __init__(self, inner: nn.Module, words: Tensor, lengths: Tensor, start_id: int) -> None:
        super().__init__()
        self.inner, self.start_id = inner, start_id
        config: Any = inner.config
        self.is_relative: bool = config.model_type in T5
        inside = torch.arange(words.shape[1]) < lengths[:, None]
        words = words.masked_fill(~inside, start_id)  # any valid id: these positions are masked
        _, word_of = torch.unique(torch.cat([words, lengths[:, None]], 1), dim=0, return_inverse=True)
        distinct = torch.tensor([word_of.tolist().index(number) for number in range(int(word_of.max()) + 1)])
        # Not part of the state: the same parameters can be used with other labels.
        for name, value in (("words", words), ("lengths", lengths), ("word_of", word_of), ("distinct", distinct)):
            self.register_buffer(name, value, persistent=False)
        self.register_state_dict_post_hook(_drop_tied)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_restore_tied)  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The log-likelihood of every label's text with its end token [B, C]."""
        states, mask = self._encode(input_ids, attention_mask, inputs_embeds)
        target = self.words[self.distinct]  # several tasks may use the same word: each is computed once
        logits = (self._decode_side_by_side if self.is_relative else self._decode_each)(states, mask, target)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = logits.gather(-1, target.expand(len(states), -1, -1)[..., None])[..., 0]
        total = ((chosen - logits.logsumexp(-1)) * self._mask(self.distinct)).sum(-1)
        return total[:, self.word_of]

    def target_logits(
        self,
        labels: Tensor,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The logits [B, L, V] of every token of each row's label, and the mask of real tokens [B, L]."""
        states, mask = self._encode(input_ids, attention_mask, inputs_embeds)
        return self._decode(states, mask, self._shifted(self.words[labels])), self._mask(labels)

    @torch.no_grad()
    def generate_labels(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The first label whose text is exactly what the model writes by greedy decoding; -1 if there is none.

        Labels with the same text cannot be told apart: compare them with `same_word`.
        """
        states, mask = self._encode(input_ids, attention_mask, inputs_embeds)
        written = self.words.new_zeros(len(states), 0)
        for _ in range(self.words.shape[1]):
            logits = self._decode(states, mask, self._shifted(F.pad(written, (0, 1))))
            written = torch.cat([written, logits[:, -1].argmax(-1, keepdim=True)], 1)
        inside = torch.arange(self.words.shape[1], device=written.device) < self.lengths[:, None]
        is_label = ((written[:, None] == self.words) | ~inside).all(-1)
        # argmax gives the first of equal values, but does not take booleans.
        return torch.where(is_label.any(-1), is_label.int().argmax(-1), -1)

    def same_word(self, one: Tensor, other: Tensor) -> Tensor:
        """Whether two labels have the same text; -1 equals no label."""
        word_of = self.word_of.to(one.device)
        return (one >= 0) & (other >= 0) & (word_of[one.clamp(min=0)] == word_of[other.clamp(min=0)])

    def get_input_embeddings(self) -> nn.Module:
        """The table of word embeddings."""
        table: nn.Module = self.inner.get_input_embeddings()  # type: ignore[operator]
        return table

    def save_pretrained(self, folder: Path) -> None:
        """Write the inner model for `AutoModelForSeq2SeqLM`."""
        self.inner.save_pretrained(folder)  # type: ignore[operator]

    def _encode(self, ids: Tensor | None, mask: Tensor | None, embedded: Tensor | None) -> tuple[Tensor, Tensor]:
        given = ids if ids is not None else embedded
        assert given is not None
        mask = mask if mask is not None else torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
        encoder = self.inner.get_encoder()  # type: ignore[operator]
        return encoder(input_ids=ids, attention_mask=mask, inputs_embeds=embedded).last_hidden_state, mask

    def _decode_each(self, states: Tensor, mask: Tensor, words: Tensor) -> Tensor:
        """The logits of all words for all texts [B, W, L, V]; every (text, word) is a row of the decoder's batch."""
        many = len(words)
        shifted = self._shifted(words).repeat(len(states), 1)
        logits = self._decode(states.repeat_interleave(many, 0), mask.repeat_interleave(many, 0), shifted)
        return logits.reshape(len(states), *words.shape, -1)

    def _decode_side_by_side(self, states: Tensor, mask: Tensor, words: Tensor) -> Tensor:
        """The same with all words of a text in one row, with a mask that hides them from each other.

        So the decoder projects a text's states once, not once for every word. This needs a model with relative
        positions only.
        """
        shifted = self._shifted(words).flatten()
        number = torch.arange(len(shifted), device=words.device)
        word = number // words.shape[1]
        sees = (word[:, None] == word) & (number[:, None] >= number)
        hidden = torch.zeros_like(sees, dtype=states.dtype).masked_fill(~sees, torch.finfo(states.dtype).min)
        rows = len(states)
        logits = self._decode(states, mask, shifted.expand(rows, -1), hidden.expand(rows, 1, -1, -1))
        return logits.reshape(rows, *words.shape, -1)

    def _decode(self, states: Tensor, mask: Tensor, shifted: Tensor, seen: Tensor | None = None) -> Tensor:
        """The logits of the token after every position, which sees only those before it (or what `seen` allows)."""
        output: Any = self.inner(
            encoder_outputs=(states,),
            attention_mask=mask,
            decoder_input_ids=shifted,
            # All ones: a start token that is also the padding must not be hidden, and later tokens are never seen.
            decoder_attention_mask=torch.ones_like(shifted) if seen is None else seen,
            use_cache=False,
        )
        logits: Tensor = output.logits
        return logits

    def _shifted(self, target: Tensor) -> Tensor:
        """The decoder's input for writing the target."""
        return F.pad(target[:, :-1], (1, 0), value=self.start_id)

    def _mask(self, labels: Tensor) -> Tensor:
        positions = torch.arange(self.words.shape[1], device=self.words.device)
        return positions < self.lengths[labels][:, None]


def is_text_to_text(config: Any) -> bool:
    """Whether the configuration is of an encoder-decoder that writes text."""
    if config.model_type in T5:
        return True
    names = config.architectures or ()
    return bool(config.is_encoder_decoder) and any(name.endswith("ForConditionalGeneration") for name in names)


def label_word(label: str) -> str:
    """The text of a label: `Entailment` for `rte/Entailment`, a label of the task rte."""
    return label.rpartition("/")[2]


def label_words(tokenizer: Any, labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The token ids of every label's text with the end token [C, L], padded, and their numbers [C]."""
    rows: list[list[int]] = []
    for label in labels:
        ids = list(tokenizer(label_word(label)).input_ids)
        rows.append(ids if ids and ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id])
    _refuse_equal(labels, rows)
    lengths = torch.tensor([len(row) for row in rows])
    words = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for number, row in enumerate(rows):
        words[number, : len(row)] = torch.tensor(row)
    return words, lengths


def keep_layers(config: Any, layers: int, name: str) -> None:
    """Change the configuration to the first layers of encoder and decoder."""
    if config.model_type not in T5:
        raise FedstillError(f"{name}: of text-to-text models, only T5's layers can be chosen.")
    fewer = min(config.num_layers, config.num_decoder_layers)
    if not 0 < layers <= fewer:
        raise FedstillError(f"{name}: the model has {fewer} layers, not {layers}.")
    config.num_layers = config.num_decoder_layers = layers


def _refuse_equal(labels: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    seen: dict[tuple[int, ...], str] = {}
    for label, row in zip(labels, rows, strict=True):
        other = seen.setdefault(tuple(row), label)
        if label_word(other) != label_word(label):
            raise FedstillError(
                f"the labels {other!r} and {label!r} have the same tokens for this model's tokenizer: rename one."
            )


def _tied(module: nn.Module) -> dict[str, str]:
    """Names of tied parameters -> the first name of the same parameter."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(p), name) for name, p in module.named_parameters(remove_duplicate=False)}
    return {name: other for name, other in names.items() if name != other}


def _drop_tied(module: nn.Module, state: dict[str, Tensor], prefix: str, about: Any) -> None:
    for name in _tied(module):
        state.pop(prefix + name, None)


def _restore_tied(module: nn.Module, state: dict[str, Tensor], prefix: str, *about: Any) -> None:
    for name, other in _tied(module).items():
        if prefix + other in state:
            state.setdefault(prefix + name, state[prefix + other])
