"""The same logits in less time on a CPU: no padding in the linear layers, the last layer only at the first position.

It computes with the Hugging Face module's own parameters: nothing is copied or kept.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.learning.fast.anatomy import Anatomy, Layer, dissect
from fedstill.learning.fast.functions import Activation, Attend, AttendFirst, Embed, Transform, times
from fedstill.learning.fast.masks import Masks
from fedstill.learning.fast.settings import Fast
from fedstill.learning.fast.unpadded import Unpadded

KEYS = {"input_ids", "attention_mask", "token_type_ids"}


class Tokens(NamedTuple):
    """Word, position and type of every packed token."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    """None: all tokens are of type 0."""


def logits(module: nn.Module, batch: dict[str, Tensor], fast: Fast) -> Tensor | None:
    """The logits [B, C] of a batch of words, or of vectors for them; None where the module must compute them itself."""
    anatomy = dissect(module) if fast.encoder else None
    if anatomy is None or not _applies(anatomy):
        return None
    found = packed(anatomy, batch) if "input_ids" in batch else full(anatomy, batch)
    if found is None:
        return None
    texts, inputs = found
    masks = Masks(fast.masks) if module.training else None
    is_autocast = torch.is_autocast_enabled("cpu")
    narrow = is_autocast and anatomy.words.weight.dtype == torch.float32
    with torch.autocast("cpu", enabled=False) if is_autocast else nullcontext():
        states = embed(anatomy, inputs, masks) if isinstance(inputs, Tokens) else embed_vectors(anatomy, inputs, masks)
        for part in anatomy.layers[:-1] if fast.last_layer else anatomy.layers:
            states = layer(anatomy, part, states, texts, masks, narrow=narrow)
        if fast.last_layer:
            states = layer(anatomy, anatomy.layers[-1], states, texts, masks, only_first=True, narrow=narrow)
        else:
            states = states.index_select(0, texts.firsts)
        return head(anatomy, states, texts)


def head(anatomy: Anatomy, firsts: Tensor, texts: Unpadded) -> Tensor:
    """The logits, in the batch's order, from the states of first tokens."""
    states = firsts.index_select(0, texts.back)
    for part in anatomy.head:
        states = part(states)
    return states


