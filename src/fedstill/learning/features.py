"""Features of rows: the input of a model's last linear layer, or the mean of an encoder's last hidden states."""

from __future__ import annotations

from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples
from fedstill.learning.precision import Precision
from fedstill.learning.predict import forward, predict


def last_linear(module: nn.Module) -> nn.Linear:
    """The linear layer that was defined last; in a classifier that is the head."""
    found = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise FedstillError(
            f"{type(module).__name__} has no linear layer whose input could be features: choose textcnn, bigru or a "
            "transformer."
        )
    return found[-1]


def features(module: nn.Module, data: Examples, precision: Precision = "fp32") -> Tensor:
    """What enters the last linear layer, [N, D], in eval mode, in float32, on the CPU."""
    return predict(_Features(module), data, precision)


def mean_states(module: nn.Module, data: Examples, precision: Precision = "fp32") -> Tensor:
    """The mean of an encoder's last hidden states over a row's tokens, [N, D], in eval mode, on the CPU."""
    if not hasattr(module, "set_attn_implementation"):
        raise FedstillError(
            f"{type(module).__name__} has no pretrained encoder whose states could be features: choose a transformer, "
            "such as minilm."
        )
    return predict(_States(module), data, precision)


class _States(nn.Module):
    """A model that returns mean hidden states instead of logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training

    def forward(self, **batch: Tensor) -> Tensor:
        states: Tensor = self.module(**batch, output_hidden_states=True).hidden_states[-1]
        mask = batch["attention_mask"][:, :, None].to(states)
        return (states * mask).sum(1) / mask.sum(1)


class _Features(nn.Module):
    """A model that returns its features instead of logits, so that `predict` can be used as it is."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training

    def forward(self, **batch: Tensor) -> Tensor:
        entered: list[Tensor] = []
        hook = last_linear(self.module).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        try:
            forward(self.module, batch)
        finally:
            hook.remove()
        if len(entered) != 1 or entered[0].ndim != 2:
            raise FedstillError(
                f"{type(self.module).__name__} has no features: its last linear layer does not get one vector per row."
            )
        return entered[0]
