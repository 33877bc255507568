"""The parts of a layer over packed tokens, each with a hand-written derivative.

Autograd would give the same, but it writes, keeps and reads every number several times, and memory access is what takes
the time here. Dropout masks are factors to multiply by (`masks.Masks.draw`), or None for no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedstill.learning.fast.products import linear, narrowed, product
from fedstill.learning.fast.unpadded import Group, Unpadded

aten = torch.ops.aten
Factor = Tensor | None


def times(values: Tensor, factor: Factor) -> Tensor:
    """The product, or the values themselves where there is no factor."""
    return values if factor is None else values * factor


class Activation:
    """Any activation with its derivative; for GELU torch's own kernels."""

    def __init__(self, name: str, call: Callable[[Tensor], Tensor]) -> None:
        self.is_gelu, self.call = name == "gelu", call

    def forward(self, values: Tensor) -> Tensor:
        """The activation of these values."""
        return F.gelu(values) if self.is_gelu else self.call(values)

    def backward(self, slope: Tensor, values: Tensor) -> Tensor:
        """The gradient of these values, given the gradient `slope` of the output."""
        if self.is_gelu:
            return aten.gelu_backward(slope, values)  # type: ignore[no-any-return]
        with torch.enable_grad():
            values = values.detach().requires_grad_()
            return torch.autograd.grad(self.call(values), values, slope)[0]


