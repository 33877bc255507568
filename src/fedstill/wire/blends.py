"""Blends: many opinions, or many models, into one. The key `blend` of an experiment chooses one for every method.

Robust blends compare probabilities: logits go through a softmax first, and the blend is their logarithm, which a method
can go on with as logits. A huge number is then only a sure vote.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.common.construct import construct
from fedstill.common.errors import FedstillError
from fedstill.wire.robust import (
    DEVIATIONS,
    agreement,
    capped,
    copies,
    correlations_of,
    filtered,
    median,
    weighted_median,
    weighted_trimmed,
)

Holds = Literal["logits", "probabilities"]
"""What an array of opinions holds."""
Models = Mapping[str, Mapping[str, Tensor]]
"""Parameters by client."""
Share = Annotated[float, Field(ge=0, lt=0.5)]
MaxShare = Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None

TINY = 1e-12
"""The smallest probability: its logarithm is finite."""
HUGE = 1e30
"""Takes the place of infinity."""
LOUDEST = 3.0
"""How many times as large as the median client's logits may be; models of one kind stay below."""


@dataclass(frozen=True)
class About:
    """Whose values are blended, in which round, and what the blend remembers of these clients."""

    clients: tuple[str, ...]
    round: int = 0
    memory: dict[str, Tensor] = field(default_factory=dict)
    cap: Callable[[Tensor], Tensor] = lambda weights: weights
    """Limits new weights as those that were given."""


@dataclass(frozen=True)
class Blend:
    """From the values of K clients and their weights, which sum to one, to one value."""

    name: ClassVar[str]
    """Its name in an experiment."""

    def opinions(self, values: Tensor, weights: Tensor, holds: Holds, about: About) -> Tensor:
        """Of opinions [K, N, C]; weights are [K, N or 1, C or 1]."""
        said = probabilities(values, holds)
        return spoken(self.together(said, weights, about), holds).to(values.dtype)

    def together(self, said: Tensor, weights: Tensor, about: About) -> Tensor:
        """Of probabilities [K, N, C], one distribution a sample."""
        raise NotImplementedError

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        """Of models with equal parameters; integers are taken from the first."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Blend):
    """The weighted mean of whatever a method blends: as in the papers, and open to a single liar."""

    name: ClassVar[str] = "mean"

    def opinions(self, values: Tensor, weights: Tensor, holds: Holds, about: About) -> Tensor:
        return (values.double() * weights).sum(0).to(values.dtype)

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return average(models, weights)


@dataclass(frozen=True)
class Median(Blend):
    """The weighted median of each class, normalised; of each number of a model."""

    name: ClassVar[str] = "median"

    def together(self, said: Tensor, weights: Tensor, about: About) -> Tensor:
        return _normalised(weighted_median(said, weights))

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return _by_number(models, lambda values: weighted_median(values, _beside(weights, values)))


@dataclass(frozen=True)
class Trimmed(Blend):
    """The weighted mean of each class without `share` of the weight at each end; of each number of a model."""

    share: Share = 0.2
    name: ClassVar[str] = "trimmed"

    def together(self, said: Tensor, weights: Tensor, about: About) -> Tensor:
        return _normalised(weighted_trimmed(said, weights, self.share))

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return _by_number(models, lambda values: weighted_trimmed(values, _beside(weights, values), self.share))


@dataclass(frozen=True)
class Filtered(Blend):
    """Cronus's filter: on each sample at most `share` of the clients is dropped; clients count the same."""

    share: Share = 0.2
    name: ClassVar[str] = "cronus"

    def together(self, said: Tensor, weights: Tensor, about: About) -> Tensor:
        return filtered(said, self.share)

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        raise FedstillError("blend: cronus filters opinions, not parameters: choose median, trimmed or clipped.")


@dataclass(frozen=True)
class Clipped(Blend):
    """The weighted mean of centred logits, each row at most as long as the clients' median row.

    Models: the mean of the differences from the median model, each at most as long as the median difference.
    """

    name: ClassVar[str] = "clipped"

    def opinions(self, values: Tensor, weights: Tensor, holds: Holds, about: About) -> Tensor:
        finite = _finite(values)
        logits = finite.clamp(TINY, 1.0).log() if holds == "probabilities" else finite
        centred = logits - logits.mean(-1, keepdim=True)
        lengths = centred.norm(dim=-1, keepdim=True)
        shorter = centred * _at_most(lengths, _middle_of(lengths))
        blend = (shorter * weights).sum(0)
        return (blend.softmax(-1) if holds == "probabilities" else blend).to(values.dtype)

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return _near_the_middle(models, lambda lengths: weights)


