"""Weights finer than one a client: by sample and by class, each [K, N or 1, C or 1], with sum one over the clients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedstill.learning.losses import entropy

UNSEEN = -1.0
"""Stands for the loss of a class that a client has no rows of: messages hold finite numbers only."""


def seen(class_losses: list[float]) -> Tensor:
    """Losses by class as they travel."""
    return torch.tensor([UNSEEN if math.isnan(loss) else loss for loss in class_losses])


def by_class(beta: float, class_losses: Tensor, otherwise: Tensor) -> Tensor:
    """w_kc ~ exp(-beta l_kc) over the clients that have the class; classes that no client has keep w_k."""
    seen = class_losses >= 0
    scaled = torch.where(seen, -beta * class_losses, -torch.inf)
    weights = torch.where(seen.any(0), torch.softmax(scaled, 0), torch.zeros(()))
    return torch.where(seen.any(0), weights, otherwise[:, :, 0])[:, None, :]


def by_competence(weights: Tensor, shares: Tensor, odds: Tensor) -> Tensor:
    """w_k(x) ~ w_k n_k D_k / (1 - D_k), from the clients' shares of the rows [K] and their odds [K, N]."""
    fine = weights * (shares[:, None] * odds)[:, :, None]
    return fine / fine.sum(0)


def by_certainty(weights: Tensor, logits: Tensor) -> Tensor:
    """w_ki ~ w_k exp(-H(p^k_i) / ln C): a client counts less where it is unsure."""
    uncertainty = entropy(logits.softmax(-1)) / math.log(logits.shape[-1])
    fine = weights * torch.exp(-uncertainty)[:, :, None]
    return fine / fine.sum(0)