def _applies(anatomy: Anatomy) -> bool:
    """Whether device and number format are supported here."""
    table = anatomy.words.weight
    is_plain = table.device.type == "cpu" and table.dtype in (torch.float32, torch.float64)
    return is_plain and (not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") == torch.bfloat16)


def full(anatomy: Anatomy, batch: dict[str, Tensor]) -> tuple[Unpadded, Tensor] | None:
    """A batch of vectors, which has no padding; None for one that the model itself must compute, or refuse."""
    vectors = batch.get("inputs_embeds")
    if vectors is None or len(batch) > 1 or vectors.ndim != 3 or not vectors.numel():
        return None
    table = anatomy.words.weight
    fits = vectors.shape[2] == table.shape[1] and _first(anatomy) + vectors.shape[1] <= anatomy.positions.num_embeddings
    return (_of_one_length(*vectors.shape[:2]), vectors) if fits and vectors.dtype == table.dtype else None


@lru_cache(maxsize=4)
def _of_one_length(texts: int, width: int) -> Unpadded:
    with torch.inference_mode(False):  # one that a prediction asked for first serves training, too
        return Unpadded(np.ones((texts, width), np.bool_))  # descents on inputs ask for a shape hundreds of times


def _first(anatomy: Anatomy) -> int:
    """The position of a text's first token."""
    return 0 if anatomy.first_position is None else anatomy.first_position + 1


def packed(anatomy: Anatomy, batch: dict[str, Tensor]) -> tuple[Unpadded, Tokens] | None:
    """The batch without padding; None for a batch that the model itself must compute, or refuse."""
    shapes = {tuple(value.shape) for value in batch.values()}
    if not batch.keys() <= KEYS or len(shapes) > 1 or batch["input_ids"].ndim != 2 or not batch["input_ids"].numel():
        return None
    ids = batch["input_ids"].numpy()
    mask = batch["attention_mask"].numpy() != 0 if "attention_mask" in batch else np.ones(ids.shape, np.bool_)
    types = batch["token_type_ids"].numpy() if "token_type_ids" in batch else None
    positions = _positions(anatomy, ids)
    if not mask[:, 0].all() or positions.max() >= anatomy.positions.num_embeddings:
        return None
    if types is not None and anatomy.types is None:
        return None
    texts = Unpadded(mask)
    is_one_type = types is None or not types.any()
    return texts, Tokens(
        texts.pick(ids), texts.pick(positions), None if is_one_type or types is None else texts.pick(types)
    )


def _positions(anatomy: Anatomy, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if anatomy.first_position is None:
        return np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    is_word = ids != anatomy.first_position
    counted: npt.NDArray[np.int64] = np.cumsum(is_word, axis=1) * is_word + anatomy.first_position
    return counted


def embed(anatomy: Anatomy, tokens: Tokens, masks: Masks | None) -> Tensor:
    """The states before the first layer."""
    parts = [(anatomy.words, tokens.words), (anatomy.positions, tokens.positions)]
    tables: list[tuple[nn.Embedding, Tensor | None]] = [*parts]
    if anatomy.types is not None:
        tables.append((anatomy.types, tokens.types))
    weight = anatomy.words.weight
    factor = masks and masks.draw((len(tokens.words), weight.shape[1]), anatomy.dropout, weight)
    return Embed.apply(  # type: ignore[no-any-return, no-untyped-call]
        [numbers for _, numbers in tables],
        [table.padding_idx for table, _ in tables],
        factor,
        anatomy.norm.eps,
        anatomy.norm.weight,
        anatomy.norm.bias,
        *(table.weight for table, _ in tables),
    )


def embed_vectors(anatomy: Anatomy, vectors: Tensor, masks: Masks | None) -> Tensor:
    """The same, where the words' vectors [texts, width, size] are given."""
    texts, width, size = vectors.shape
    start = _first(anatomy)
    total = vectors + anatomy.positions.weight[start : start + width]
    if anatomy.types is not None:
        total = total + anatomy.types.weight[0]
    rows = F.pad(total.reshape(-1, size), (0, 0, 0, _of_one_length(texts, width).rest))
    states = F.layer_norm(rows, (size,), anatomy.norm.weight, anatomy.norm.bias, anatomy.norm.eps)
    return times(states, None if masks is None else masks.draw(tuple(states.shape), anatomy.dropout, states))


def layer(
    anatomy: Anatomy,
    layer: Layer,
    states: Tensor,
    texts: Unpadded,
    masks: Masks | None,
    only_first: bool = False,
    narrow: bool = False,
) -> Tensor:
    """The states after a layer, of all tokens or of each text's first; `narrow`: with products in bf16."""
    heads, groups = anatomy.heads, texts.groups
    projections = [tensor for part in (layer.query, layer.key, layer.value) for tensor in (part.weight, part.bias)]
    if only_first:
        shapes = [(group.rows, heads, group.width) for group in groups]
    else:
        shapes = [(group.rows * heads, group.width, group.width) for group in groups]
    factors = [masks and masks.draw(shape, anatomy.attention_dropout, states) for shape in shapes]
    if only_first:
        found = AttendFirst.apply(states, texts, heads, factors, *projections)  # type: ignore[no-untyped-call]
        states = states.index_select(0, texts.firsts)
    else:
        found = Attend.apply(states, texts, heads, factors, narrow, *projections)  # type: ignore[no-untyped-call]
    shape = tuple(states.shape)
    parts = (layer.mix, layer.mix_norm, layer.up, layer.down, layer.down_norm)
    return Transform.apply(  # type: ignore[no-any-return, no-untyped-call]
        found,
        states,
        Activation(anatomy.activation_name, anatomy.activation),
        (
            masks and masks.draw(shape, anatomy.mix_dropout, states),
            masks and masks.draw(shape, anatomy.dropout, states),
        ),
        (layer.mix_norm.eps, layer.down_norm.eps),
        narrow,
        *(tensor for part in parts for tensor in (part.weight, part.bias)),
    )
