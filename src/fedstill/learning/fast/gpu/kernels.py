"""Triton kernels of the GPU path: everything between two matrix products in one pass over memory.

Tensors are [clients, tokens, width]; vectors (biases, norms) are in one flat array per client, `stride` numbers apart.
Dropout uses a hash of (seed of the step, site, position), where the site numbers the places with dropout in a model:
the backward pass computes the same mask again instead of storing it.
"""

# Triton's functions have no types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NARROW = torch.bfloat16
"""The number format of matrix products and of the tensors between them."""
CHUNKS = 256
"""The number of parts that a client's rows are divided into for sums over rows."""


@triton.jit
def _keep(seed, site, index, threshold):
    """True with probability 1 - threshold / 2**32 (from an integer hash with little bias)."""
    x = index.to(tl.uint32) * 0x9E3779B9 + (seed + site * 0x632BE5AB).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    x = x ^ (x >> 15)
    return x >= threshold.to(tl.uint32)


@triton.jit(do_not_specialize=["site"])
def _norm_forward(
    x, bias, residual, gamma, beta, out, total, mean, rstd, seed, tokens, width, stride, eps, threshold, scale, site,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, DROPS: tl.constexpr, DROPS_AFTER: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    client = row // tokens
    column = tl.arange(0, BLOCK)
    inside = column < width
    place = row * width + column
    value = tl.load(x + place, inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + client * stride + column, inside, other=0.0)
    if DROPS:
        kept = _keep(tl.load(seed), site, place, threshold)
        value = tl.where(kept, value * scale, 0.0)
    if HAS_RESIDUAL:
        value += tl.load(residual + place, inside, other=0.0).to(tl.float32)
    rounded = value.to(total.dtype.element_ty)
    tl.store(total + place, rounded, inside)
    value = tl.where(inside, rounded.to(tl.float32), 0.0)
    average = tl.sum(value, 0) / width
    centred = tl.where(inside, value - average, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, inverse)
    g = tl.load(gamma + client * stride + column, inside, other=0.0)
    b = tl.load(beta + client * stride + column, inside, other=0.0)
    normal = centred * inverse * g + b
    if DROPS_AFTER:
        kept = _keep(tl.load(seed), site, place, threshold)
        normal = tl.where(kept, normal * scale, 0.0)
    tl.store(out + place, normal.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["site"])
def _norm_backward(
    dout, total, mean, rstd, gamma, dtotal, dx, sums, seed, tokens, width, stride, threshold, scale, site,
    rows_a_chunk, DROPS: tl.constexpr, DROPS_AFTER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    client = program // CHUNKS
    first = (program % CHUNKS) * rows_a_chunk
    column = tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gamma + client * stride + column, inside, other=0.0)
    dgamma = tl.zeros([BLOCK], tl.float32)
    dbeta = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for step in range(rows_a_chunk):
        token = first + step
        there = inside & (token < tokens)
        row = client * tokens + tl.minimum(token, tokens - 1)
        place = row * width + column
        dy = tl.load(dout + place, there, other=0.0).to(tl.float32)
        if DROPS_AFTER:
            kept = _keep(tl.load(seed), site, place, threshold)
            dy = tl.where(kept, dy * scale, 0.0)
        inverse = tl.load(rstd + row)
        z = tl.load(total + place, there, other=0.0).to(tl.float32)
        normal = tl.where(there, (z - tl.load(mean + row)) * inverse, 0.0)
        weighted = dy * g
        along = tl.sum(weighted * normal, 0) / width
        level = tl.sum(weighted, 0) / width
        dz = tl.where(there, (weighted - normal * along - level) * inverse, 0.0)
        tl.store(dtotal + place, dz.to(dtotal.dtype.element_ty), there)
        if DROPS:
            kept = _keep(tl.load(seed), site, place, threshold)
            dz = tl.where(kept, dz * scale, 0.0)
            tl.store(dx + place, dz.to(dx.dtype.element_ty), there)
        dgamma += dy * normal
        dbeta += dy
        dbias += dz
    where = sums + program * 3 * width + column
    tl.store(where, dgamma, inside)
    tl.store(where + width, dbeta, inside)
    tl.store(where + 2 * width, dbias, inside)


@triton.jit
def _activate(x, bias, out, tokens, width, stride, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = row.to(tl.int64) * width + column
    value = tl.load(x + place, inside, other=0.0).to(tl.float32)
    value += tl.load(bias + (row // tokens) * stride + column, inside, other=0.0)
    if GELU:  # noqa: SIM108 - Triton decides this when it compiles
        value = value * 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
    else:
        value = tl.maximum(value, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), inside)


@triton.jit
def _activate_backward(
    dout, x, bias, dx, sums, tokens, width, stride,
    GELU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2)
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    there = (token < tokens)[:, None] & inside[None, :]
    place = (client * tokens + token).to(tl.int64)[:, None] * width + column[None, :]
    dy = tl.load(dout + place, there, other=0.0).to(tl.float32)
    value = tl.load(x + place, there, other=0.0).to(tl.float32)
    value += tl.load(bias + client * stride + column, inside, other=0.0)[None, :]
    if GELU:
        density = tl.exp(-0.5 * value * value) * 0.3989422804014327
        slope = 0.5 * (1.0 + tl.erf(value * 0.7071067811865476)) + value * density
    else:
        slope = tl.where(value > 0, 1.0, 0.0)
    dvalue = dy * slope
    tl.store(dx + place, dvalue.to(dx.dtype.element_ty), there)
    chunk = client * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + chunk * width + column, tl.sum(dvalue, 0), inside)


@triton.jit
def _adamw(
    master, first, second, gradient, narrow, hyper, stride, count, beta1, beta2, eps, decay,
    HAS_NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = client.to(tl.int64) * count + index
    rate = tl.load(hyper + client * stride)
    correction1 = tl.load(hyper + client * stride + 1)
    correction2 = tl.load(hyper + client * stride + 2)
    clip = tl.load(hyper + client * stride + 3)
    g = tl.load(gradient + place, inside, other=0.0).to(tl.float32) * clip
    m = tl.load(first + place, inside, other=0.0)
    v = tl.load(second + place, inside, other=0.0)
    p = tl.load(master + place, inside, other=0.0)
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    p = p * (1 - rate * decay) - rate / correction1 * m / (tl.sqrt(v) / correction2 + eps)
    tl.store(first + place, m, inside)
    tl.store(second + place, v, inside)
    tl.store(master + place, p, inside)
    if HAS_NARROW:
        tl.store(narrow + place, p.to(narrow.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["site"])
def _mask(out, seed, count, threshold, scale, site, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = _keep(tl.load(seed), site, index, threshold)
    tl.store(out + index, tl.where(kept, scale, 0.0), index < count)


def dropout_mask(shape: torch.Size, seed: Tensor, site: int, dropout: float) -> Tensor:
    """Factors to multiply by: 0, or 1 / (1 - dropout)."""
    out = torch.empty(shape, dtype=torch.float32, device=seed.device)
    count, scale = out.numel(), 1.0 / (1.0 - dropout)
    _mask[(triton.cdiv(count, 1024),)](out, seed, count, _threshold(dropout), scale, site, BLOCK=1024, num_warps=4)
    return out


def _threshold(probability: float) -> int:
    return min(2**32 - 1, round(probability * 2**32))


def _warps(block: int) -> int:
    return 1 if block <= 256 else 4 if block <= 1024 else 8


def norm_forward(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, gamma: Tensor, beta: Tensor, eps: float, seed: Tensor,
    site: int, dropout: float, drops_after: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """LayerNorm(residual + dropout(x + bias)), or dropout(LayerNorm(x)); and the tensors for the backward pass."""
    clients, tokens, width = x.shape
    out, total = (torch.empty(x.shape, dtype=NARROW, device=x.device) for _ in range(2))
    mean, rstd = (torch.empty(clients * tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(width)
    _norm_forward[(clients * tokens,)](
        x, bias, residual, gamma, beta, out, total, mean, rstd, seed, tokens, width, gamma.stride(0), eps,
        _threshold(dropout), 1.0 / (1.0 - dropout), site, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        DROPS=dropout > 0 and not drops_after, DROPS_AFTER=dropout > 0 and drops_after, BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip
    return out, (total, mean, rstd)


def norm_backward(
    dout: Tensor, saved: tuple[Tensor, Tensor, Tensor], gamma: Tensor, seed: Tensor, site: int, dropout: float,
    drops_after: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the sum before the norm, of x, and of gamma, beta and bias as [clients, 3, width]."""
    total, mean, rstd = saved
    clients, tokens, width = total.shape
    drops = dropout > 0 and not drops_after
    dtotal = torch.empty_like(total)
    dx = torch.empty_like(total) if drops else dtotal
    chunks = min(CHUNKS, tokens)
    sums = torch.empty(clients, chunks, 3, width, dtype=torch.float32, device=total.device)
    block = triton.next_power_of_2(width)
    _norm_backward[(clients * chunks,)](
        dout, total, mean, rstd, gamma, dtotal, dx, sums, seed, tokens, width, gamma.stride(0), _threshold(dropout),
        1.0 / (1.0 - dropout), site, triton.cdiv(tokens, chunks), DROPS=drops,
        DROPS_AFTER=dropout > 0 and drops_after, CHUNKS=chunks, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return dtotal, dx, sums.sum(1)


def activate(x: Tensor, bias: Tensor, name: str) -> Tensor:
    """gelu(x + bias), or relu."""
    clients, tokens, width = x.shape
    out = torch.empty_like(x)
    block = min(1024, triton.next_power_of_2(width))
    _activate[(clients * tokens, triton.cdiv(width, block))](
        x, bias, out, tokens, width, bias.stride(0), GELU=name == "gelu", BLOCK=block, num_warps=_warps(block)
    )
    return out


def activate_backward(dout: Tensor, x: Tensor, bias: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The gradients of x, which overwrite `dout`, and of the bias."""
    clients, tokens, width = x.shape
    rows, block = 32, min(128, triton.next_power_of_2(width))
    chunks = triton.cdiv(tokens, rows)
    sums = torch.empty(clients, chunks, width, dtype=torch.float32, device=x.device)
    _activate_backward[chunks, triton.cdiv(width, block), clients](
        dout, x, bias, dout, sums, tokens, width, bias.stride(0), GELU=name == "gelu", ROWS=rows, BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return dout, sums.sum(1)


def adamw(
    master: Tensor, first: Tensor, second: Tensor, gradient: Tensor, narrow: Tensor | None, hyper: Tensor, decay: float
) -> None:
    """One step of AdamW on [clients, numbers]; `hyper` has (rate, 1 - b1^t, sqrt(1 - b2^t), clip) for each client.

    `narrow` receives the new parameters in bf16.
    """
    clients, count = master.shape
    _adamw[(triton.cdiv(count, 1024), clients)](
        master, first, second, gradient, narrow, hyper, hyper.stride(0), count, 0.9, 0.999, 1e-8, decay,
        HAS_NARROW=narrow is not None, BLOCK=1024, num_warps=4,
    )  # fmt: skip