@dataclass(frozen=True)
class ExpGuard(Blend):
    """The mean with w_k exp(-eta o_k), multiplied up over the rounds: who was far off counts little from then on.

    o_k is the mean over samples of the total variation distance (0 to 1) between the client's probabilities and the
    median of all. Models: o_k = 1 - m / |d_k| where the difference d_k from the median model is longer than the median
    difference m, else 0; differences are clipped to m. Several blends in one round count as their mean.
    """

    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    name: ClassVar[str] = "expguard"

    def together(self, said: Tensor, weights: Tensor, about: About) -> Tensor:
        distances = (said - median(said)).abs().sum(-1).mean(-1) / 2
        return (said * self.guarded(weights, distances, about)).sum(0)

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        def guarded(lengths: Tensor) -> Tensor:
            return self.guarded(weights, 1 - _at_most(lengths, _middle_of(lengths)), about)

        return _near_the_middle(models, guarded)

    def guarded(self, weights: Tensor, distances: Tensor, about: About) -> Tensor:
        """w_k times exp(-eta o_k) over all rounds, these distances o_k included; they sum to one."""
        trusted = weights * _beside(self.trust(distances, about), weights)
        return about.cap(trusted / trusted.sum(0))

    def trust(self, distances: Tensor, about: About) -> Tensor:
        """exp(-eta o_k) over all rounds, these distances o_k included; the largest is 1."""
        for client, distance in zip(about.clients, distances.tolist(), strict=True):
            before, total, count, round = about.memory.get(client, torch.zeros(4, dtype=torch.float64)).tolist()
            if round != about.round:
                before, total, count = before + total / max(count, 1), 0.0, 0
            now = [before, total + distance, count + 1, about.round]
            about.memory[client] = torch.tensor(now, dtype=torch.float64)
        known = torch.stack([about.memory[client] for client in about.clients])
        distance = known[:, 0] + known[:, 1] / known[:, 2]
        return torch.exp(-self.eta * (distance - distance.min()))


@dataclass(frozen=True)
class Agreement(Blend):
    """The method's own mean of the clients that agree with most others; copies of one opinion count once together.

    A client is left out while it agrees with the majority less than `share` as much as they do among themselves, by
    more than chance, now or not long ago (`trust`). Logits are at most `LOUDEST` times as large as the median client's,
    on average. Models are blended as by `clipped`.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    name: ClassVar[str] = "agreement"

    def opinions(self, values: Tensor, weights: Tensor, holds: Holds, about: About) -> Tensor:
        quiet = _not_too_loud(values, holds)
        said = _distributions(quiet, holds)
        correlations = correlations_of(said)
        trust = self.trust(agreement(said, correlations, self.share), about)
        trusted = weights * _beside(trust / copies(said, correlations), weights)
        total = trusted.sum(0)
        shares = about.cap(torch.where(total > 0, trusted / total.clamp(min=1e-300), weights))
        blend = (quiet * shares).sum(0)
        return (_normalised(blend) if holds == "probabilities" else blend).to(values.dtype)

    def trust(self, margins: Tensor, about: About) -> Tensor:
        """1 for clients whose margins, added up, are not below what chance makes of an honest one's, else 0.

        Who lied once has learnt from the others' answer by the next round, and agrees better while it still lies. So
        the sum never rises above zero, and by one at most: trust is lost at once and regained slowly.
        """
        before = (float(about.memory[client]) if client in about.memory else 0.0 for client in about.clients)
        sums = [min(0.0, was + min(margin, 1.0)) for was, margin in zip(before, margins.tolist(), strict=True)]
        now = torch.tensor(sums, dtype=torch.float64)
        about.memory.update(zip(about.clients, torch.split(now, 1), strict=True))
        return (now >= -DEVIATIONS).double()

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return Clipped().models(models, weights, about)


@dataclass(frozen=True)
class Auto(Agreement):
    """`agreement` for opinions, which costs nothing where nobody lies, and the mean for models."""

    name: ClassVar[str] = "auto"

    def models(self, models: Models, weights: Tensor, about: About) -> dict[str, Tensor]:
        return average(models, weights)


@dataclass(frozen=True)
class Blending:
    """How replies are blended: the blend, and the most that one client may weigh."""

    blend: Blend = field(default_factory=Mean)
    max_share: MaxShare = None
    """`auto`: one half, or 3/K if that is less."""
    round: int = 0
    memory: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_mean(self) -> bool:
        """Whether values are blended as the method says."""
        return isinstance(self.blend, Mean)

    @property
    def is_chosen(self) -> bool:
        """Whether the experiment asks for a blend, also where the method has one of its own."""
        return not isinstance(self.blend, Mean | Auto)

    def cap(self, weights: Tensor) -> Tensor:
        """These weights [K, ...] with none above the limit; what is above goes to the others, in proportion."""
        if self.max_share is None:
            return weights
        return capped(weights, min(0.5, 3 / len(weights)) if self.max_share == "auto" else self.max_share)

    def opinions(self, clients: tuple[str, ...], values: Tensor, weights: Tensor, holds: Holds) -> Tensor:
        """One opinion of many."""
        return self.blend.opinions(values, self.cap(_beside(weights.double(), values)), holds, self._about(clients))

    def models(self, models: Models, weights: Tensor) -> dict[str, Tensor]:
        """One model of many."""
        refuse_different(models)
        return self.blend.models(models, self.cap(weights.double()), self._about(tuple(models)))

    def _about(self, clients: tuple[str, ...]) -> About:
        return About(clients, self.round, self.memory, self.cap)


def known() -> dict[str, type[Blend]]:
    """The blends by name."""
    found = [cls for cls in vars(sys.modules[__name__]).values() if isinstance(cls, type) and issubclass(cls, Blend)]
    return {cls.name: cls for cls in found if "name" in vars(cls)}


def make(spec: str | Mapping[str, Any]) -> Blend:
    """The blend with this name and these options; `file.py:Class` names a user's own class."""
    return construct(Blend, spec, known)


