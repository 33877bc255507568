"""Influence: how much one step on a sample's label changes the model's loss on other rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedstill.common.errors import FedstillError
from fedstill.common.randomness import Stream
from fedstill.data.examples import Labelled
from fedstill.learning.fast import switched_off
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase
from fedstill.learning.predict import forward


@dataclass(frozen=True)
class Moment:
    """The state of a phase before a step: what is needed to compute that step again."""

    phase: Phase
    theta: Mapping[str, Tensor]
    stream: Stream
    rate: float

    @classmethod
    def of(cls, phase: Phase) -> Moment:
        """The phase's state now; copies the parameters."""
        learnt = {name: value for name, value in phase.model.named_parameters() if value.requires_grad}
        theta = {name: value.detach().clone() for name, value in learnt.items()}
        return cls(phase, theta, phase.stream.copy(), phase.current_rate)

    def influence(self, rows: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
        """S_bc = <grad log p_bc(theta), v>, [B, C], in one forward pass with the dropout masks of the step."""
        phase = self.phase
        batch = phase.data.batch(rows, phase.device)

        def log_probabilities(theta: Mapping[str, Tensor]) -> Tensor:
            return forward(_With(phase.model, theta), batch).log_softmax(-1)

        phase.model.train()
        try:
            with self.stream.copy()(), differentiable():
                influence: Tensor = jvp(log_probabilities, (dict(self.theta),), (dict(direction),))[1]
        except NotImplementedError as error:  # a GRU on a GPU, or a user's layer
            where = f"{type(phase.model).__name__} has a layer without a forward derivative on {phase.device.type}"
            raise FedstillError(
                f"{where} ({error}); use another server model, `device: cpu`, or `feedback: loss_diff`."
            ) from error
        return influence.detach().cpu()


class _With(nn.Module):
    """A model that computes with other parameters than its own."""

    def __init__(self, model: nn.Module, theta: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.parts = (model, dict(theta))  # in a tuple, so that torch does not register a submodule

    def forward(self, **batch: Tensor) -> Any:
        """The model's output with these parameters."""
        model, theta = self.parts
        return functional_call(model, theta, (), batch)


def gradient(model: nn.Module, data: Labelled, device: torch.device) -> dict[str, Tensor]:
    """v = grad L(theta) on labelled rows, in eval mode; parameters that do not matter have zeros."""
    was_training = model.training
    model.eval()
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with differentiable():  # cuDNN's recurrent layers have no gradient in eval mode
        loss = ce(forward(model, data.batch(torch.arange(len(data)), device)), data.labels.to(device)).mean()
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    model.train(was_training)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}


@contextmanager
def differentiable() -> Iterator[None]:
    """Use only kernels that have forward derivatives; the step needs them too, or its dropout masks would differ."""
    with switched_off(), sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
