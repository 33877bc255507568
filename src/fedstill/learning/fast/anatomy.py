"""Where the Hugging Face classifiers that the fast path supports keep their parts: one description for all families.

The parts are the modules themselves: code that computes with an `Anatomy` uses the model's own parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """One layer: attention, then two linear layers; both blocks end with a residual connection and a norm."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mix: nn.Linear
    """Attention's output projection: combines what the heads computed."""
    mix_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    down_norm: nn.LayerNorm


@dataclass(frozen=True)
class Anatomy:
    """An encoder with a classifier on the first position's state."""

    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    norm: nn.LayerNorm
    layers: tuple[Layer, ...]
    heads: int
    activation: Callable[[Tensor], Tensor]
    activation_name: str
    first_position: int | None
    """None: positions are columns, from 0. Otherwise (RoBERTa) they count the tokens without padding, from this + 1."""
    dropout: float
    """After the embeddings, and after `down` in every layer."""
    mix_dropout: float
    """After `mix` in every layer; DistilBERT has none there."""
    attention_dropout: float
    head: tuple[nn.Module, ...]
    """The modules that turn the first position's state into logits, in this order."""


def dissect(module: nn.Module) -> Anatomy | None:
    """The module's anatomy, or None for kinds of models that are not supported."""
    if module not in _KNOWN:
        read = _FAMILIES.get(type(module).__name__) if type(module).__module__.startswith("transformers.") else None
        anatomy = read(module) if read is not None and _is_plain(module.config) else None
        _KNOWN[module] = anatomy if anatomy is not None and _has_plain_parts(anatomy) else None
    return _KNOWN[module]


_KNOWN: WeakKeyDictionary[nn.Module, Anatomy | None] = WeakKeyDictionary()


def _is_plain(config: Any) -> bool:
    """Whether the configuration has none of the options that change what is computed."""
    kind = getattr(config, "position_embedding_type", "absolute")
    decodes = getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False)
    return kind == "absolute" and not decodes and not getattr(config, "sinusoidal_pos_embds", False)


def _has_plain_parts(anatomy: Anatomy) -> bool:
    """Whether all parts are torch's own classes: a part that was replaced (an adapter, say) computes something else."""
    tables = [table for table in (anatomy.words, anatomy.positions, anatomy.types) if table is not None]
    parts = [part for layer in anatomy.layers for part in vars(layer).values()]
    kinds = {type(part) for part in (anatomy.norm, *tables, *parts)}
    return kinds == {nn.Embedding, nn.LayerNorm, nn.Linear} and all(table.max_norm is None for table in tables)


def _bert(module: Any) -> Anatomy:
    pooler = module.bert.pooler
    return _bert_like(module, module.bert, (pooler.dense, pooler.activation, module.dropout, module.classifier), None)


def _roberta(module: Any) -> Anatomy:
    head = module.classifier
    parts = (head.dropout, head.dense, nn.Tanh(), head.dropout, head.out_proj)
    return _bert_like(module, module.roberta, parts, module.roberta.embeddings.padding_idx)


def _bert_like(module: Any, encoder: Any, head: tuple[nn.Module, ...], first_position: int | None) -> Anatomy:
    config, embeddings = module.config, encoder.embeddings
    return Anatomy(
        words=embeddings.word_embeddings,
        positions=embeddings.position_embeddings,
        types=embeddings.token_type_embeddings,
        norm=embeddings.LayerNorm,
        layers=tuple(
            Layer(
                layer.attention.self.query,
                layer.attention.self.key,
                layer.attention.self.value,
                layer.attention.output.dense,
                layer.attention.output.LayerNorm,
                layer.intermediate.dense,
                layer.output.dense,
                layer.output.LayerNorm,
            )
            for layer in encoder.encoder.layer
        ),
        heads=config.num_attention_heads,
        activation=encoder.encoder.layer[0].intermediate.intermediate_act_fn,
        activation_name=str(config.hidden_act),
        first_position=first_position,
        dropout=config.hidden_dropout_prob,
        mix_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        head=head,
    )


def _distilbert(module: Any) -> Anatomy:
    config, encoder = module.config, module.distilbert
    return Anatomy(
        words=encoder.embeddings.word_embeddings,
        positions=encoder.embeddings.position_embeddings,
        types=None,
        norm=encoder.embeddings.LayerNorm,
        layers=tuple(
            Layer(
                layer.attention.q_lin,
                layer.attention.k_lin,
                layer.attention.v_lin,
                layer.attention.out_lin,
                layer.sa_layer_norm,
                layer.ffn.lin1,
                layer.ffn.lin2,
                layer.output_layer_norm,
            )
            for layer in encoder.transformer.layer
        ),
        heads=config.n_heads,
        activation=encoder.transformer.layer[0].ffn.activation,
        activation_name=str(config.activation),
        first_position=None,
        dropout=config.dropout,
        mix_dropout=0.0,
        attention_dropout=config.attention_dropout,
        head=(module.pre_classifier, nn.ReLU(), module.dropout, module.classifier),
    )


_FAMILIES: dict[str, Callable[[Any], Anatomy]] = {
    "BertForSequenceClassification": _bert,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
    "CamembertForSequenceClassification": _roberta,
    "DistilBertForSequenceClassification": _distilbert,
}