class Embed(Function):
    """Words, positions and types (None: all of type 0), added and normalised, with dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        numbers: Sequence[Tensor | None],
        padding: Sequence[int | None],
        factor: Factor,
        epsilon: float,
        weight: Tensor,
        bias: Tensor,
        *tables: Tensor,
    ) -> Tensor:
        total = weight.new_zeros(())
        for place, (number, table) in enumerate(zip(numbers, tables, strict=True)):
            rows = table[0] if number is None else table.index_select(0, number)
            total = rows if place == 0 else total.add_(rows)
        states: Tensor
        states, mean, scale = aten.native_layer_norm(total, weight.shape, weight, bias, epsilon)
        ctx.constants = numbers, padding, factor, [table.shape for table in tables]
        ctx.save_for_backward(total, mean, scale, weight, bias)
        return states if factor is None else states.mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        total, mean, scale, weight, bias = ctx.saved_tensors
        numbers, padding, factor, shapes = ctx.constants
        slope, weight_slope, bias_slope = aten.native_layer_norm_backward(
            times(slope, factor), total, weight.shape, mean, scale, weight, bias, (True, True, True)
        )
        tables: list[Tensor | None] = []
        for number, pad, shape, is_wanted in zip(numbers, padding, shapes, ctx.needs_input_grad[6:], strict=True):
            if not is_wanted:
                tables.append(None)
                continue
            table = slope.new_zeros(shape)
            if number is None:
                table[0] = slope.sum(0)
            else:
                table.index_add_(0, number, slope)
            if pad is not None:
                table[pad] = 0
            tables.append(table)
        return None, None, None, None, weight_slope, bias_slope, *tables


class Attend(Function):
    """The attention output of every token, all heads side by side, [tokens, size]."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, texts: Unpadded, heads: int, factors: Sequence[Factor], narrow: bool, *weights: Tensor
    ) -> Tensor:
        states, weight = narrowed(states, narrow), narrowed(torch.cat(weights[::2]), narrow)
        size = len(weights[0])
        packed = texts.without_rest(linear(states, weight, torch.cat(weights[1::2])))
        found = texts.without_rest(packed.new_empty(len(states), size))
        ctx.scale = (size // heads) ** -0.5
        kept = []
        for group, factor in zip(texts.groups, factors, strict=True):
            projected = group.spread(packed, 3, heads)
            shares = shares_of(group, projected[0], projected[1], heads, ctx.scale)
            used = times(shares, factor)
            group.gather(torch.bmm(used, projected[2]), 1, heads, found)
            kept.append((projected, shares, used, factor))
        if any(ctx.needs_input_grad):
            ctx.constants = texts, heads, narrow, kept
            ctx.save_for_backward(states, weight)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        states, weight = ctx.saved_tensors
        texts, heads, narrow, kept = ctx.constants
        packed = texts.without_rest(slope.new_empty(len(slope), 3 * slope.shape[1]))
        for group, (projected, shares, used, factor) in zip(texts.groups, kept, strict=True):
            query, key, value = projected
            found = group.spread(slope, 1, heads)[0]
            slopes = torch.empty_like(projected)
            torch.bmm(used.transpose(1, 2), found, out=slopes[2])
            inner = torch.bmm(found, value.transpose(1, 2))
            inner = aten._softmax_backward_data(times(inner, factor), shares, -1, shares.dtype)
            torch.baddbmm(slopes[0], inner, key, beta=0, alpha=ctx.scale, out=slopes[0])
            torch.baddbmm(slopes[1], inner.transpose(1, 2), query, beta=0, alpha=ctx.scale, out=slopes[1])
            group.gather(slopes, 3, heads, packed)
        given, *both = _back(packed, states, weight, narrow, any(ctx.needs_input_grad[5:]))
        parts = [(None,) * 3 if slopes is None else slopes.chunk(3) for slopes in both]
        return given, None, None, None, None, *(part for pair in zip(*parts, strict=True) for part in pair)


class AttendFirst(Function):
    """The attention output of each text's first token, all heads side by side, [texts, size].

    The first token's score for a token x is q.(K x) = (K^T q).x, and its output is sum p (V x) = V (sum p x), so the
    keys and values of all tokens are never computed. The keys' bias adds the same number to all scores of a text, which
    has no effect after softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        texts: Unpadded,
        heads: int,
        factors: Sequence[Factor],
        query_weight: Tensor,
        query_bias: Tensor,
        key_weight: Tensor,
        key_bias: Tensor,
        value_weight: Tensor,
        value_bias: Tensor,
    ) -> Tensor:
        first = states.index_select(0, texts.firsts)
        query = torch.addmm(query_bias, first, query_weight.t())
        ctx.scale = (len(query_weight) // heads) ** -0.5
        # [heads, texts, ...], as batched products with the weights of each head need it.
        asked = torch.bmm(_by_head(query, heads), key_weight.view(heads, -1, states.shape[1])).mul_(ctx.scale)
        means = asked.new_empty(heads, len(first), states.shape[1])
        sums = asked.new_empty(len(first), heads)
        kept = []
        for group, factor in zip(texts.groups, factors, strict=True):
            tokens = group.pad(states)
            shares = shares_of(group, asked[:, group.texts].transpose(0, 1), tokens, 1, 1.0)
            used = times(shares, factor)
            means[:, group.texts] = torch.bmm(used, tokens).transpose(0, 1)
            torch.sum(used, -1, out=sums[group.texts])
            kept.append((tokens, shares, used, factor))
        found = torch.bmm(means, value_weight.view(heads, -1, states.shape[1]).transpose(1, 2))
        if any(ctx.needs_input_grad):
            ctx.constants = texts, heads, kept
            ctx.save_for_backward(
                states, first, query, asked, means, sums, query_weight, key_weight, value_weight, value_bias
            )
        return (found.transpose(0, 1) + sums[:, :, None] * value_bias.view(heads, -1)).reshape(len(first), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        states, first, query, asked, means, sums, query_weight, key_weight, value_weight, value_bias = ctx.saved_tensors
        texts, heads, kept = ctx.constants
        by_head = _by_head(slope, heads)
        mean_slopes = torch.bmm(by_head, value_weight.view(heads, -1, states.shape[1]))
        value_slope = torch.bmm(by_head.transpose(1, 2), means).view_as(value_weight)
        by_text = slope.view(len(first), heads, -1)
        sum_slopes = (by_text * value_bias.view(heads, -1)).sum(-1, keepdim=True)
        value_bias_slope = (by_text * sums[:, :, None]).sum(0).view(-1)
        given = texts.without_rest(torch.empty_like(states))
        asked_slopes = torch.empty_like(asked)
        for group, (tokens, shares, used, factor) in zip(texts.groups, kept, strict=True):
            mean_slope = mean_slopes[:, group.texts].transpose(0, 1)
            inner = torch.baddbmm(sum_slopes[group.texts], mean_slope, tokens.transpose(1, 2))
            inner = aten._softmax_backward_data(times(inner, factor), shares, -1, shares.dtype)
            asked_slopes[:, group.texts] = torch.bmm(inner, tokens).transpose(0, 1)
            left = torch.cat([used, inner], 1).transpose(1, 2)
            right = torch.cat([mean_slope, asked[:, group.texts].transpose(0, 1)], 1)
            group.gather(torch.bmm(left, right)[None], 1, 1, given)
        asked_slopes.mul_(ctx.scale)
        key_slope = torch.bmm(_by_head(query, heads).transpose(1, 2), asked_slopes).view_as(key_weight)
        query_slope = torch.bmm(asked_slopes, key_weight.view(heads, -1, states.shape[1]).transpose(1, 2))
        query_slope = query_slope.transpose(0, 1).reshape(len(first), -1)
        given.index_add_(0, texts.firsts, query_slope @ query_weight)
        query_slopes = query_slope.t() @ first, query_slope.sum(0)
        key_slopes = key_slope, torch.zeros_like(value_bias)
        return given, None, None, None, *query_slopes, *key_slopes, value_slope, value_bias_slope


class Transform(Function):
    """A layer after its attention: two blocks, each with dropout, a residual connection and a norm."""

    @staticmethod
    def forward(
        ctx: Any,
        found: Tensor,
        given: Tensor,
        activation: Activation,
        factors: tuple[Factor, Factor],
        epsilons: tuple[float, float],
        narrow: bool,
        *weights: Tensor,
    ) -> Tensor:
        mix, mix_bias, norm, norm_bias, up, up_bias, down, down_bias, last, last_bias = weights
        found, mix, up, down = (narrowed(each, narrow) for each in (found, mix, up, down))
        mixed = _added(given, linear(found, mix, mix_bias), factors[0])
        normed, mean, scale = aten.native_layer_norm(mixed, norm.shape, norm, norm_bias, epsilons[0])
        middle = narrowed(normed, narrow)
        raised = linear(middle, up, up_bias)
        active = narrowed(activation.forward(raised), narrow)
        lowered = _added(normed, linear(active, down, down_bias), factors[1])
        states, last_mean, last_scale = aten.native_layer_norm(lowered, last.shape, last, last_bias, epsilons[1])
        if any(ctx.needs_input_grad):
            ctx.constants = activation, factors, narrow
            kept = found, mixed, mean, scale, middle, raised, active, lowered, last_mean, last_scale
            ctx.save_for_backward(*kept, mix, norm, norm_bias, up, down, last, last_bias)
        return states  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        found, mixed, mean, scale, middle, raised, active, lowered, last_mean, last_scale, *weights = ctx.saved_tensors
        mix, norm, norm_bias, up, down, last, last_bias = weights
        activation, factors, narrow = ctx.constants
        learns = any(ctx.needs_input_grad[6:])
        wanted = (True, learns, learns)
        slope, *last_slopes = aten.native_layer_norm_backward(
            slope, lowered, last.shape, last_mean, last_scale, last, last_bias, wanted
        )
        lowered_slope, *down_slopes = _back(times(slope, factors[1]), active, down, narrow, learns)
        raised_slope, *up_slopes = _back(activation.backward(lowered_slope, raised), middle, up, narrow, learns)
        slope, *norm_slopes = aten.native_layer_norm_backward(
            raised_slope.add_(slope), mixed, norm.shape, mean, scale, norm, norm_bias, wanted
        )
        found_slope, *mix_slopes = _back(times(slope, factors[0]), found, mix, narrow, learns)
        slopes = (*mix_slopes, *norm_slopes, *up_slopes, *down_slopes, *last_slopes)
        return found_slope, slope, None, None, None, None, *slopes


def _back(
    slope: Tensor, states: Tensor, weight: Tensor, narrow: bool, learns: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of a linear layer's states and, if it learns, of weight and bias, given that of its output."""
    inner = narrowed(slope, narrow)
    given = product(inner, weight)
    return (given, product(inner.t(), states), slope.sum(0)) if learns else (given, None, None)


def shares_of(group: Group, queries: Tensor, keys: Tensor, heads: int, scale: float) -> Tensor:
    """Attention's softmax over each text of a group."""
    keys = keys.transpose(1, 2)
    if group.is_full:
        scores = torch.baddbmm(queries.new_empty(1), queries, keys, beta=0, alpha=scale)
    else:
        scores = torch.baddbmm(group.bias(heads, queries), queries, keys, alpha=scale)
    return torch.softmax(scores, -1)


def _by_head(values: Tensor, heads: int) -> Tensor:
    """[texts, heads * size] as [heads, texts, size]."""
    return values.view(len(values), heads, -1).transpose(0, 1)


def _added(given: Tensor, values: Tensor, factor: Factor) -> Tensor:
    return values.add_(given) if factor is None else torch.addcmul(given, values, factor)