def probabilities(values: Tensor, holds: Holds) -> Tensor:
    """Opinions as distributions, whatever their numbers are."""
    return _distributions(_finite(values), holds)


def _distributions(finite: Tensor, holds: Holds) -> Tensor:
    return finite.softmax(-1) if holds == "logits" else _normalised(finite.clamp(0.0, 1.0))


def spoken(blend: Tensor, holds: Holds) -> Tensor:
    """Distributions in the form that opinions have."""
    return blend.clamp(min=TINY).log() if holds == "logits" else blend


def average(models: Models, weights: Tensor) -> dict[str, Tensor]:
    """The weighted mean of the parameters of several models, given by name; integers are taken from the first."""
    refuse_different(models)
    shares = weights.tolist()

    def mean(key: str, first: Tensor) -> Tensor:
        total = torch.zeros(first.shape, dtype=torch.float64)
        for parameters, share in zip(models.values(), shares, strict=True):
            total.add_(parameters[key], alpha=share)
        return _like(total, first)

    return {key: mean(key, value) for key, value in next(iter(models.values())).items()}


def refuse_different(models: Models) -> None:
    """Refuse models whose parameters have different names or shapes."""
    (name, first), *others = models.items()
    for other, parameters in others:
        if different := sorted({key for key, _ in _kinds(first).items() ^ _kinds(parameters).items()}):
            raise FedstillError(
                f"{other} sends other parameters than {name} (for example {different[0]}): they have different "
                "architectures, and cannot be averaged."
            )


def _by_number(models: Models, blend: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Every parameter blended over the models."""
    first = next(iter(models.values()))
    return {
        key: _like(blend(_stacked(models, key)), value) if value.is_floating_point() else value
        for key, value in first.items()
    }


def _near_the_middle(models: Models, weigh: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The median model and the weighted mean of the differences from it, none longer than the median difference.

    `weigh` makes weights [K] of the differences' lengths [K].
    """
    first = next(iter(models.values()))
    keys = [key for key, value in first.items() if value.is_floating_point()]
    middle = {key: _middle_of(_stacked(models, key))[0] for key in keys}
    squares = [(_stacked(models, key) - middle[key]).flatten(1).square().sum(1) for key in keys]
    lengths = torch.stack(squares).sum(0).sqrt() if keys else torch.zeros(len(models), dtype=torch.float64)
    factors = weigh(lengths) * _at_most(lengths, _middle_of(lengths))
    moved = {
        key: middle[key] + (_beside(factors, values) * (values - middle[key])).sum(0)
        for key in keys
        for values in [_stacked(models, key)]
    }
    return {key: _like(moved.get(key, value), value) for key, value in first.items()}


def _not_too_loud(values: Tensor, holds: Holds) -> Tensor:
    """The opinions as they are, but for clients whose logits are far larger than those of the others."""
    finite = _finite(values)
    if holds == "probabilities":
        return finite.clamp(0.0, 1.0)
    lengths = (finite - finite.mean(-1, keepdim=True)).norm(dim=-1, keepdim=True).mean(1, keepdim=True)
    return finite * _at_most(lengths, LOUDEST * _middle_of(lengths))


def _at_most(lengths: Tensor, limit: Tensor) -> Tensor:
    """What vectors of these lengths are multiplied by, so that none is longer than the limit."""
    return torch.where(lengths > limit, limit / lengths.clamp(min=1e-300), torch.ones_like(lengths))


def _middle_of(values: Tensor) -> Tensor:
    """The median over clients, as [1, ...]."""
    ordered, clients = values.sort(0).values, len(values)
    return (ordered[(clients - 1) // 2] + ordered[clients // 2])[None] / 2


def _stacked(models: Models, key: str) -> Tensor:
    return torch.stack([_finite(parameters[key]) for parameters in models.values()])


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=HUGE, neginf=-HUGE)


def _normalised(values: Tensor) -> Tensor:
    """The values divided by their sum; uniform where all are zero."""
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total.clamp(min=1e-300), 1.0 / values.shape[-1])


def _beside(weights: Tensor, values: Tensor) -> Tensor:
    """The weights with as many dimensions as the values."""
    while weights.ndim < values.ndim:
        weights = weights.unsqueeze(-1)
    return weights


def _like(value: Tensor, other: Tensor) -> Tensor:
    """In float32, or float64 where the other is; integers are the other's."""
    if not other.is_floating_point():
        return other
    return value.to(other.dtype if other.dtype == torch.float64 else torch.float32)


def _kinds(mapping: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, bool]]:
    return {key: (value.shape, value.is_floating_point()) for key, value in mapping.items()}
