"""The encoders of several clients at once, with hand-written forward and backward passes, for GPUs.

All clients have one architecture, and their parameters are stacked: [clients, ...]. Products are in bf16, batched over
clients; everything between two products is one kernel. Gradients are written where the optimiser reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.learning.fast.gpu.attention import Asked, Texts, attend, attend_backward
from fedstill.learning.fast.gpu.kernels import activate, activate_backward, norm_backward, norm_forward

Norm = tuple[Tensor, Tensor, Tensor]
"""What a normalisation keeps for its backward pass."""


@dataclass(frozen=True)
class LayerParts:
    """A layer's parameters or their gradients, stacked: matrices [clients, out, in], vectors [clients, out]."""

    qkv: Tensor
    qkv_bias: Tensor
    mix: Tensor
    mix_bias: Tensor
    mix_gamma: Tensor
    mix_beta: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    down_gamma: Tensor
    down_beta: Tensor


@dataclass(frozen=True)
class Numbers:
    """The settings that are the same in every step."""

    eps: float
    activation: str
    dropout: float
    mix_dropout: float
    attention_dropout: float

    def without_dropout(self) -> Numbers:
        """The same for prediction."""
        return Numbers(self.eps, self.activation, 0.0, 0.0, 0.0)


def product(a: Tensor, b: Tensor, plus: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a @ b for every client, added to `plus` in place if given; for one client a plain product, which is faster."""
    if len(a) == 1:
        if plus is not None:
            plus[0].addmm_(a[0], b[0])
            return plus
        return torch.mm(a[0], b[0], out=None if out is None else out[0])[None]
    if plus is not None:
        return plus.baddbmm_(a, b)
    return torch.bmm(a, b, out=out)


class StackedLayer:
    """One layer's forward and backward pass."""

    def __init__(self, parts: LayerParts, gradients: LayerParts | None, numbers: Numbers, site: int) -> None:
        self.parts, self.gradients, self.numbers, self.site = parts, gradients, numbers, site

    def forward(self, x: Tensor, texts: Texts, seed: Tensor, first: Tensor | None = None) -> Tensor:
        """The layer's output; with `first`, only for these rows [clients * rows] of all clients' tokens."""
        parts, numbers = self.parts, self.numbers
        clients, _, width = x.shape
        if first is None:
            flat = product(x, parts.qkv.transpose(1, 2)).view(-1, 3 * width)
            q, k, v = flat[:, :width], flat[:, width : 2 * width], flat[:, 2 * width :]
            residual = x
        else:
            residual = x.view(-1, width).index_select(0, first).view(clients, -1, width)
            q = product(residual, parts.qkv[:, :width].transpose(1, 2)).view(-1, width)
            flat = product(x, parts.qkv[:, width:].transpose(1, 2)).view(-1, 2 * width)
            k, v = flat[:, :width], flat[:, width:]
        asked = Asked(q, k, v, parts.qkv_bias)
        found, lse = attend(asked, texts, seed, self.site, numbers.attention_dropout)
        mixed = product(found.view(clients, -1, width), parts.mix.transpose(1, 2))
        middle, mix_norm = norm_forward(
            mixed, parts.mix_bias, residual, parts.mix_gamma, parts.mix_beta, numbers.eps, seed, self.site + 1,
            numbers.mix_dropout,
        )  # fmt: skip
        risen = product(middle, parts.up.transpose(1, 2))
        active = activate(risen, parts.up_bias, numbers.activation)
        fallen = product(active, parts.down.transpose(1, 2))
        out, down_norm = norm_forward(
            fallen, parts.down_bias, middle, parts.down_gamma, parts.down_beta, numbers.eps, seed, self.site + 2,
            numbers.dropout,
        )  # fmt: skip
        if self.gradients is not None:
            self.kept = (x, asked, found, lse, mix_norm, middle, risen, active, down_norm, residual)
        return out

    def backward(self, dout: Tensor, texts: Texts, seed: Tensor, first: Tensor | None = None) -> Tensor:
        """The gradient of the layer's input; those of its parameters are written to `self.gradients`."""
        parts, grads, numbers = self.parts, self.gradients, self.numbers
        assert grads is not None
        x, asked, found, lse, mix_norm, middle, risen, active, down_norm, residual = self.kept
        del self.kept  # frees the memory for the next layers' gradients
        clients, _, width = x.shape
        dmiddle, dfallen, sums = norm_backward(dout, down_norm, parts.down_gamma, seed, self.site + 2, numbers.dropout)
        _write(sums, grads.down_gamma, grads.down_beta, grads.down_bias)
        product(dfallen.transpose(1, 2), active, out=grads.down)
        drisen, dbias = activate_backward(product(dfallen, parts.down), risen, parts.up_bias, numbers.activation)
        grads.up_bias.copy_(dbias)
        product(drisen.transpose(1, 2), middle, out=grads.up)
        product(drisen, parts.up, plus=dmiddle)
        dresidual, dmixed, sums = norm_backward(
            dmiddle, mix_norm, parts.mix_gamma, seed, self.site + 1, numbers.mix_dropout
        )
        _write(sums, grads.mix_gamma, grads.mix_beta, grads.mix_bias)
        product(dmixed.transpose(1, 2), found.view(clients, -1, width), out=grads.mix)
        dfound = product(dmixed, parts.mix).view(-1, width)
        if first is None:
            dqkv = torch.empty(clients, x.shape[1], 3 * width, dtype=x.dtype, device=x.device)
            flat = dqkv.view(-1, 3 * width)
            into = (flat[:, :width], flat[:, width : 2 * width], flat[:, 2 * width :])
            attend_backward(dfound, asked, found, lse, into, texts, seed, self.site, numbers.attention_dropout)
            torch.sum(dqkv, 1, dtype=torch.float32, out=grads.qkv_bias)
            product(dqkv.transpose(1, 2), x, out=grads.qkv)
            return product(dqkv, parts.qkv, plus=dresidual)
        dq = torch.empty_like(asked.q)
        dkv = torch.empty(clients, x.shape[1], 2 * width, dtype=x.dtype, device=x.device)
        flat = dkv.view(-1, 2 * width)
        into = (dq, flat[:, :width], flat[:, width:])
        attend_backward(dfound, asked, found, lse, into, texts, seed, self.site, numbers.attention_dropout)
        dq = dq.view(clients, -1, width)
        grads.qkv_bias[:, :width] = dq.sum(1, dtype=torch.float32)
        grads.qkv_bias[:, width:] = dkv.sum(1, dtype=torch.float32)
        product(dq.transpose(1, 2), residual, out=grads.qkv[:, :width])
        product(dkv.transpose(1, 2), x, out=grads.qkv[:, width:])
        dx = product(dkv, parts.qkv[:, width:])
        product(dq, parts.qkv[:, :width], plus=dresidual)
        # The rows in `first` differ, except those of absent texts, whose gradients are zero: the order has no effect.
        dx.view(-1, width).index_add_(0, first, dresidual.view(-1, width))
        return dx


def _write(sums: Tensor, gamma: Tensor, beta: Tensor, bias: Tensor) -> None:
    gamma.copy_(sums[:, 0])
    beta.copy_(sums[:, 1])
    bias.copy_(sums[:, 2])


@dataclass(frozen=True)
class EmbeddingParts:
    """The embedding layer's tables, each [clients * rows, width], and its norm."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    gamma: Tensor
    beta: Tensor


def embed(
    parts: EmbeddingParts, ids: Tensor, positions: Tensor, types: Tensor, numbers: Numbers, seed: Tensor, clients: int
) -> tuple[Tensor, Norm]:
    """Words, positions and types, added and normalised, with dropout; indices are into the tables of all clients."""
    total = F.embedding(ids, parts.words) + F.embedding(positions, parts.positions)
    if parts.types is not None:
        total += F.embedding(types, parts.types)
    total = total.view(clients, -1, total.shape[-1])
    return norm_forward(total, None, None, parts.gamma, parts.beta, numbers.eps, seed, 0, numbers.dropout, True)


def embed_backward(
    dout: Tensor, kept: Norm, parts: EmbeddingParts, grads: EmbeddingParts, indices: tuple[Tensor, Tensor, Tensor],
    numbers: Numbers, seed: Tensor,
) -> None:  # fmt: skip
    """Write the gradients of the embedding layer to `grads`."""
    dtotal, _, sums = norm_backward(dout, kept, parts.gamma, seed, 0, numbers.dropout, True)
    grads.gamma.copy_(sums[:, 0])
    grads.beta.copy_(sums[:, 1])
    for table, index in zip((grads.words, grads.positions, grads.types), indices, strict=True):
        if table is not None:
            table.copy_(_gathered(dtotal, index, len(table)))


def _gathered(rows: Tensor, index: Tensor, many: int) -> Tensor:
    """The sums of rows with the same index; always added in the same order, so that equal inputs give equal bits."""
    clients, tokens, width = rows.shape
    if many > 1024 * clients:
        found: Tensor = torch.ops.aten.embedding_dense_backward(rows.view(-1, width), index, many, -1, False)
        return found
    # For a short table a matrix product: (which row has which index) @ rows.
    numbers = torch.arange(many, dtype=index.dtype, device=index.device).view(clients, -1, 1)
    return product((index.view(clients, 1, tokens) == numbers).to(rows.dtype), rows).view(many, width)
