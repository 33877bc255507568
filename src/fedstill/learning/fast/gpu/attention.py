"""Attention over packed texts of different lengths, with dropout, as two Triton kernels.

Text i has the queries [query_starts[i], query_starts[i + 1]) and the keys [key_starts[i], key_starts[i + 1]); the heads
are side by side in a row. Scores are never written to memory. No sum uses atomics, so equal inputs give equal bits.
"""

# Triton's functions have no types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedstill.learning.fast.gpu.kernels import _keep, _threshold


@triton.jit
def _read(values, bias, place, own, inside):
    """Values plus their client's bias, rounded to the values' number format."""
    found = tl.load(values + place, inside, other=0.0)
    total = found.to(tl.float32) + tl.load(bias + own)[None, :]
    return tl.where(inside, total, 0.0).to(found.dtype)


@triton.jit(do_not_specialize=["site", "query_row", "key_row"])
def _forward(
    q, k, v, q_bias, k_bias, v_bias, out, lse, query_starts, key_starts, seed, query_row, key_row, bias_row, texts,
    longest, scale, threshold, kept_scale, site,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0)
    head = tl.program_id(1)
    q0 = tl.load(query_starts + text)
    queries = tl.load(query_starts + text + 1) - q0
    k0 = tl.load(key_starts + text)
    keys = tl.load(key_starts + text + 1) - k0
    i = tl.program_id(2) * M + tl.arange(0, M)
    if tl.program_id(2) * M < queries:
        d = tl.arange(0, D)
        mine = (i < queries)[:, None]
        own = (text // texts) * bias_row + head * D + d
        Q = _read(q, q_bias, (q0 + i)[:, None] * query_row + head * D + d[None, :], own, mine)
        highest = tl.full([M], -float("inf"), tl.float32)
        weight = tl.zeros([M], tl.float32)
        found = tl.zeros([M, D], tl.float32)
        for start in range(0, keys, N):
            j = start + tl.arange(0, N)
            theirs = (j < keys)[:, None]
            place = (k0 + j)[:, None] * key_row + head * D + d[None, :]
            K = _read(k, k_bias, place, own, theirs)
            V = _read(v, v_bias, place, own, theirs)
            S = tl.where((j < keys)[None, :], tl.dot(Q, tl.trans(K)) * scale, -float("inf"))
            above = tl.maximum(highest, tl.max(S, 1))
            P = tl.exp(S - above[:, None])
            shrink = tl.exp(highest - above)
            weight = weight * shrink + tl.sum(P, 1)
            if DROPS:
                index = ((text * HEADS + head) * longest + i[:, None]) * longest + j[None, :]
                P = tl.where(_keep(tl.load(seed), site, index, threshold), P * kept_scale, 0.0)
            found = found * shrink[:, None] + tl.dot(P.to(V.dtype), V)
            highest = above
        found = found / weight[:, None]
        tl.store(out + (q0 + i)[:, None] * (HEADS * D) + head * D + d[None, :], found.to(out.dtype.element_ty), mine)
        tl.store(lse + (q0 + i) * HEADS + head, highest + tl.log(weight), i < queries)


@triton.jit(do_not_specialize=["site", "query_row", "key_row"])
def _backward(
    q, k, v, q_bias, k_bias, v_bias, out, lse, dout, dq, dk, dv, query_starts, key_starts, seed, query_row, key_row,
    bias_row, texts, longest, scale, threshold, kept_scale, site, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.program_id(2)
    q0 = tl.load(query_starts + text)
    queries = tl.load(query_starts + text + 1) - q0
    k0 = tl.load(key_starts + text)
    keys = tl.load(key_starts + text + 1) - k0
    d = tl.arange(0, D)
    own = (text // texts) * bias_row + head * D + d
    if block * N < keys:  # as keys: gradients of K and V
        j = block * N + tl.arange(0, N)
        theirs = (j < keys)[:, None]
        place = (k0 + j)[:, None] * key_row + head * D + d[None, :]
        K = _read(k, k_bias, place, own, theirs)
        V = _read(v, v_bias, place, own, theirs)
        dK = tl.zeros([N, D], tl.float32)
        dV = tl.zeros([N, D], tl.float32)
        for start in range(0, queries, M):
            i = start + tl.arange(0, M)
            mine = (i < queries)[:, None]
            Q = _read(q, q_bias, (q0 + i)[:, None] * query_row + head * D + d[None, :], own, mine)
            flat = (q0 + i)[:, None] * (HEADS * D) + head * D + d[None, :]
            out_rows = tl.load(out + flat, mine, other=0.0).to(tl.float32)
            dO = tl.load(dout + flat, mine, other=0.0)
            L = tl.load(lse + (q0 + i) * HEADS + head, i < queries, other=0.0)
            level = tl.sum(out_rows * dO.to(tl.float32), 1)
            S = tl.dot(K, tl.trans(Q)) * scale
            P = tl.where(theirs & (i < queries)[None, :], tl.exp(S - L[None, :]), 0.0)
            dP = tl.dot(V, tl.trans(dO))
            kept = P
            if DROPS:
                index = ((text * HEADS + head) * longest + i[None, :]) * longest + j[:, None]
                keep = _keep(tl.load(seed), site, index, threshold)
                kept = tl.where(keep, P * kept_scale, 0.0)
                dP = tl.where(keep, dP * kept_scale, 0.0)
            dV += tl.dot(kept.to(dO.dtype), dO)
            dS = P * (dP - level[None, :])
            dK += tl.dot(dS.to(Q.dtype), Q)
        tl.store(dk + place, (dK * scale).to(dk.dtype.element_ty), theirs)
        tl.store(dv + place, dV.to(dv.dtype.element_ty), theirs)
    if block * M < queries:  # as queries: gradients of Q
        i = block * M + tl.arange(0, M)
        mine = (i < queries)[:, None]
        rows = (q0 + i)[:, None] * query_row + head * D + d[None, :]
        flat = (q0 + i)[:, None] * (HEADS * D) + head * D + d[None, :]
        Q = _read(q, q_bias, rows, own, mine)
        dO = tl.load(dout + flat, mine, other=0.0)
        level = tl.sum(tl.load(out + flat, mine, other=0.0).to(tl.float32) * dO.to(tl.float32), 1)
        L = tl.load(lse + (q0 + i) * HEADS + head, i < queries, other=0.0)
        dQ = tl.zeros([M, D], tl.float32)
        for start in range(0, keys, N):
            j = start + tl.arange(0, N)
            theirs = (j < keys)[:, None]
            place = (k0 + j)[:, None] * key_row + head * D + d[None, :]
            K = _read(k, k_bias, place, own, theirs)
            V = _read(v, v_bias, place, own, theirs)
            S = tl.dot(Q, tl.trans(K)) * scale
            P = tl.where(mine & (j < keys)[None, :], tl.exp(S - L[:, None]), 0.0)
            dP = tl.dot(dO, tl.trans(V))
            if DROPS:
                index = ((text * HEADS + head) * longest + i[:, None]) * longest + j[None, :]
                dP = tl.where(_keep(tl.load(seed), site, index, threshold), dP * kept_scale, 0.0)
            dQ += tl.dot((P * (dP - level[:, None])).to(K.dtype), K)
        tl.store(dq + rows, (dQ * scale).to(dq.dtype.element_ty), mine)


@triton.jit
def _text_backward(
    q, k, v, q_bias, k_bias, v_bias, out, lse, dout, dq, dk, dv, seed, q0, queries, k0, keys, query_row, key_row, own,
    text, head, longest, scale, threshold, kept_scale, site, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """One head of one text that is small enough for a block of M queries and N keys."""
    d = tl.arange(0, D)
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    mine = (i < queries)[:, None]
    theirs = (j < keys)[:, None]
    rows = (q0 + i)[:, None] * query_row + head * D + d[None, :]
    flat = (q0 + i)[:, None] * (HEADS * D) + head * D + d[None, :]
    place = (k0 + j)[:, None] * key_row + head * D + d[None, :]
    Q = _read(q, q_bias, rows, own, mine)
    K = _read(k, k_bias, place, own, theirs)
    V = _read(v, v_bias, place, own, theirs)
    dO = tl.load(dout + flat, mine, other=0.0)
    level = tl.sum(tl.load(out + flat, mine, other=0.0).to(tl.float32) * dO.to(tl.float32), 1)
    L = tl.load(lse + (q0 + i) * HEADS + head, i < queries, other=0.0)
    S = tl.dot(Q, tl.trans(K)) * scale
    P = tl.where(mine & (j < keys)[None, :], tl.exp(S - L[:, None]), 0.0)
    dP = tl.dot(dO, tl.trans(V))
    kept = P
    if DROPS:
        index = ((text * HEADS + head) * longest + i[:, None]) * longest + j[None, :]
        keep = _keep(tl.load(seed), site, index, threshold)
        kept = tl.where(keep, P * kept_scale, 0.0)
        dP = tl.where(keep, dP * kept_scale, 0.0)
    dV = tl.dot(tl.trans(kept.to(dO.dtype)), dO)
    tl.store(dv + place, dV.to(dv.dtype.element_ty), theirs)
    dS = (P * (dP - level[:, None]) * scale).to(Q.dtype)
    tl.store(dk + place, tl.dot(tl.trans(dS), Q).to(dk.dtype.element_ty), theirs)
    tl.store(dq + rows, tl.dot(dS, K).to(dq.dtype.element_ty), mine)


@triton.jit(do_not_specialize=["site", "query_row", "key_row"])
def _backward_at_once(
    q, k, v, q_bias, k_bias, v_bias, out, lse, dout, dq, dk, dv, query_starts, key_starts, seed, query_row, key_row,
    bias_row, texts, longest, scale, threshold, kept_scale, site, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, HALF: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """For texts that fit into one block: scores are computed only once, and short texts use a smaller block."""
    text = tl.program_id(0)
    head = tl.program_id(1)
    q0 = tl.load(query_starts + text)
    queries = tl.load(query_starts + text + 1) - q0
    k0 = tl.load(key_starts + text)
    keys = tl.load(key_starts + text + 1) - k0
    own = (text // texts) * bias_row + head * D + tl.arange(0, D)
    if keys > 0:
        if N == 128 and keys <= 64:
            _text_backward(
                q, k, v, q_bias, k_bias, v_bias, out, lse, dout, dq, dk, dv, seed, q0, queries, k0, keys, query_row,
                key_row, own, text, head, longest, scale, threshold, kept_scale, site, HEADS, D, HALF, 64, DROPS,
            )  # fmt: skip
        else:
            _text_backward(
                q, k, v, q_bias, k_bias, v_bias, out, lse, dout, dq, dk, dv, seed, q0, queries, k0, keys, query_row,
                key_row, own, text, head, longest, scale, threshold, kept_scale, site, HEADS, D, M, N, DROPS,
            )  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """Where each text's queries and keys start, and how long texts can be."""

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest: int
    heads: int
    clients: int = 1

    @property
    def many(self) -> int:
        """The number of texts, including those that only fill unused space."""
        return len(self.key_starts) - 1


@dataclass(frozen=True)
class Asked:
    """Queries, keys and values, [rows, width], still without their biases."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor
    """[clients, 3 * width]: of queries, keys and values."""

    def arguments(self, texts: Texts) -> tuple[tuple[Tensor, ...], tuple[int, ...], float, int]:
        """The kernels' arguments: arrays, strides, the scale of scores, and a head's width."""
        width = self.q.shape[-1]
        biases = (self.bias, self.bias[:, width:], self.bias[:, 2 * width :])
        strides = (self.q.stride(0), self.k.stride(0), self.bias.stride(0), texts.many // texts.clients, texts.longest)
        head = width // texts.heads
        return (self.q, self.k, self.v, *biases), strides, head**-0.5, head


def attend(asked: Asked, texts: Texts, seed: Tensor, site: int, dropout: float) -> tuple[Tensor, Tensor]:
    """Every query's output [queries, width], and its log-sum-exp of scores, which the backward pass needs."""
    q = asked.q
    arrays, strides, scale, head = asked.arguments(texts)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(len(q), texts.heads, dtype=torch.float32, device=q.device)
    block = 16 if texts.longest_query == 1 else 64
    _forward[texts.many, texts.heads, triton.cdiv(texts.longest_query, block)](
        *arrays, out, lse, texts.query_starts, texts.key_starts, seed, *strides, scale, _threshold(dropout),
        1.0 / (1.0 - dropout), site, HEADS=texts.heads, D=head, M=block, N=64, DROPS=dropout > 0, num_warps=4,
    )  # fmt: skip
    return out, lse


def attend_backward(
    dout: Tensor, asked: Asked, out: Tensor, lse: Tensor, into: tuple[Tensor, Tensor, Tensor], texts: Texts,
    seed: Tensor, site: int, dropout: float,
) -> None:  # fmt: skip
    """Write the gradients of q, k and v to `into`, which has their layout."""
    arrays, strides, scale, head = asked.arguments(texts)
    fits = texts.longest <= 128
    keys = triton.next_power_of_2(max(16, texts.longest)) if fits else 64
    queries = 16 if texts.longest_query == 1 else keys
    blocks = max(triton.cdiv(texts.longest_query, queries), triton.cdiv(texts.longest, keys))
    kernel = (
        partial(_backward_at_once[texts.many, texts.heads], HALF=min(queries, 64))
        if fits
        else _backward[texts.many, texts.heads, blocks]
    )
    kernel(
        *arrays, out, lse, dout, *into, texts.query_starts, texts.key_starts, seed, *strides, scale,
        _threshold(dropout), 1.0 / (1.0 - dropout), site, HEADS=texts.heads, D=head, M=queries, N=keys,
        DROPS=dropout > 0, num_warps=8 if queries * keys > 64 * 64 else 4,
    )  # fmt: skip
