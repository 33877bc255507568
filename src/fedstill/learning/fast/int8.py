"""Prediction on a CPU with the weights of linear layers in eight bits: less exact, and faster.

As `encoder`, over packed tokens, but with copies of the weights: each row of a matrix has its scale, and the states get
theirs as they come. Embeddings, attention, norms, the last layer and the head stay in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.learning.fast import encoder
from fedstill.learning.fast.anatomy import Anatomy, Layer, dissect
from fedstill.learning.fast.functions import Activation, shares_of
from fedstill.learning.fast.unpadded import Unpadded

LARGEST = 127
ENGINE = "fbgemm"
"""Of torch's engines the one that needs no special instructions: with others a process may end on some machines."""


class Product:
    """A linear layer, or several side by side, in eight bits."""

    def __init__(self, *parts: nn.Linear) -> None:
        weight = torch.cat([part.weight.detach() for part in parts])
        bias = torch.cat([part.bias.detach() for part in parts])
        scales = (weight.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch may drop these functions; `quantised` then says so
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, ENGINE
        try:
            self.packed: Any = torch.ops.quantized.linear_prepack(rounded, bias)
        finally:
            torch.backends.quantized.engine = before

    def __call__(self, states: Tensor) -> Tensor:
        found: Tensor = torch.ops.quantized.linear_dynamic(states, self.packed, True)
        return found


@dataclass(frozen=True)
class Products:
    """Those of a layer."""

    projections: Product
    mix: Product
    up: Product
    down: Product

    @classmethod
    def of(cls, layer: Layer) -> Products:
        """Copies of a layer's weights."""
        projections = Product(layer.query, layer.key, layer.value)
        return cls(projections, Product(layer.mix), Product(layer.up), Product(layer.down))


def quantised(module: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
    """How to get a batch's logits, with the weights that the module has now; raises where that cannot be."""
    anatomy = dissect(module)
    if anatomy is None or anatomy.words.weight.device.type != "cpu" or anatomy.words.weight.dtype != torch.float32:
        raise FedstillError("int8 is for BERT-, RoBERTa- and DistilBERT-like classifiers on a CPU: leave it out.")
    if not hasattr(torch, "quantize_per_channel") or ENGINE not in torch.backends.quantized.supported_engines:
        raise FedstillError(f"int8 needs torch's {ENGINE}, which this torch is without: leave it out.")
    layers = [(layer, Products.of(layer)) for layer in anatomy.layers[:-1]]

    def logits(batch: dict[str, Tensor]) -> Tensor:
        packed = encoder.packed(anatomy, batch)
        if packed is None:
            output: Tensor = module(**batch).logits
            return output
        texts, tokens = packed
        states = encoder.embed(anatomy, tokens, None)
        for layer, products in layers:
            states = _layer(anatomy, layer, products, states, texts)
        return encoder.head(anatomy, encoder.layer(anatomy, anatomy.layers[-1], states, texts, None, True), texts)

    return logits


def _layer(anatomy: Anatomy, layer: Layer, products: Products, states: Tensor, texts: Unpadded) -> Tensor:
    heads, size = anatomy.heads, states.shape[1]
    projected = texts.without_rest(products.projections(states))
    found = texts.without_rest(torch.empty_like(states))
    for group in texts.groups:
        query, key, value = group.spread(projected, 3, heads)
        shares = shares_of(group, query, key, heads, (size // heads) ** -0.5)
        group.gather(torch.bmm(shares, value), 1, heads, found)
    middle = layer.mix_norm(products.mix(found).add_(states))
    active = Activation(anatomy.activation_name, anatomy.activation).forward(products.up(middle))
    normed: Tensor = layer.down_norm(products.down(active).add_(middle))
    return normed
