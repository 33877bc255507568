"""Inputs that a model is sure about, made from noise: gradient descent on the input until the entropy is low.

Batches of several models of one architecture can be computed together (`torch.func`), which is faster where one small
model leaves the device idle: on a GPU, not on a CPU (benchmarks/README.md). Every input has its own Adam state and
every batch stops on its own, so apart from rounding a result does not depend on what is computed together with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedstill.learning.fast.repeated import Repeated, short_products
from fedstill.learning.losses import ce, entropy
from fedstill.learning.precision import input_gradients
from fedstill.learning.predict import forward

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Descent:
    """How noise becomes input: Adam at this rate, until the mean entropy is at most `target` or `steps` are done.

    Where classes are given, the cross-entropy with them must be that low too: a model may be sure of a wrong class.
    """

    target: float = 0.01
    steps: int = 200
    rate: float = 0.1
    batch: int = 64
    together: int = 20
    """How many batches are computed at once."""


@dataclass(frozen=True)
class Batch:
    """Noise for one model and, optionally, the class that each input should become."""

    parameters: Mapping[str, Tensor]
    values: Tensor
    classes: Tensor | None = None


Outputs = Callable[[Tensor], Tensor]


def make_sure(module: nn.Module, name: str, batches: Sequence[Batch], how: Descent, stacked: bool) -> list[Tensor]:
    """The values of every batch after the descent; `module`, in eval mode, is used only for its architecture."""
    made: list[Tensor] = []
    for start in range(0, len(batches), how.together if stacked else 1):
        part = batches[start : start + (how.together if stacked else 1)]
        made += _descend(module, name, part, how, stacked)
    return made


def _descend(module: nn.Module, name: str, batches: Sequence[Batch], how: Descent, stacked: bool) -> list[Tensor]:
    sizes = [len(batch.values) for batch in batches]
    values = nn.utils.rnn.pad_sequence([batch.values for batch in batches], batch_first=True)
    classes = _classes(batches, values)
    real = torch.arange(values.shape[1], device=values.device) < torch.tensor(sizes, device=values.device)[:, None]
    slopes = _stacked_slopes if stacked else _single_slope
    slope = slopes(module, name, batches)
    first, second = torch.zeros_like(values), torch.zeros_like(values)
    for step in range(1, how.steps + 1):
        gradients, doubts = slope(values, classes)
        means = (doubts * real).sum(1) / real.sum(1)
        unsure = (means > how.target).view(-1, *[1] * (values.ndim - 1))
        if not bool(unsure.any()):
            break
        first = BETAS[0] * first + (1 - BETAS[0]) * gradients
        second = BETAS[1] * second + (1 - BETAS[1]) * gradients**2
        corrected = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
        values = torch.where(unsure, values - how.rate * (first / (1 - BETAS[0] ** step)) / corrected, values)
    return [own[:size] for own, size in zip(values, sizes, strict=True)]


def _classes(batches: Sequence[Batch], values: Tensor) -> Tensor | None:
    if batches[0].classes is None:
        return None
    own = [batch.classes for batch in batches if batch.classes is not None]
    return nn.utils.rnn.pad_sequence(own, batch_first=True).to(values.device)


def _loss(logits: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss, summed over samples so that their gradients are independent; and each sample's value to bring down."""
    entropies = entropy(logits.softmax(-1))
    if classes is None:
        return entropies.sum(), entropies.detach()
    misses = ce(logits, classes)
    return misses.sum(), torch.maximum(entropies, misses).detach()


Slope = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(values, classes) of all batches -> the gradients with respect to the values, and the values to bring down."""


def _stacked_slopes(module: nn.Module, name: str, batches: Sequence[Batch]) -> Slope:
    stack = {
        key: torch.stack([batch.parameters[key].to(value) for batch in batches])  # they may come in 16 bits
        for key, value in module.state_dict().items()
        # The word embeddings are not used where embeddings are the input, and would be most of the stack.
        if not (name == "inputs_embeds" and key == "embedding.weight") and value.is_floating_point()
    }

    def one(parameters: dict[str, Tensor], own: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        return _loss(functional_call(module, parameters, kwargs={name: own}), classes)

    def slope(values: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        over = (0, 0, None if classes is None else 0)
        found: tuple[Tensor, Tensor] = vmap(grad(one, argnums=1, has_aux=True), in_dims=over)(stack, values, classes)
        return found

    return slope


def _single_slope(module: nn.Module, name: str, batches: Sequence[Batch]) -> Slope:
    module.load_state_dict(dict(batches[0].parameters))
    given, wanted = torch.empty_like(batches[0].values), _classes(batches, batches[0].values)
    gradient, doubts = torch.empty_like(given), given.new_empty(len(given))

    def compute() -> None:
        leaf = given.detach().requires_grad_()
        with torch.enable_grad(), input_gradients(module):
            loss, found = _loss(forward(module, {name: leaf}), None if wanted is None else wanted[0])
        gradient.copy_(torch.autograd.grad(loss, leaf)[0])
        doubts.copy_(found)

    repeated = Repeated(compute, given.device, module)

    def slope(values: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        given.copy_(values[0])
        with short_products(given.device):
            repeated()
        return gradient[None], doubts[None]

    return slope
